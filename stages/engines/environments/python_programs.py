"""Runs programs of the policy, each in a separate sandbox: `run_program` for the tool `python`.

A worker of environments is confined and can start no process. So before it confines itself it starts a helper (this
module as a program). For each program the helper starts a guest: CPython with the installed packages, in a new
confined process (program_guest.py). Python's random numbers, hashes and addresses are fixed; the clock is not.

Helper and worker exchange JSON lines. A guest has no access to them: the helper reads nothing but its output.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from stages.engines.workers.sandbox import lacking
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.observe.lifetime import die_with_parent

TOO_LONG = "it ran out of time"
OUTPUT_CHARACTERS = 10_000
"""A program that prints more is ended."""
_ERROR_CHARACTERS = 300
PATIENCE = 5.0
"""Ratio of wall clock to computing time after which a program is ended: it sleeps, or waits for itself. A worker counts
as stalled only at a higher ratio."""
_HELPER, _GUEST = "stages.engines.environments.python_programs", "stages.engines.environments.program_guest"
_FIXED_ADDRESSES = 0x0040000
"""ADDR_NO_RANDOMIZE of personality(2): a program that prints an address prints the same one each time."""
_helper: subprocess.Popen[bytes] | None = None


class HelperEnded(BaseException):
    """Ends the worker, which the pool replaces. No Exception, because those count as faults of the episode."""


def check_sandbox() -> None:
    """UserError where this machine cannot confine programs."""
    if missing := lacking():
        raise UserError(
            f"the tool python cannot be used here, because this kernel does not restrict {'; '.join(missing)}: use "
            "Linux 5.13 or newer on x86-64 or aarch64 outside of containers that switch it off"
        )


def start() -> None:
    """Starts the helper of this process. Call it before the process confines itself."""
    global _helper
    command = [sys.executable, "-s", "-P", "-B", "-m", _HELPER, str(os.getpid())]
    path = os.pathsep.join([str(PROJECT), *filter(None, sys.path)])
    _helper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )


def run_program(program: str, seed: int, memory_mib: int, seconds: float) -> tuple[str, bool]:
    """Returns what the program printed, and whether it failed; the last line then begins with `error: `.

    `seconds` are computing time. Nothing of a program that exceeds them is returned, as that would depend on the
    machine's speed. UserError where the sandbox cannot be used.
    """
    if _helper is None:
        start()
    assert _helper is not None and _helper.stdin is not None and _helper.stdout is not None
    request = {"program": program, "seed": seed, "memory_mib": memory_mib, "seconds": seconds}
    _helper.stdin.write(json.dumps(request).encode() + b"\n")
    _helper.stdin.flush()
    line = _helper.stdout.readline()
    if not line:
        raise HelperEnded("the process that starts programs has ended")
    answer = json.loads(line)
    if "refused" in answer:
        raise UserError(answer["refused"])
    return answer["text"], answer["failed"]


# From here on: the helper.


def _main(parent: int) -> None:
    die_with_parent(parent)
    # A descriptor that no guest inherits, so that a library that prints does not break the protocol.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Containers may forbid it; then addresses differ.
    ctypes.CDLL(None).personality(_FIXED_ADDRESSES)
    for line in sys.stdin.buffer:
        try:
            text, failed = _run(**json.loads(line))
            answer = {"text": text, "failed": failed}
        except UserError as error:
            answer = {"refused": str(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _run(program: str, seed: int, memory_mib: int, seconds: float) -> tuple[str, bool]:
    check_sandbox()
    # Half a character, which the text of a policy may contain, becomes a question mark.
    program = program.encode("utf-8", "replace").decode()
    output, error = _run_guest(program, seed, memory_mib, seconds)
    output, error = output.rstrip("\n"), " ".join(error.split())[:_ERROR_CHARACTERS]
    return "\n".join(filter(None, [output, error and f"error: {error}"])), bool(error)


def _run_guest(program: str, seed: int, memory_mib: int, seconds: float) -> tuple[str, str]:
    # Without `site`, which takes as long as the rest of the start; the paths it would add are given.
    command = [sys.executable, "-S", "-s", "-P", "-B", "-m", _GUEST, str(os.getpid()), str(memory_mib), str(seed)]
    environment = {"PYTHONPATH": os.environ["PYTHONPATH"], "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with (
        subprocess.Popen(command, env=environment, cwd="/", **pipes) as process,  # type: ignore[call-overload]
        _ended_after(seconds, process.pid) as is_over,
    ):
        with suppress(BrokenPipeError):
            process.stdin.write(program.encode())
            process.stdin.close()
        # Reads to the end, but never more than this.
        output = process.stdout.read(4 * OUTPUT_CHARACTERS + 1).decode("utf-8", "replace")
        if len(output) > OUTPUT_CHARACTERS:
            process.kill()
        code = process.wait()
    if is_over():
        return "", TOO_LONG
    if len(output) > OUTPUT_CHARACTERS:
        return output[:OUTPUT_CHARACTERS], _TOO_MUCH
    output, has_raised, line = output.partition("\0") if code == 1 else (output, "", "")
    if has_raised:
        return output, line
    return output, "" if code == 0 else f"exit code {code}" if code > 0 else f"signal {-code}"


_TOO_MUCH = f"it printed more than {OUTPUT_CHARACTERS:,} characters"


@contextmanager
def _ended_after(seconds: float, pid: int) -> Iterator[Any]:
    """Kills the process when it has computed for `seconds`, or waited long; gives a function that says whether."""
    process, is_done, is_over = psutil.Process(pid), threading.Event(), threading.Event()
    until = time.monotonic() + PATIENCE * seconds

    def computed() -> float:
        times = process.cpu_times()
        return times.user + times.system

    def watch() -> None:
        with suppress(psutil.NoSuchProcess):
            while not is_done.wait(min(0.05, seconds / 4)):
                if computed() - before >= seconds or time.monotonic() > until:
                    is_over.set()
                    process.kill()
                    return

    before = computed()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield is_over.is_set
    finally:
        is_done.set()
        thread.join()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
