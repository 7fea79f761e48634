"""Runs a command and leaves none of its processes behind, even if such a process has changed its session or parent.

    python pipelines/runtime/supervisor.py STARTER COMMAND [ARGUMENT...]

vLLM's engine, Ray's daemons and torchrun's workers start new sessions, so a signal to the command's group does not
reach them. When their parent dies, init would adopt them. The supervisor is a "child subreaper" (prctl(2)): every
process below it whose parent dies becomes its child. So all processes below it are the family of the command. The
supervisor ends the family when the command has ended, when it gets a signal to end, and when its starter (the process
with the id STARTER) dies. That includes a death before Python has loaded this file. Linux only; elsewhere the command
is run and its group is ended. Standard library only, and no import of this project: it is started by its path, from any
folder and with any version of the project.

Exit code: the command's, 128 + n when signal n ended the command, 143 when the supervisor got a signal to end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

SECONDS_TO_END = 3.0
"""Between the first signal and SIGKILL; a process that ends a supervisor waits longer than this."""
SECONDS_TO_KILL = 2.0
SECONDS_BETWEEN_LOOKS = 1.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(starter: int, command: list[str]) -> int:
    """Runs `command` to its end or the supervisor's; returns the exit code of the table above."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # Blocked signals wait for `sigtimedwait`, so none is lost between two checks.
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING, signal.SIGCHLD})
    # The parent may have died before the signal above was requested.
    if os.getppid() != starter:
        return 128 + signal.SIGTERM
    pid = start(command)
    code = None
    while code is None:
        got = signal.sigtimedwait({*ENDING, signal.SIGCHLD}, SECONDS_BETWEEN_LOOKS)
        if (got is not None and got.si_signo in ENDING) or os.getppid() != starter:
            code = 128 + signal.SIGTERM
        else:
            code = reap().get(pid)
    end_family()
    return code


def start(command: list[str]) -> int:
    """Starts the command in a new session, so that it is killed with the supervisor; returns its process id."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*ENDING, signal.SIGCHLD})
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        # The family does not inherit the supervisor's descriptors, such as locks: those end with the supervisor.
        os.closerange(3, 4096)
        # Otherwise the supervisor died before the line above requested the signal.
        if os.getppid() == supervisor:
            os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)


def reap() -> dict[int, int]:
    """Collects the ended children from the kernel; returns their exit codes by process id."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended[pid] = code if code >= 0 else 128 - code


def end_family() -> None:
    """Signals every process below to end, kills the remaining ones, and returns when none is (or cannot be) left."""
    for number, seconds in ((signal.SIGTERM, SECONDS_TO_END), (signal.SIGKILL, SECONDS_TO_KILL)):
        until, asked = time.monotonic() + seconds, set()
        while family := descendants(os.getpid()):
            if number == signal.SIGKILL:
                # Repeatedly: for processes started meanwhile, and for a stopped process that has not received it yet.
                asked.clear()
            for pid in family - asked:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
                    # A stopped process accepts only SIGKILL until it continues.
                    os.kill(pid, signal.SIGCONT)
            asked |= family
            if time.monotonic() > until:
                break
            time.sleep(0.02)
            reap()
    # The processes that were dead at the last check.
    reap()


def descendants(root: int) -> set[int]:
    """Returns ids of all living processes below `root`, without zombies."""
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if entry.name.isdecimal():
            try:
                # The name in brackets may contain spaces and brackets itself, so read after the last bracket.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                # It has ended since it was listed.
                continue
            children.setdefault(int(parent), []).append(int(entry.name))
            if state in "ZX":
                dead.add(int(entry.name))
    found, pending = set(), [root]
    while pending:
        below = children.get(pending.pop(), [])
        found.update(below)
        pending += below
    return found - dead


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.exit("usage: supervisor.py STARTER COMMAND [ARGUMENT...]")
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
