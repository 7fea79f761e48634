r"""The verifier: a fast exact path in this process, and math-verify 0.9 in processes that can be killed.

Model output is hostile. `9^(9^(9^9))` hangs a computer algebra system inside C code, where no exception reaches it, so
nothing of it is parsed here: what the exact path cannot settle goes to a worker process, with a wall clock that this
process enforces from whatever thread asks, and a memory limit. A worker that overruns is killed and replaced; its
item is `timed_out` or `crashed`, and no other item notices.

Workers start with the first item that needs one, so that a run whose answers are plain numbers never pays for them.
Each worker is started and watched by a thread that lives as long as the pool: the kernel's "die with the parent"
signal (PR_SET_PDEATHSIG) is sent when the starting *thread* ends, not only when its process does.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path

import psutil

from stages.algorithms.answers.decisions import Question, decide
from stages.algorithms.answers.extraction import Extraction, extract_answer
from stages.algorithms.answers.verdicts import Verdict
from stages.engines.verifier import math_verify_worker as verifier_worker
from stages.engines.verifier.judgement import Judgement
from stages.engines.verifier.params import VerifierParams

_WORKER = Path(verifier_worker.__file__)
"""Run as a script; imported so that the code fingerprint of every stage that verifies covers it."""
_START_SECONDS = 120.0
"""Importing sympy takes half a second; this is for machines that are busy with something else."""


_PATIENCE = 8.0
"""Wall clock over computing time that a comparison may take: a busy machine must not turn verdicts."""


_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""All that a worker gets to see of the environment."""


