"""The worker's side: a process that limits itself, then answers requests to the end of its input.

It runs as a module with one argument, the settings of `pool.py` as JSON. A request is a JSON line with the arguments of
the function, an answer a JSON line {"value": ...}. Two answers are the last of their process: {"failure":
"out_of_memory"}, since the state of the process is unknown then, and {"refused": ...} with the text of a UserError. Any
other exception ends the process, and the pool repeats its last line on standard error.

The pool limits time, from outside: C code does not react to an alarm. Memory, core dumps, dying with the parent and
the sandbox (`sandbox.py`) are limits that a process must set itself. It imports little: a worker is as small, and
starts as fast, as the function it runs.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from stages.engines.workers.sandbox import confine
from stages.foundations.errors import UserError
from stages.observe.lifetime import die_with_parent

OPEN_FILES = 64
"""Files and pipes that a confined process may have open: a pipe holds 64 KiB of the kernel's memory, which RLIMIT_AS
does not count. Imports open one file at a time."""


def limit(memory_mib: int, may_write_files: bool) -> None:
    """Caps the address space and forbids core dumps; unless writing is allowed, a write to a file raises OSError, and
    `OPEN_FILES` can be open.

    An existing lower limit is never raised.
    """
    limits = {resource.RLIMIT_AS: memory_mib << 20, resource.RLIMIT_CORE: 0}
    if not may_write_files:
        limits |= {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: OPEN_FILES}
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def serve(function: Callable[..., Any], requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers until the input ends or memory is exhausted."""
    answer = b'{"ready": true}\n'
    while True:
        answers.write(answer)
        answers.flush()
        try:
            line = requests.readline()
            if not line:
                return
            answer = json.dumps({"value": function(**json.loads(line))}).encode() + b"\n"
        except MemoryError:
            # Prepared as bytes: without memory `json.dumps` could fail as well.
            answers.write(b'{"failure": "out_of_memory"}\n')
            return


def find(name: str) -> Callable[..., Any]:
    """Returns the function `module.name`."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)


def main(order: str) -> None:
    """Runs `prepare`, if there is one, before it says that it is ready, and `start` before it confines itself."""
    settings = json.loads(order)
    # The answers get a separate descriptor: output that a library prints must not look like an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Ctrl-C reaches the whole group of processes; the parent decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before any slow step: a parent may be killed while its workers still start.
    die_with_parent(settings["parent"])
    if settings["start"]:
        find(settings["start"])()
    limit(settings["memory_mib"], may_write_files=settings["is_trusted"])
    # Before the function is imported: an import may start threads, and only later ones inherit the restrictions.
    if not settings["is_trusted"]:
        confine(settings["code"])
    try:
        if settings["prepare"]:
            find(settings["prepare"])()
        serve(find(settings["function"]), sys.stdin.buffer, answers)
    except UserError as error:
        answers.write(json.dumps({"refused": str(error)}).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
