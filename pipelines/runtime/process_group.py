"""A command that ends, with every process it started, when the calling process ends.

A terminated `dvc repro` leaves its stage running (init adopts it and it continues to write), and Prefect's
timeout and cancel do not reach a subprocess at all. So each command runs under a supervisor
(supervisor.py) in a separate group, with a time limit, and the supervisor is ended however the block is left.
If this process is killed outright, the supervisor ends the family by itself.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SUPERVISOR = Path(__file__).with_name("supervisor.py")
LOGINS = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING")
SECONDS_TO_END = 6.0
"""Longer than a supervisor needs to end its family (supervisor.py)."""


class TimedOut(Exception):
    """The command exceeded its time limit."""


class FellSilent(TimedOut):
    """The command printed nothing for longer than allowed."""


def run_in_group(
    command: Sequence[str | Path],
    folder: Path,
    on_line: Callable[[str], None] | None = None,
    timeout_seconds: float | None = None,
    env: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
    silent_seconds: float | None = None,
) -> int:
    """Runs `command` in `folder` and returns its exit code; 128 + n where signal n ended it.

    With `on_line` each line of its output (including standard error) is passed on at once, in this thread. Without it,
    the command writes to the streams of this process. `env` replaces `environment()`. `held` are file descriptors, such
    as locks, that stay open until no process of the command is left, even when this process is killed. Raises TimedOut,
    and with `on_line` FellSilent when two lines are more than `silent_seconds` apart; after any exception no process of
    the command is left.
    """
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if on_line else {}
    process = subprocess.Popen(
        supervised(command),
        cwd=folder,
        text=True,
        errors="replace",
        env=env or environment(),
        # A separate group: `end_groups` can signal it, and a Ctrl-C at the terminal reaches only this process.
        start_new_session=True,
        pass_fds=held,
        **output,
    )
    deadline = time.monotonic() + timeout_seconds if timeout_seconds else float("inf")
    try:
        if on_line:
            for line in _lines(process, deadline, silent_seconds or float("inf")):
                on_line(line)
        return process.wait(None if deadline == float("inf") else max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise TimedOut(f"stopped after {timeout_seconds:.0f} s: {' '.join(map(str, command))}") from error
    finally:
        end_groups([process])


def supervised(command: Sequence[str | Path]) -> list[str]:
    """Runs the command under a supervisor that ends with this process; a command that has one gets no second."""
    words = [str(word) for word in command]
    supervisor = [sys.executable, "-S", "-E", str(SUPERVISOR)]
    # The inner one of two would end at once: its parent is the other supervisor, its STARTER is this process.
    if words[: len(supervisor)] == supervisor:
        words = words[len(supervisor) + 1 :]
    return [*supervisor, str(os.getpid()), *words]


def dvc(*arguments: str) -> list[str]:
    """Returns DVC's command line in this interpreter's environment. It waits for another DVC instead of failing."""
    return supervised([sys.executable, "-m", "dvc", "--wait-for-lock", *arguments])


def environment() -> Mapping[str, str]:
    """Returns this process's environment with the interpreter's folder first on PATH: stages run as `python -m ...`.

    Without the login of Prefect's server: no stage needs it, and stages read hostile pages and model output.
    """
    here = os.path.dirname(sys.executable)
    return {
        **{name: value for name, value in os.environ.items() if name not in LOGINS},
        "PATH": os.pathsep.join([here, os.environ.get("PATH", "")]),
        # A stage's lines go through a pipe, which Python would otherwise buffer in blocks.
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, so that `finally` blocks run. Main thread only.

    So does SIGINT, which a shell makes its background commands ignore.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {name: signal.signal(name, interrupt) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _lines(process: subprocess.Popen[str], deadline: float, silent_seconds: float) -> Iterator[str]:
    """Yields lines as they come. Can be interrupted, and ends at `deadline` (monotonic seconds) or in silence."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    heard = time.monotonic()
    while True:
        until = min(deadline, heard + silent_seconds)
        try:
            # At most a second: without limits `until` is infinity, which no wait accepts.
            line = lines.get(timeout=min(1.0, max(0.01, until - time.monotonic())))
        except queue.Empty:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(process.args, deadline) from None
            if time.monotonic() >= until:
                raise FellSilent(f"stopped after {silent_seconds:.0f} s of silence") from None
            continue
        if line is None:
            return
        yield line
        heard = time.monotonic()


def end_groups(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Signals the groups to end, kills the remaining processes after some seconds, and returns when none is left."""
    # All groups are signalled first and waited for together: several servers end in the time of one.
    for number, seconds in ((signal.SIGTERM, SECONDS_TO_END), (signal.SIGKILL, 2.0)):
        left = [process for process in processes if _signal_group(process, number)]
        until = time.monotonic() + seconds
        while left and time.monotonic() < until:
            for process in left:
                process.poll()
            time.sleep(0.02)
            left = [process for process in left if _signal_group(process, 0)]
    for process in processes:
        process.wait()


def _signal_group(process: subprocess.Popen[str], number: int) -> bool:
    """Returns False when no process of the group is left."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
