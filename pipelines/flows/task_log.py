"""The lines of a command that a task runs: in Prefect's log, the last of them for a failure, and as progress."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from uuid import UUID

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact

LINES_IN_A_FAILURE = 25
SECONDS_BETWEEN_UPDATES = 5.0
ADVICE = re.compile(
    r"\s*$|Updating lock file |Generating lock file |To track the changes with git, run:|\tgit add "
    r"|To enable auto staging, run:|\tdvc config core.autostage |Use `dvc push` to send"
)
"""What DVC says after each stage. It is advice to a person at a terminal, and wrong within a run."""


class TaskLog:
    """Called with each line. `percent` reads from a line how far the task is, or None.

    The progress artifact appears with the first such line: a task that reports no progress has none.
    """

    def __init__(self, slug: str, about: str, percent: Callable[[str], float | None]) -> None:
        self.last = deque[str](maxlen=LINES_IN_A_FAILURE)
        self._percent = percent
        self._logger = get_run_logger()
        self._key, self._about = f"progress-{slug}", about
        self._artifact: UUID | None = None
        self._updated = 0.0

    def __call__(self, line: str) -> None:
        if ADVICE.match(line):
            return
        self.last.append(line)
        self._logger.info("%s", line)
        percent = self._percent(line)
        if percent is not None and time.monotonic() - self._updated >= SECONDS_BETWEEN_UPDATES:
            self._updated = time.monotonic()
            self._show(min(100.0, percent))

    def finish(self) -> None:
        if self._artifact:
            self._show(100.0)

    def _show(self, percent: float) -> None:
        if self._artifact:
            update_progress_artifact(self._artifact, percent)
        else:
            self._artifact = create_progress_artifact(percent, key=self._key, description=self._about)
