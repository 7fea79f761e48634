"""Locks between processes: files that the kernel unlocks when their holder ends, however it ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stages.foundations.errors import UserError

SECONDS_BETWEEN_TRIES = 0.5
SECONDS_BETWEEN_LINES = 60.0


def try_lock(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Takes the lock where it is free."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for(is_taken: Callable[[], bool], say: Callable[[str], None], reason: Callable[[], str]) -> None:
    """Tries repeatedly, and sometimes says why it waits."""
    # Polling, since waiting in the kernel could not print anything meanwhile.
    said = -SECONDS_BETWEEN_LINES
    while not is_taken():
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            say(reason())
        time.sleep(SECONDS_BETWEEN_TRIES)


@contextmanager
def refusing_lock(folder: Path, refusal: str) -> Iterator[None]:
    """Holds the file `lock` in the folder, which is created; UserError with `refusal` if another process does."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        if not try_lock(lock):
            raise UserError(f"{refusal} ({folder / 'lock'} is held)")
        yield
