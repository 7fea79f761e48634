"""Waiting for other processes, in one place: separate copies each had a different race and a different timeout.

The timeout is long: on two cores next to three other test workers, a process may run late. Tests never read only once
what another process writes or a server records: Prefect records how tasks ended seconds after their flow.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import psutil

PATIENCE_SECONDS = 240.0


def is_running(process: int | psutil.Process) -> bool:
    """Returns False for a process that has ended, even if its parent has not collected it yet."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(
    condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS, told: object = "waited in vain"
) -> None:
    """Returns once `condition()` holds; AssertionError with `told` after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, told
        time.sleep(0.05)


def assert_becomes(read: Callable[[], Any], expected: Any, seconds: float = PATIENCE_SECONDS) -> None:
    """Returns once `read()` gives `expected`; AssertionError with both values after `seconds`."""
    until = time.monotonic() + seconds
    while (found := read()) != expected:
        assert time.monotonic() < until, f"{found!r} has not become {expected!r}"
        time.sleep(0.05)


def assert_all_end(processes: Iterable[int | psutil.Process]) -> None:
    """Waits until none of them runs. A process id is less safe than a `psutil.Process`, because ids are reused."""
    processes = list(processes)
    wait_until(lambda: not any(map(is_running, processes)), told=f"one of {processes} is still there")


def those_with(condition: Callable[[psutil.Process], Any], processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Returns running processes for which `condition` holds; one that ends during the check raises no error."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if is_running(process) and condition(process):
                found.append(process)
    return found


def descendants(said: str, pid: int | None = None) -> list[psutil.Process]:
    """Returns all descendants of a process (None: this one) whose command line contains `said`."""
    family = psutil.Process(pid).children(recursive=True)
    return those_with(lambda process: said in " ".join(process.cmdline()), family)
