"""Worker processes that can be killed: a request that hangs, crashes or fills memory costs only itself.

A request's limits do not depend on the machine's other load: its time is processor time. Two events say nothing about
the request: a worker is killed from outside, as by the kernel when memory runs out, or it stalls. The request is then
tried once more, and the second time raises LostWorker. A crash counts only in a fresh process.

Workers are confined (`sandbox.py`): no network, no other processes, no files.

    with WorkerPool(extract_page, processes=2, limits=limits) as pool:
        answers = [pool.submit(page=page, max_answer_characters=40) for page in pages]

Works in any thread of any process, including Ray's. Each worker is started and watched by a thread that lives as long
as the pool. The reason: the kernel sends its "die with the parent" signal already when the starting *thread* ends. That
thread keeps the time, kills a worker that has computed too long, and starts another in its place.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from stages.foundations.code_guard import guard_environment
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.observe.progress import say

WORKER = "stages.engines.workers.worker"
START_SECONDS = 300.0
"""Loading a library takes half a second; this is for busy machines and cold network disks."""
PATIENCE = 20.0
"""Ratio of wall clock to computing time at which a worker counts as stalled: stopped, or the machine is overloaded."""
_EXIT_SECONDS = 60.0
"""Wait for the exit code of a worker that has closed its pipe."""
_PIPE_BYTES = 65_536
_CLOSED = "this pool of workers was closed"
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
"""Signals that no request causes: its memory limit is an exception, its time limit is in this process."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH")
"""The only variables of this process that a worker gets, beside PYTHONPATH."""
_SAID_BYTES, _SAID_CHARACTERS = 2_000, 300


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits of one worker, and of one request to it."""

    memory_mib: int
    computing_seconds: float = math.inf
    """Processor seconds that a request may take; the worker's start does not count."""
    is_trusted: bool = False
    """True: not confined. For a function that writes files and does not parse untrusted input itself."""
    is_reused: bool = True
    """False: each request gets a new process."""


@dataclass(frozen=True, slots=True)
class Answer:
    value: Any = None
    """The function's return value, as JSON represents it: a tuple is a list."""
    failure: str = ""
    """Empty if there is a value; else `exhausted` (its computing time), `crashed` or `out_of_memory`."""
    exit_code: int = 0
    """Exit code of a crashed worker, as `subprocess` reports it: a signal is negative."""
    ending: str = ""
    """The same in words, with the last line that the worker wrote to standard error."""


class StartError(RuntimeError):
    """A worker ended, or was killed for being late, before it was ready; the message says how it ended."""


class LostWorker(UserError):
    """Two workers in a row were killed from outside, or stalled, while they computed one request."""


class WorkerPool:
    """Workers of one function. Thread safe; a context manager; `close` ends the workers.

    The first requests start the processes. `function` and `prepare` are functions of modules that the worker imports
    by name; their arguments and values are JSON. `prepare` runs once in each worker, before its first request.
    `environment` is added to the few variables that a worker gets, and `readable` are folders that it may read.
    `start` runs once in each worker before it confines itself, for instance to start another process.
    `python` may be the interpreter of another virtual environment that has what the functions import.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        processes: int,
        limits: WorkerLimits,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        readable: Sequence[Path] = (),
        start: Callable[[], None] | None = None,
        python: str = sys.executable,
    ) -> None:
        order = {
            "parent": os.getpid(),
            "function": _name(function),
            "prepare": _name(prepare) if prepare else "",
            "start": _name(start) if start else "",
            "memory_mib": limits.memory_mib,
            "is_trusted": limits.is_trusted,
            "code": [*(_folder(one) for one in (function, prepare) if one), *map(str, readable)],
        }
        # -s, -P, -B: no user packages, none from the working folder, no byte code written.
        command = [python, "-s", "-P", "-B", "-m", WORKER, json.dumps(order)]
        path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        passed = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment = {**passed, **(environment or {}), **guard_environment(), "PYTHONPATH": path}
        self._workers = [_Worker(command, environment, limits) for _ in range(processes)]
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], Future[Answer]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def submit(self, **arguments: Any) -> Future[Answer]:
        """Returns the future answer. It raises StartError when no worker can be started, and LostWorker when two were
        killed from outside or stalled. It raises UserError where a worker raised one, and RuntimeError after
        `close`."""
        answer: Future[Answer] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(_CLOSED)
            self._requests.put((arguments, answer))
            # One more for each request, up to all: a run with a single request starts a single process.
            if len(self._threads) < len(self._workers):
                worker = self._workers[len(self._threads)]
                self._threads.append(threading.Thread(target=self._serve, args=(worker,), daemon=True))
                self._threads[-1].start()
        return answer

    def pids(self) -> list[int]:
        """Process ids of the workers that are running now."""
        return [pid for worker in self._workers if (pid := worker.pid) is not None]

    def close(self) -> None:
        """Kills the workers, busy or not; waiting requests raise RuntimeError."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, []
        # Workers first: their end wakes the threads that wait for an answer. Idle threads need the None.
        for worker in self._workers:
            worker.shut_down()
        for _ in threads:
            self._requests.put(None)
        for thread in threads:
            thread.join()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, worker: _Worker) -> None:
        while (item := self._requests.get()) is not None:
            arguments, answer = item
            # False where the request was cancelled while it waited.
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(worker.ask(arguments))
            except BaseException as error:
                # Passed on to the thread that called, which raises it.
                answer.set_exception(error)
            else:
                worker.prespawn()
        worker.kill()


