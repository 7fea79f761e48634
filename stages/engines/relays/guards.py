"""Processes that outlive a run and remove its remains, even if every process of the run was killed.

    python -m stages.engines.relays.guards session FOLDER PARENT RUN    (waits for the end of its standard input)
    python -m stages.engines.relays.guards folder FOLDER                (works in the background)

The first guards a session, on the machine of the process that opened it. Ray asks the kernel to end its servers with
the process that started them, and its workers end with their raylet. But two agents outlived a killed raylet by two
minutes, because they first report to a server that is gone as well. Every process of a Ray keeps a log open for
writing in that Ray's folder; the guard recognises it by this log. FOLDER is empty for a cluster that others started.
The files of RUN in this machine's memory are removed last, when no process writes them any more.

The second guards the folder of a relay, on every other node of a cluster. Nodes outlive the session, and a relay that
dies is restarted and returns to its folder. So the guard removes the folder only if no relay has returned.

A guard may be killed together with everything else, so each session first removes the remains of such sessions.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from stages.engines.relays.published_weights import MEMORY, PREFIX

PASSES = 3
"""Passes without a process in a row after which no more are expected: a process may just be starting another."""
SECONDS_BETWEEN_PASSES = 0.1
CLAIM = ".claim"
"""File in the folder that a living relay holds a lock on."""
UNUSED_SECONDS = 20.0
"""A killed relay is back within this time."""
SECONDS_BETWEEN_LOOKS = 0.5


def guard_session(folder: Path | None, parent: int, run: str) -> None:
    """Waits for the parent's end, then ends the remaining processes and removes the folders."""
    # Ctrl-C reaches the whole terminal; this process is needed after that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The pipe ends with its other side, however that process ends: no polling, and no process id that could be reused.
    while sys.stdin.buffer.read(1):
        pass
    if folder is not None:
        end_all(folder, parent)
        shutil.rmtree(folder, ignore_errors=True)
    for weights in MEMORY.glob(f"{PREFIX}{run}-*"):
        shutil.rmtree(weights, ignore_errors=True)


def end_all(folder: Path, spared: int) -> None:
    """Kills every process that writes in `folder`, except `spared`; returns when there is none."""
    quiet = 0
    while quiet < PASSES:
        left = list(writers(folder, spared))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        quiet = 0 if left else quiet + 1
        time.sleep(SECONDS_BETWEEN_PASSES)


def writers(folder: Path, spared: int) -> Iterator[psutil.Process]:
    """Returns this user's processes that have a file under `folder` open for writing, except `spared` and this one."""
    # With the separator: the folder of process 12 must not match that of process 123.
    beginning = f"{folder}{os.sep}"
    for process in psutil.process_iter():
        # A process may end between any two of these checks.
        with contextlib.suppress(psutil.Error):
            is_other = process.pid not in (spared, os.getpid()) and process.uids().real == os.getuid()
            if is_other and process.status() != psutil.STATUS_ZOMBIE:
                files = process.open_files()
                if any(file.path.startswith(beginning) and file.mode != "r" for file in files):
                    yield process


def guard_folder(folder: Path) -> None:
    """Returns to the caller at once; the rest runs in a process without a parent."""
    if os.fork():
        return
    # A new session without the relay's streams: Ray ends processes that still belong to a worker.
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    wait_until_unused(folder)
    shutil.rmtree(folder, ignore_errors=True)


def wait_until_unused(folder: Path) -> None:
    """Returns when no relay has claimed the folder for `UNUSED_SECONDS`, or when the folder is gone."""
    unused_since = time.monotonic()
    while time.monotonic() - unused_since < UNUSED_SECONDS and folder.exists():
        if _is_claimed(folder):
            unused_since = time.monotonic()
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _is_claimed(folder: Path) -> bool:
    try:
        claim = os.open(folder / CLAIM, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # The kernel releases a lock with its process, so a killed relay never seems alive.
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(claim)


def remove_abandoned(memory: Path = MEMORY) -> list[Path]:
    """Removes this user's folders whose run has ended and that no relay claims; returns them.

    The process that a folder is named after may be on another machine, or its number may belong to a new process. In
    the first case a living relay has claimed the folder, in the second the process is younger than the folder.
    """
    abandoned = [folder for folder in memory.glob(f"{PREFIX}*") if _is_abandoned(folder)]
    for folder in abandoned:
        shutil.rmtree(folder, ignore_errors=True)
    return abandoned


def _is_abandoned(folder: Path) -> bool:
    number = folder.name.removeprefix(PREFIX).partition(".")[0]
    try:
        # Not `stat`: a link planted in this place must not lead the removal elsewhere.
        status = folder.lstat()
        if not (stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and number.isdecimal()):
            return False
        if psutil.Process(int(number)).create_time() <= status.st_mtime:
            return False
    except psutil.NoSuchProcess:
        # The run has ended.
        pass
    except (FileNotFoundError, psutil.AccessDenied, OverflowError):
        return False
    return not _is_claimed(folder)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["session", folder, parent, run]:
            guard_session(Path(folder) if folder else None, int(parent), run)
        case ["folder", folder]:
            guard_folder(Path(folder))