class Verifier:
    """Judges responses against gold answers. Thread safe; a context manager, `close` ends the workers."""

    def __init__(self, params: VerifierParams) -> None:
        self._params = params
        self._pool: _WorkerPool | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def judge(
        self,
        pairs: Sequence[tuple[str, str]],
        truncated: Sequence[bool] | None = None,
        require_marker: bool = False,
        tolerances: Sequence[Fraction | None] | None = None,
    ) -> list[Judgement]:
        r"""One judgement for each (gold answer, response or bare answer), in order.

        `truncated` marks responses that a token limit cut off: in those only a closed box counts, since the number
        behind another marker may be half of one. `require_marker` refuses a response without box or marker unless it
        is as a whole what the exact path calls equal or different; rewards want it, because math-verify would take
        the last number of a sentence. `tolerances`: by pair, how far apart two numbers may be and agree, absolutely;
        None for the precision rule (`stages/algorithms/answers/values.py`). Raises RuntimeError when math-verify
        cannot be started.
        """
        judgements: list[Judgement | None] = [None] * len(pairs)
        waiting: dict[Question, Future[tuple[Verdict, str]]] = {}
        asked: list[tuple[int, Question, str]] = []
        for index, (gold, response) in enumerate(pairs):
            found = _found(response, truncated is not None and truncated[index])
            tolerance = None if tolerances is None else tolerances[index]
            outcome = decide(gold, found, require_marker, tolerance)
            if isinstance(outcome, Question):
                if outcome not in waiting:
                    waiting[outcome] = self._workers().ask(outcome)
                asked.append((index, outcome, found.text or ""))
            else:
                judgements[index] = Judgement(
                    outcome.verdict, outcome.extracted, outcome.path, outcome.reason
                )
        for index, question, extracted in asked:
            verdict, reason = waiting[question].result()
            judgements[index] = Judgement(verdict, extracted, "math_verify", reason)
        return [judgement for judgement in judgements if judgement is not None]

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that are running now."""
        return self._pool.pids() if self._pool else []

    def close(self) -> None:
        """Ends the workers; comparisons that are still waiting fail with RuntimeError."""
        with self._lock:
            self._is_closed = True
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _workers(self) -> _WorkerPool:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this verifier is closed")
            if self._pool is None:
                self._pool = _WorkerPool(self._params)
            return self._pool


def _found(response: str, is_truncated: bool) -> Extraction:
    found = extract_answer(response)
    if is_truncated and found.text is not None and not found.rule.startswith("box"):
        return Extraction(None, "truncated")
    return found


class _WorkerPool:
    """Threads that each own one worker process and take questions from a common queue."""

    def __init__(self, params: VerifierParams) -> None:
        self._params = params
        self._questions: queue.SimpleQueue[tuple[Question, Future[tuple[Verdict, str]]] | None] = (
            queue.SimpleQueue()
        )
        self._workers = [_Worker(params) for _ in range(params.workers)]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def ask(self, question: Question) -> Future[tuple[Verdict, str]]:
        """Queues a question; starts one more thread as long as there are fewer than workers."""
        answer: Future[tuple[Verdict, str]] = Future()
        self._questions.put((question, answer))
        with self._lock:
            if len(self._threads) < len(self._workers):
                worker = self._workers[len(self._threads)]
                name = f"verifier-{len(self._threads)}"
                self._threads.append(
                    threading.Thread(target=self._serve, args=(worker,), name=name, daemon=True)
                )
                self._threads[-1].start()
        return answer

    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def close(self) -> None:
        """Ends the threads and kills their workers, busy or not."""
        for worker in self._workers:
            worker.retire()
        for _ in self._threads:
            self._questions.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, worker: _Worker) -> None:
        while (item := self._questions.get()) is not None:
            question, answer = item
            try:
                answer.set_result(worker.compare(question))
            except BaseException as error:  # handed to the thread that asked, which raises it
                answer.set_exception(error)
            worker.stand_by()
        worker.kill()


class _Worker:
    """One math-verify process, replaced whenever it is found dead. Used by one thread; `retire` by any."""

    def __init__(self, params: VerifierParams) -> None:
        self._params = params
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._is_retired = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def compare(self, question: Question) -> tuple[Verdict, str]:
        """Verdict and reason; a worker that overruns or dies is killed, and the next comparison starts another."""
        process = self._running()
        message = {"gold": question.gold, "prediction": question.prediction}
        line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        clock = _Clock(process.pid, self._params.timeout_seconds)
        try:
            self._send(process, line, clock)
            answer = self._receive(process, clock)
        except TimeoutError:
            self.kill()
            return Verdict.TIMED_OUT, f"over_{self._params.timeout_seconds:g}_seconds"
        except (EOFError, BrokenPipeError):
            self.kill()
            if self._is_retired:
                raise RuntimeError("the verifier was closed while it compared") from None
            return Verdict.CRASHED, f"worker_exit_{process.returncode}"
        if answer["verdict"] == Verdict.CRASHED:
            self.kill()
        return Verdict(answer["verdict"]), answer["reason"]

    def stand_by(self) -> None:
        """Starts the process that takes the place of a killed one, so that the pool is always at full strength."""
        if self._process is None and not self._is_retired:
            with contextlib.suppress(RuntimeError):  # whoever asks next is told
                self._running()

    def retire(self) -> None:
        """Kills the process for good: a comparison in flight ends with RuntimeError."""
        self._is_retired = True
        process = self._process
        if process is not None:
            process.kill()

    def kill(self) -> None:
        """Kills the process and forgets it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                pipe.close()  # type: ignore[union-attr]
        self._process, self._received = None, b""

    def _running(self) -> subprocess.Popen[bytes]:
        if self._is_retired:
            raise RuntimeError("this verifier is closed")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.kill()
        command = [
            sys.executable,
            "-s",
            "-P",
            "-B",
            str(_WORKER),
            str(os.getpid()),
            str(self._params.memory_mib),
        ]
        environment = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT}
        environment["PYTHONHASHSEED"] = "0"  # sympy's simplify depends on the order of sets
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        os.set_blocking(process.stdin.fileno(), False)  # type: ignore[union-attr]
        self._process = process
        try:
            greeting = self._receive(process, _Clock(process.pid, _START_SECONDS))
        except (EOFError, TimeoutError) as error:
            greeting = {"ready": False, "error": f"{type(error).__name__} before it was ready"}
        if not greeting["ready"]:
            self.kill()
            raise RuntimeError(
                f"math-verify could not be started: {greeting['error']}. Install math-verify[antlr4_9_3]==0.9.0, "
                f"and give it memory (verifier.memory_mib is {self._params.memory_mib})"
            )
        return process

    def _send(self, process: subprocess.Popen[bytes], line: bytes, clock: _Clock) -> None:
        descriptor = process.stdin.fileno()  # type: ignore[union-attr]
        while line:
            while not select.select([], [descriptor], [], clock.seconds_left())[1]:
                clock.require_time()
            line = line[os.write(descriptor, line[:4096]) :]

    def _receive(self, process: subprocess.Popen[bytes], clock: _Clock) -> dict[str, str]:
        descriptor = process.stdout.fileno()  # type: ignore[union-attr]
        while b"\n" not in self._received:
            while not select.select([descriptor], [], [], clock.seconds_left())[0]:
                clock.require_time()
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise EOFError
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)


class _Clock:
    """What a worker may still take: computing time, so that a verdict does not depend on what else the machine does,
    and a bounded multiple of it on the wall."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid, self._seconds = pid, seconds
        self._computed = self._computing()
        self._until = time.monotonic() + _PATIENCE * seconds

    def seconds_left(self) -> float:
        """The time after which it is worth looking again; 0 when none is left."""
        left = min(self._seconds - (self._computing() - self._computed), self._until - time.monotonic())
        return max(0.0, left)

    def require_time(self) -> None:
        """TimeoutError when none is left."""
        if self.seconds_left() <= 0:
            raise TimeoutError

    def _computing(self) -> float:
        """Seconds that the process has computed; a process that is gone has its pipe closed, which is seen there."""
        try:
            times = psutil.Process(self._pid).cpu_times()
        except psutil.Error:
            return 0.0
        return times.user + times.system
