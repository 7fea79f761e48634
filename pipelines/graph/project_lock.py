"""One `dvc repro` at a time in a project: whoever comes second waits, then finds the work done. And locks that refuse.

DVC's own --wait-for-lock waits for its repository lock only: a second `dvc repro` that meets an output which the first
one is making fails with "is busy".
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.graph.killed_dvc import repair_dvc_state
from stages.foundations.errors import UserError

SECONDS_BETWEEN_TRIES = 0.5
SECONDS_BETWEEN_LINES = 60.0


@contextmanager
def project_lock(root: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Waits for the project's lock, says so while it waits, and yields its file descriptor.

    Handed to `run_in_group` as `held`, the descriptor keeps the lock until no process of the command is left.
    """
    path = root / "state" / "locks" / "repro.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as lock:
        said = -SECONDS_BETWEEN_LINES
        while not _is_taken(lock.fileno()):
            if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                say(
                    f"waiting for the run of process {path.read_text().strip() or '?'}, which is at work in {root}"
                )
            time.sleep(SECONDS_BETWEEN_TRIES)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        repair_dvc_state(root, say)
        yield lock.fileno()


@contextmanager
def refusing_lock(folder: Path, refusal: str) -> Iterator[None]:
    """Holds the file `lock` in the folder, which is made; UserError with the refusal while another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        if not _is_taken(lock.fileno()):
            raise UserError(f"{refusal} ({folder / 'lock'} is held)")
        yield


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
