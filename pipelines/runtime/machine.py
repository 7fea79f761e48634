"""A stage's share of this machine: GPUs that no other stage uses, and the time and memory that it used.

A GPU has a lock file. The locks belong to the user, not to a clone: two clones on one machine share its GPUs. Prefect's
concurrency limit `gpu` queues the tasks that can see each other; its slots leak after a hard kill and can be lost while
their owner runs. The lock decides: the kernel releases it when no process of the stage is left.

Usage is measured from the process that started the stage (`watched`).
"""

from __future__ import annotations

import os
import resource
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from pipelines.runtime.locks import try_lock, wait_for
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT, list_gpus

LIMIT = "gpu"
"""Name of the concurrency limit in Prefect."""


@dataclass(frozen=True)
class Slots:
    """The GPUs that a stage may use, and the descriptors of their locks."""

    gpus: tuple[str, ...]
    held: tuple[int, ...]


def visible_gpus() -> list[str]:
    """Returns numbers of this machine's GPUs: $RETRACE_GPUS, else $CUDA_VISIBLE_DEVICES, else /dev/nvidia0, 1, ..."""
    return list_gpus("RETRACE_GPUS", "CUDA_VISIBLE_DEVICES")


def lock_folder() -> Path:
    """Returns this user's folder of locks, the same for every clone: `retrace-<uid>` in the folder for temporary files.

    `$XDG_RUNTIME_DIR` does not work: services, containers and cron have none, and a logout removes it.
    """
    return Path(tempfile.gettempdir()) / f"retrace-{os.getuid()}"


@contextmanager
def gpu_slots(wanted: int, locks: Path, say: Callable[[str], None]) -> Iterator[Slots]:
    """Waits until `wanted` GPUs are free, says so while it waits, and locks them.

    Without a GPU on the machine, or with none wanted, nothing is locked. UserError when there are fewer GPUs than
    wanted (but some), and when the folder of the locks belongs to another user.
    """
    gpus = visible_gpus()
    if not wanted or not gpus:
        yield Slots((), ())
        return
    if wanted > len(gpus):
        raise UserError(
            f"{wanted} GPUs are wanted (launch.gpus_per_node), and this machine shows {len(gpus)} ({', '.join(gpus)}): "
            "lower it, or run on another work pool"
        )
    _make_private(locks)
    held = _wait(wanted, gpus, locks, say)
    try:
        yield Slots(tuple(held), tuple(lock.fileno() for lock in held.values()))
    finally:
        for lock in held.values():
            # Not LOCK_UN: the supervisor of a stage that is still ending holds the lock too.
            lock.close()


def _make_private(folder: Path) -> None:
    """Creates the folder for this user alone: every user can create files in the folder for temporary files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UserError(
            f"{folder}, which holds the locks of this user's GPUs, is a link or belongs to another user: remove it, "
            "or name another folder for temporary files (TMPDIR)"
        )


def _wait(wanted: int, gpus: Sequence[str], locks: Path, say: Callable[[str], None]) -> dict[str, IO[str]]:
    held: dict[str, IO[str]] = {}
    busy: list[str] = []

    def takes_all() -> bool:
        busy.clear()
        for gpu in gpus:
            if len(held) == wanted:
                break
            if lock := _try(_file(locks, gpu)):
                held[gpu] = lock
            else:
                busy.append(gpu)
        if len(held) == wanted:
            return True
        # All or none: two flows that each hold half of the GPUs they need would wait for ever.
        for lock in held.values():
            lock.close()
        held.clear()
        return False

    wait_for(takes_all, say, lambda: f"waiting for {wanted} of the GPUs {', '.join(gpus)}; {_holders(busy, locks)}")
    return held


def _try(path: Path) -> IO[str] | None:
    lock = open(path, "a+")  # noqa: SIM115 (closed by the caller)
    # If the link is gone, a cleaner of temporary files has just removed it: the next process would lock another file.
    if not try_lock(lock) or not os.fstat(lock.fileno()).st_nlink:
        lock.close()
        return None
    lock.truncate(0)
    lock.write(f"{os.getpid()} of {PROJECT}")
    lock.flush()
    return lock


def _holders(gpus: Sequence[str], locks: Path) -> str:
    holders = [f"{gpu} is held by process {holder}" for gpu in gpus if (holder := _read(_file(locks, gpu)))]
    return ", ".join(holders) or "another flow is about to take them"


def _file(locks: Path, gpu: str) -> Path:
    # The name of a part of a GPU (MIG) may have slashes.
    return locks / f"gpu-{gpu.replace('/', '-')}.lock"


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


SECONDS_BETWEEN_LOOKS = 2.0


@dataclass
class Usage:
    """Wall and CPU seconds of a block, and the largest memory of all child processes together, in bytes."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0

    def in_words(self) -> str:
        memory = f", {self.peak_bytes / 2**30:.2f} GiB of memory" if self.peak_bytes else ""
        return f"{self.wall_seconds:.1f} s, {self.cpu_seconds:.1f} s of CPU time{memory}."


@contextmanager
def watched() -> Iterator[Usage]:
    """Fills the Usage while the block runs commands. Shared memory pages count for each process.

    CPU time covers children that have ended and were waited for: all of them, once the block has ended its commands.
    Memory that is used for less than two seconds may be missed.
    """
    usage, started, before = Usage(), time.monotonic(), _cpu_seconds()
    is_over = threading.Event()

    def look() -> None:
        myself = psutil.Process()
        while not is_over.wait(SECONDS_BETWEEN_LOOKS):
            total = 0
            for child in myself.children(recursive=True):
                # The child has ended since it was listed.
                with suppress(psutil.Error):
                    total += child.memory_info().rss
            usage.peak_bytes = max(usage.peak_bytes, total)

    watcher = threading.Thread(target=look, name="usage", daemon=True)
    watcher.start()
    try:
        yield usage
    finally:
        is_over.set()
        watcher.join()
        usage.wall_seconds = time.monotonic() - started
        usage.cpu_seconds = _cpu_seconds() - before


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