class _Worker:
    """One process, replaced whenever it has died. Used by one thread; any thread may use `pid` and `shut_down`."""

    def __init__(self, command: list[str], environment: Mapping[str, str], limits: WorkerLimits) -> None:
        self._command, self._environment, self._limits = command, environment, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._answered = 0
        self._is_retired = False
        self._lock = threading.Lock()
        """Prevents a process from starting after `shut_down` has looked for one."""

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def ask(self, arguments: dict[str, Any]) -> Answer:
        """Returns the answer, from the second attempt if the first worker was lost."""
        try:
            return self._attempt(arguments)
        except _Lost as lost:
            say(f"a worker process {lost}: its request is tried once more")
        try:
            return self._attempt(arguments)
        except _Lost as lost:
            raise LostWorker(f"two worker processes in a row were lost, the last one {lost}. {lost.remedy}") from None

    def _attempt(self, arguments: dict[str, Any]) -> Answer:
        """Kills a worker that fails; the next request starts another."""
        process = self._running()
        clock = _Clock(process.pid, self._limits.computing_seconds)
        failure = ""
        try:
            answer = Answer(**self._exchange(process, json.dumps(arguments).encode() + b"\n", clock))
        except TimeoutError:
            failure = "stood still"
        except EOFError:
            failure = "crashed"
        # First, even if there is an answer: on a busy machine this check may run late, and that must not decide.
        if clock.is_computed_up():
            answer = Answer(failure="exhausted")
        elif failure == "stood still":
            self.kill()
            raise _Lost(
                f"stood still ({clock.patience:g} s went by, in which it computed less than "
                f"{self._limits.computing_seconds:g} s)",
                "Run the command again when the machine has less to do",
            )
        elif failure == "crashed":
            answer = self._reap(process)
        if answer.failure or not self._limits.is_reused:
            self.kill()
        # Earlier requests in the same process may be the cause: only a fresh process proves it of this one.
        if answer.failure in ("crashed", "out_of_memory") and self._answered:
            return self._attempt(arguments)
        self._answered += 1
        return answer

    def prespawn(self) -> None:
        """Starts the replacement of a killed process, so that the pool is always at full strength."""
        if self._process is None and self._limits.is_reused and not self._is_retired:
            # The next request tries again, and then raises the error suppressed here.
            with contextlib.suppress(RuntimeError, OSError, UserError, _Lost):
                self._running()

    def shut_down(self) -> None:
        """Kills the process for good: a request in flight ends with RuntimeError."""
        with self._lock:
            self._is_retired = True
            if self._process is not None:
                self._process.kill()

    def kill(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close()  # type: ignore[union-attr]

    def _running(self) -> subprocess.Popen[bytes]:
        """Returns the process, ready for a request; StartError when none can be started."""
        if self._process is not None and self._process.poll() is None and not self._is_retired:
            return self._process
        # A process that ended while idle still holds three pipes.
        self.kill()
        with self._lock:
            if self._is_retired:
                raise RuntimeError(_CLOSED)
            self._answered = 0
            process = self._process = subprocess.Popen(
                self._command,
                # Unbuffered: `poll` sees only data in a pipe, not data in a buffer of Python.
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
            )
        # A worker that reads nothing, or writes nothing, must not block the thread that keeps its time.
        for pipe in (process.stdin, process.stderr):
            os.set_blocking(pipe.fileno(), False)  # type: ignore[union-attr]
        try:
            self._exchange(process, b"", _Clock(process.pid, patience=START_SECONDS))
        except TimeoutError:
            self.kill()
            raise StartError(f"not ready after {START_SECONDS:g} s") from None
        except EOFError:
            raise StartError(self._reap(process).ending) from None
        return process

    def _exchange(self, process: subprocess.Popen[bytes], line: bytes, clock: _Clock) -> dict[str, Any]:
        """Sends a line and reads one. EOFError when the process ends first, TimeoutError when its time is over,
        UserError where it raised one: that is not an answer to the request."""
        into, out, said = (pipe.fileno() for pipe in (process.stdin, process.stdout, process.stderr))  # type: ignore[union-attr]
        # Not `select.select`, which accepts no descriptor above 1,023.
        poll = select.poll()
        poll.register(out, select.POLLIN)
        poll.register(said, select.POLLIN)
        if line:
            poll.register(into, select.POLLOUT)
        # A view, so that a request of megabytes is not copied for each piece. Earlier messages are dropped: they
        # do not explain how this request ends.
        sending, received, self._said = memoryview(line), bytearray(), b""
        while not received.endswith(b"\n"):
            left = clock.seconds_left()
            # Without a limit `left` is infinite, which `poll` does not accept.
            ready = {descriptor for descriptor, _ in poll.poll(1000 * min(60.0, left))}
            if left <= 0 and out not in ready:
                raise TimeoutError
            if into in ready:
                try:
                    sending = sending[os.write(into, sending[:_PIPE_BYTES]) :]
                except BrokenPipeError:
                    # The process has ended; its last message is still to be read.
                    sending = sending[:0]
                if not sending:
                    poll.unregister(into)
            if said in ready and not self._listen(said):
                poll.unregister(said)
            if out in ready:
                chunk = os.read(out, _PIPE_BYTES)
                if not chunk:
                    raise EOFError
                received += chunk
        answer = json.loads(received)
        if "refused" in answer:
            self.kill()
            raise UserError(answer["refused"])
        return answer

    def _listen(self, said: int) -> bool:
        """Keeps the end of the worker's standard error; False when that has ended."""
        try:
            chunk = os.read(said, _PIPE_BYTES)
        except BlockingIOError:
            return True
        self._said = (self._said + chunk)[-_SAID_BYTES:]
        return bool(chunk)

    def _reap(self, process: subprocess.Popen[bytes]) -> Answer:
        """Returns the answer that the end of a process gives, once it has closed its pipe.

        RuntimeError when `shut_down` has ended it, _Lost when something outside this pool has.
        """
        is_killed_here = False
        # The pipe closes a moment before the process has its exit code.
        try:
            process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            is_killed_here = True
            process.kill()
            process.wait()
        self._listen(process.stderr.fileno())  # type: ignore[union-attr]
        self.kill()
        if self._is_retired:
            raise RuntimeError(_CLOSED)
        code = process.returncode
        words = f"signal {-code}" if code < 0 else f"exit code {code}"
        said = self._said.decode(errors="replace").strip().splitlines()
        ending = f"{words}: {said[-1][:_SAID_CHARACTERS]}" if said else words
        if -code in _FROM_OUTSIDE and not is_killed_here:
            raise _Lost(
                f"was killed from outside ({ending})",
                "The kernel does this when memory runs out. Free memory, or use fewer processes, and run the command "
                "again",
            )
        return Answer(failure="crashed", exit_code=code, ending=ending)


class _Lost(Exception):
    """A worker ended in a way that says nothing about its request; states what happened, and the remedy."""

    def __init__(self, happened: str, remedy: str) -> None:
        super().__init__(happened)
        self.remedy = remedy


class _Clock:
    def __init__(self, pid: int, computing_seconds: float = math.inf, patience: float | None = None) -> None:
        self._pid, self._computing_seconds = pid, computing_seconds
        self.patience = PATIENCE * computing_seconds if patience is None else patience
        self._computed = self._computing()
        self._until = time.monotonic() + self.patience

    def seconds_left(self) -> float:
        """Returns the seconds until the next check is useful; 0 when none are left."""
        computing = self._computing_seconds - (self._computing() - self._computed)
        return max(0.0, min(computing, self._until - time.monotonic()))

    def is_computed_up(self) -> bool:
        """True where the request has used up its computing time, independent of the machine's load."""
        return self._computing() - self._computed >= self._computing_seconds

    def _computing(self) -> float:
        """Seconds that the process has computed; 0 where it is gone, since its closed pipe is noticed."""
        if self._computing_seconds == math.inf:
            return 0.0
        try:
            times = psutil.Process(self._pid).cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system


def _folder(function: Callable[..., Any]) -> str:
    """Returns the folder of its module, which the worker imports; "" for a built-in function."""
    return os.path.dirname(getattr(sys.modules[function.__module__], "__file__", ""))


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
