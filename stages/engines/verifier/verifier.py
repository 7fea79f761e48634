"""The verifier: a fast exact path in this process, and math-verify 0.9 in workers that can be killed.

Model output is hostile. `9^(9^(9^9))` hangs a computer algebra system inside C code, which no exception interrupts. So
this process parses none of it. Undecided answers are sent to a pool of workers with limits of time and memory
(`stages/engines/workers`). An item that exceeds a limit is `exhausted`, one whose worker fails by itself `crashed`;
other items are not affected.

Workers start with the first item that needs one, so a run with only plain numbers as answers never starts them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager

from stages.algorithms.answers.decisions import Question, decide
from stages.algorithms.answers.extraction import THOUGHT_MARKERS, Extraction, Markers, extract_answer
from stages.algorithms.answers.verdicts import STRICT, Judgement, Leniency, Verdict
from stages.engines.samplers.episodes import environment_verdict
from stages.engines.samplers.protocol import Episode
from stages.engines.verifier.math_verify_worker import compare, prepare
from stages.engines.verifier.params import VerifierParams
from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool


class Verifier(AbstractContextManager):
    """Judges responses against gold answers. Thread safe; a context manager, `close` ends the workers."""

    def __init__(self, params: VerifierParams) -> None:
        self._params, self._thought_markers = params, thought_markers(params)
        # Each rank of a node has a verifier, and all of them share the workers that the section allows.
        workers = max(1, params.workers // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        limits = WorkerLimits(params.memory_mib, params.timeout_seconds)
        # sympy's simplify depends on the order of sets, which would differ between workers with a random hash seed.
        self._pool = WorkerPool(compare, workers, limits, {"PYTHONHASHSEED": "0"}, prepare)

    def judge(
        self,
        pairs: Sequence[tuple[str, str]],
        truncated: Sequence[bool] | None = None,
        require_marker: bool = False,
        allowed: Sequence[Leniency] | None = None,
    ) -> list[Judgement]:
        r"""Returns one judgement for each (gold answer, response or bare answer), in order.

        `truncated` marks responses that reached a token limit: see `extract_complete`. `require_marker`, which rewards
        use, rejects a response without box, tag or marker. It accepts one that the exact path calls equal or different
        as a whole, or that names one choice. `allowed`: what each pair's row allows beyond the rules; None for nothing.
        Raises RuntimeError when math-verify cannot be started, and UserError when its workers are killed from outside
        or make no progress.
        """
        judgements: list[Judgement | None] = [None] * len(pairs)
        waiting: dict[Question, Future[Answer]] = {}
        asked: list[tuple[int, Question, str]] = []
        for index, (gold, response) in enumerate(pairs):
            is_truncated = truncated is not None and truncated[index]
            answer = extract_complete(response, is_truncated, self._thought_markers)
            outcome = decide(gold, answer, require_marker, STRICT if allowed is None else allowed[index])
            if isinstance(outcome, Question):
                # Responses of a group often give the same answer: equal questions share one comparison.
                if outcome not in waiting:
                    waiting[outcome] = self._ask(outcome)
                asked.append((index, outcome, answer.text or ""))
            else:
                judgements[index] = outcome
        # The only place that waits: workers have computed while the rules decided the other pairs.
        for index, question, extracted in asked:
            verdict, reason = self._verdict(waiting[question])
            judgements[index] = Judgement(verdict, extracted, "math_verify", reason)
        return [judgement for judgement in judgements if judgement is not None]

    def answer(self, response: str, is_truncated: bool) -> str | None:
        """Returns the answer that a response marks (a box, a tag, or a marker before it); None without one."""
        found = extract_complete(response, is_truncated, self._thought_markers)
        return found.text if found.is_marked else None

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the running workers."""
        return self._pool.pids()

    def close(self) -> None:
        """Ends the workers; comparisons that are still waiting fail with RuntimeError."""
        self._pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: Question) -> Future[Answer]:
        # A lone surrogate, which JSON can hold and UTF-8 cannot, becomes a question mark.
        gold, prediction = (text.encode("utf-8", "replace").decode() for text in (question.gold, question.prediction))
        return self._pool.submit(gold=gold, prediction=prediction)

    def _verdict(self, asked: Future[Answer]) -> tuple[Verdict, str]:
        try:
            answer = asked.result()
        except StartError as error:
            raise RuntimeError(
                f"math-verify could not be started ({error}). Install math-verify[antlr4_9_3]==0.9.0, "
                f"and give it memory (verifier.memory_mib is {self._params.memory_mib})"
            ) from error
        # An exceeded limit is a property of the response, a crash one of the verifier: see `Verdict`.
        match answer.failure:
            case "exhausted":
                return Verdict.EXHAUSTED, f"over_{self._params.timeout_seconds:g}_seconds"
            case "crashed":
                return Verdict.CRASHED, f"worker_exit_{answer.exit_code}"
            case "out_of_memory":
                return Verdict.EXHAUSTED, "memory_limit"
        verdict, reason = answer.value
        return Verdict(verdict), reason


def thought_markers(params: VerifierParams | None) -> Markers:
    """Returns the markers around thoughts in responses; the usual ones for a recipe without section `verifier`."""
    return (params.thought.open, params.thought.close) if params and params.thought else THOUGHT_MARKERS


def extract_complete(response: str, is_truncated: bool, thought_markers: Markers) -> Extraction:
    """Returns the answer in a response; if a token limit ended it, only the content of a closed box or tag counts."""
    answer = extract_answer(response, thought_markers=thought_markers)
    # A number after another marker may be incomplete: `The answer is 12` could have become 125.
    if is_truncated and answer.text is not None and not answer.is_delimited:
        return Extraction(None, "truncated")
    return answer


def overruled(judgement: Judgement, episode: Episode | None) -> Judgement:
    """Returns the judgement of an episode's answer, replaced where the environment has failed or decides itself."""
    verdict = environment_verdict(episode)
    if episode is None or verdict is None:
        return judgement
    return Judgement(verdict, judgement.extracted, "environment", episode.fault)
