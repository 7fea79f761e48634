"""What a stage takes of the machine, looked at from the process that started it."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

SECONDS_BETWEEN_LOOKS = 2.0


@dataclass
class Usage:
    """Wall and CPU seconds of a block, and the largest memory of all child processes together, in bytes."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0

    def told(self) -> str:
        memory = f", {self.peak_bytes / 2**30:.2f} GiB of memory" if self.peak_bytes else ""
        return f"{self.wall_seconds:.1f} s, {self.cpu_seconds:.1f} s of CPU time{memory}."


@contextmanager
def watched() -> Iterator[Usage]:
    """Fills the Usage while the block runs commands. Pages that processes share count for each of them.

    CPU time is that of children that have ended and were waited for, which is all of them when the block has ended
    its commands. Memory that is taken for less than two seconds may be missed.
    """
    usage, started, before = Usage(), time.monotonic(), _cpu_seconds()
    is_over = threading.Event()

    def look() -> None:
        myself = psutil.Process()
        while not is_over.wait(SECONDS_BETWEEN_LOOKS):
            total = 0
            for child in myself.children(recursive=True):
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
