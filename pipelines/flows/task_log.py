"""The lines of a command that a task runs: in Prefect's log, the last of them for a failure, and as progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

LINES_IN_A_FAILURE = 25
SECONDS_BETWEEN_UPDATES = 5.0


class TaskLog:
    """Called with each line. `percent` reads from a line how far the task is, or None."""

    def __init__(self, slug: str, about: str, percent: Callable[[str], float | None]) -> None:
        self.last = deque[str](maxlen=LINES_IN_A_FAILURE)
        self._percent = percent
        self._logger = get_run_logger()
        self._artifact = create_progress_artifact(0.0, key=f"progress-{slug}", description=about)
        self._updated = time.monotonic()

    def __call__(self, line: str) -> None:
        if not line.strip():
            return
        self.last.append(line)
        self._logger.info("%s", line)
        percent = self._percent(line)
        if percent is not None and time.monotonic() - self._updated >= SECONDS_BETWEEN_UPDATES:
            self._updated = time.monotonic()
            update_progress_artifact(self._artifact, min(100.0, percent))

    def finish(self) -> None:
        update_progress_artifact(self._artifact, 100.0)
