"""The verifier: a fast exact path in this process, and math-verify 0.9 in workers that can be killed.

Model output is hostile. `9^(9^(9^9))` hangs a computer algebra system inside C code, where no exception reaches it, so
nothing of it is parsed here: what the exact path cannot settle goes to a pool of workers with limits of time and
memory (`stages/engines/workers`). An item that uses them up is `exhausted`, one whose worker fails by itself `crashed`,
and no other item notices.

Workers start with the first item that needs one, so that a run whose answers are plain numbers never pays for them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from stages.algorithms.answers.decisions import Question, decide
from stages.algorithms.answers.extraction import Extraction, extract_answer
from stages.algorithms.answers.verdicts import STRICT, Leniency, Verdict
from stages.engines.verifier.math_verify_worker import compare, prepare
from stages.engines.verifier.params import VerifierParams
from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool


class Verifier:
    """Judges responses against gold answers. Thread safe; a context manager, `close` ends the workers."""

    def __init__(self, params: VerifierParams) -> None:
        self._params = params
        self._pool = WorkerPool(
            compare,
            max(1, params.workers // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))),  # of this node's ranks each
            WorkerLimits(params.memory_mib, params.timeout_seconds),
            {"PYTHONHASHSEED": "0"},  # sympy's simplify depends on the order of sets
            prepare,
        )

    def judge(
        self,
        pairs: Sequence[tuple[str, str]],
        truncated: Sequence[bool] | None = None,
        require_marker: bool = False,
        allowed: Sequence[Leniency] | None = None,
    ) -> list[Judgement]:
        r"""One judgement for each (gold answer, response or bare answer), in order.

        `truncated` marks responses that a token limit cut off: in those only a closed box or tag counts, since the
        number behind another marker may be half of one. `require_marker` refuses a response without box, tag or marker
        unless it is as a whole what the exact path calls equal or different, or names one choice; rewards want it.
        `allowed`: by pair, what its row allows beyond the rules; None for nothing. Raises RuntimeError when
        math-verify cannot be started, and UserError when its workers are killed from outside or stand still.
        """
        judgements: list[Judgement | None] = [None] * len(pairs)
        waiting: dict[Question, Future[Answer]] = {}
        asked: list[tuple[int, Question, str]] = []
        for index, (gold, response) in enumerate(pairs):
            found = _found(response, truncated is not None and truncated[index])
            outcome = decide(gold, found, require_marker, STRICT if allowed is None else allowed[index])
            if isinstance(outcome, Question):
                if outcome not in waiting:
                    waiting[outcome] = self._ask(outcome)
                asked.append((index, outcome, found.text or ""))
            else:
                judgements[index] = Judgement(outcome.verdict, outcome.extracted, outcome.path, outcome.reason)
        for index, question, extracted in asked:
            verdict, reason = self._verdict(waiting[question])
            judgements[index] = Judgement(verdict, extracted, "math_verify", reason)
        return [judgement for judgement in judgements if judgement is not None]

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that are running now."""
        return self._pool.pids()

    def close(self) -> None:
        """Ends the workers; comparisons that are still waiting fail with RuntimeError."""
        self._pool.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: Question) -> Future[Answer]:
        gold, prediction = map(_without_surrogates, (question.gold, question.prediction))
        return self._pool.submit(gold=gold, prediction=prediction)

    def _verdict(self, asked: Future[Answer]) -> tuple[Verdict, str]:
        try:
            answer = asked.result()
        except StartError as error:
            raise RuntimeError(
                f"math-verify could not be started ({error}). Install math-verify[antlr4_9_3]==0.9.0, "
                f"and give it memory (verifier.memory_mib is {self._params.memory_mib})"
            ) from error
        match answer.failure:
            case "exhausted":
                return Verdict.EXHAUSTED, f"over_{self._params.timeout_seconds:g}_seconds"
            case "crashed":
                return Verdict.CRASHED, f"worker_exit_{answer.exit_code}"
            case "out_of_memory":
                return Verdict.EXHAUSTED, "memory_limit"
        verdict, reason = answer.value
        return Verdict(verdict), reason


def _without_surrogates(text: str) -> str:
    """Half a character, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _found(response: str, is_truncated: bool) -> Extraction:
    found = extract_answer(response)
    if is_truncated and found.text is not None and not found.is_delimited:
        return Extraction(None, "truncated")
    return found


@dataclass(frozen=True)
class Judgement:
    """What the verifier says about one response."""

    verdict: Verdict
    extracted: str | None
    """The answer as found in the response; None when there is none."""
    path: str
    """What decided: `extraction`, `exact` or `math_verify`."""
    reason: str
