"""Pages read in processes that can be killed: a page that hangs, crashes or fills its process costs only itself.

Works in any thread of any process, in Ray's too: this process holds the clock, and kills the worker that is late.
A worker is started by the thread that asks first, and that thread must live as long as the worker does: the kernel's
"die with the parent" (PR_SET_PDEATHSIG) is sent when the starting thread ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stages.extract_web.extraction import Outcome
from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT

START_SECONDS = 120.0
"""Loading the parsers takes half a second; this is for machines that are busy with something else."""
PIPE_BYTES = 65_536
WORKER = "stages.extract_web.page_worker"


@dataclass(frozen=True, slots=True)
class PageLimits:
    """What holds for one page: see `ExtractWebParams`."""

    max_answer_characters: int
    seconds: float
    memory_mib: int


def read_pages(pages: Sequence[Mapping[str, str]], limits: PageLimits, processes: int) -> Iterator[Outcome]:
    """The outcome of each page, in order, from that many processes at once."""
    processes = min(processes, len(pages))
    readers: queue.SimpleQueue[PageReader] = queue.SimpleQueue()
    for _ in range(processes):
        readers.put(PageReader(limits))

    def read(page: Mapping[str, str]) -> Outcome:
        reader = readers.get()
        try:
            return reader.read(page)
        finally:
            readers.put(reader)

    try:
        if processes < 2:
            yield from map(read, pages)
            return
        with ThreadPoolExecutor(processes, "page-reader") as pool:
            yield from pool.map(read, pages)
    finally:
        for _ in range(processes):
            readers.get().close()


class PageReader:
    """One process that reads pages, started when first needed and replaced when it was killed."""

    def __init__(self, limits: PageLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, page: Mapping[str, str]) -> Outcome:
        """As `extract_page`, with the reasons `timed_out`, `crashed` and `out_of_memory` besides."""
        request = {"page": dict(page), "max_answer_characters": self._limits.max_answer_characters}
        process = self._running()
        answer, is_late = _ask(process, json.dumps(request).encode() + b"\n", self._limits.seconds)
        if is_late:
            self.close()
            return [], "timed_out", f"took more than {self._limits.seconds:g} s"
        if not answer:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(START_SECONDS)
            return [], "crashed", f"its process ended with {ending(self.close())}"
        found, reason, detail = json.loads(answer)
        if reason == "out_of_memory":  # what that left behind is unknown
            self.close()
        return found, reason, detail

    def close(self) -> int:
        """Ends the process; its exit code, 0 when there was none."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what a dead process has not read
                pipe.close()  # type: ignore[union-attr]
        return process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        """RuntimeError when no process can be started."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-B", "-P", "-m", WORKER, str(os.getpid()), str(self._limits.memory_mib)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(),
            )
            os.set_blocking(self._process.stdin.fileno(), False)  # type: ignore[union-attr]
            greeting, _ = _ask(self._process, b"", START_SECONDS)
            if not greeting:
                raise UserError(
                    f"extract_web: a process that reads pages could not start ({ending(self.close())}): "
                    f"give it memory, extract_web.page_memory_mib is {self._limits.memory_mib}"
                )
        return self._process


def environment() -> dict[str, str]:
    """For a process of this package, wherever it is started: it finds the project, and libraries start no threads.

    Every thread reserves address space, and there is a process for each core already.
    """
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS")
    return {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONPATH": path}


def ending(code: int) -> str:
    """How a process ended, by its exit code as `subprocess` has it."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _ask(process: subprocess.Popen[bytes], request: bytes, seconds: float) -> tuple[bytes, bool]:
    """The line it answers, empty when it ended, and whether it was killed for taking longer than `seconds`."""
    deadline, answer = time.monotonic() + seconds, bytearray()
    into, out = process.stdin.fileno(), process.stdout.fileno()  # type: ignore[union-attr]
    sending = memoryview(request)
    while not answer.endswith(b"\n"):
        left = max(0.0, deadline - time.monotonic())
        readable, writable, _ = select.select([out], [into] if sending else [], [], left)
        if not readable and not writable:
            process.kill()
            return b"", True
        try:
            if writable:
                sending = sending[os.write(into, sending[:PIPE_BYTES]) :]
        except BrokenPipeError:
            return b"", False
        chunk = os.read(out, PIPE_BYTES) if readable else b""
        if readable and not chunk:
            return b"", False
        answer += chunk
    return bytes(answer), False
