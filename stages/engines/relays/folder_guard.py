"""Removes a relay's folder from its node's memory when no relay has used it for a while, even if all were killed.

    python -m stages.engines.relays.folder_guard FOLDER        (goes on in the background)

On the machine of the process that holds the session `ray_guard.py` does this. Other nodes of a cluster live on after
it, and a relay that dies comes back to its folder: so the folder goes only when nobody has come back. A guard may be
killed together with everything else, so each session first removes what such sessions left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import sys
import time
from pathlib import Path

import psutil

from stages.engines.relays.published_weights import MEMORY, PREFIX

CLAIM = ".claim"
"""File in the folder that a living relay holds a lock on."""
UNUSED_SECONDS = 20.0
"""Within this a relay that was killed is back."""
SECONDS_BETWEEN = 0.5


def wait_until_unused(folder: Path) -> None:
    """Returns when nobody has claimed the folder for `UNUSED_SECONDS`, or it is gone."""
    unused_since = time.monotonic()
    while time.monotonic() - unused_since < UNUSED_SECONDS and folder.exists():
        if _is_claimed(folder):
            unused_since = time.monotonic()
        time.sleep(SECONDS_BETWEEN)


def _is_claimed(folder: Path) -> bool:
    try:
        claim = os.open(folder / CLAIM, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(claim)


def remove_abandoned(memory: Path = MEMORY) -> list[Path]:
    """Removes this user's folders whose run has ended and that no relay claims; returns them.

    The process that a folder is named after may be on another machine, or its number may belong to a new process. A
    living relay has claimed the folder in the first case, and the process is younger than the folder in the second.
    """
    abandoned = [folder for folder in memory.glob(f"{PREFIX}*") if _is_abandoned(folder)]
    for folder in abandoned:
        shutil.rmtree(folder, ignore_errors=True)
    return abandoned


def _is_abandoned(folder: Path) -> bool:
    number = folder.name.removeprefix(PREFIX).partition(".")[0]
    try:
        found = folder.lstat()
        if not (stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and number.isdecimal()):
            return False
        if psutil.Process(int(number)).create_time() <= found.st_mtime:
            return False
    except psutil.NoSuchProcess:
        pass  # the run has ended
    except (FileNotFoundError, psutil.AccessDenied, OverflowError):
        return False
    return not _is_claimed(folder)


def main(folder: Path) -> None:
    """Ends at once for who started it: whatever it does, it does as a process that is nobody's child."""
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    wait_until_unused(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
