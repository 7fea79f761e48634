"""Ends what Ray leaves behind when the process that used it is gone, even if that was killed.

    python -m stages.engines.distributed.ray_guard FOLDER PARENT RUN        (waits for the end of its standard input)

Ray asks the kernel to end its servers with the process that started them, and its workers end with their raylet; but
its two agents outlived a killed raylet by two minutes, because they first tell a server that is gone as well.
Whatever belongs to a Ray keeps a log open for writing in that Ray's own folder: that is how it is found. FOLDER is
empty for a cluster that others have started. What RUN keeps in this machine's memory is removed last, when nobody
writes it any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from stages.engines.relays.published_weights import MEMORY, PREFIX

PASSES = 3
"""Quiet passes until nothing more is expected: a process may just be starting another."""
SECONDS_BETWEEN = 0.1


def end_all(folder: Path, spared: int) -> None:
    """Kills every process that writes in `folder`, except `spared`; returns when there is none."""
    quiet = 0
    while quiet < PASSES:
        found = list(writers(folder, spared))
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        quiet = 0 if found else quiet + 1
        time.sleep(SECONDS_BETWEEN)


def writers(folder: Path, spared: int) -> Iterator[psutil.Process]:
    """Processes of this user that have a file under `folder` open for writing, but `spared` and this one."""
    beginning = f"{folder}{os.sep}"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_other = process.pid not in (spared, os.getpid()) and process.uids().real == os.getuid()
            if is_other and process.status() != psutil.STATUS_ZOMBIE:
                files = process.open_files()
                if any(file.path.startswith(beginning) and file.mode != "r" for file in files):
                    yield process


def main(folder: Path | None, parent: int, run: str) -> None:
    """Waits, then ends what is left and removes the folders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while sys.stdin.buffer.read(1):
        pass
    if folder is not None:
        end_all(folder, parent)
        shutil.rmtree(folder, ignore_errors=True)
    for weights in MEMORY.glob(f"{PREFIX}{run}-*"):
        shutil.rmtree(weights, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1] else None, int(sys.argv[2]), sys.argv[3])
