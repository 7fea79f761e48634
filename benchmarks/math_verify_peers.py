"""math-verify in processes: the peer with which `benchmarks.verifier` compares the verifier."""

from __future__ import annotations

import multiprocessing
import os

from stages.engines.workers.pool import WorkerLimits, WorkerPool

MEMORY_MIB = 1024
_PARTS = 3
"""Two readings and a comparison, each of which math-verify limits by itself."""
PeerVerdict = bool | str
"""Correct or not; a text is the exception that the peer raised, or why it was killed."""


class Peers:
    """math-verify in long-lived processes: each judges its share of the rows, one after the other."""

    def __init__(self, count: int, limit: int, warm_up: tuple[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._count, self._limit = count, limit
        self._pool = context.Pool(count)
        self.judge([warm_up] * count)

    def judge(self, pairs: list[tuple[str, str]]) -> list[PeerVerdict]:
        """Returns math-verify's verdict on each pair, in order."""
        shares = [pairs[start :: self._count] for start in range(self._count)]
        verdicts: list[PeerVerdict] = [False] * len(pairs)
        judged = self._pool.starmap(math_verify_share, [(share, self._limit) for share in shares], chunksize=1)
        for start, share in enumerate(judged):
            verdicts[start :: self._count] = share
        return verdicts

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()


def judge_towers(pairs: list[tuple[str, str]], count: int, limit: int) -> list[PeerVerdict]:
    """Returns math-verify's verdict on each pair, one by one in `count` processes; the reason if one was killed."""
    limits = WorkerLimits(MEMORY_MIB, _PARTS * limit + 1)
    with WorkerPool(math_verify_pair, count, limits, os.environ) as pool:
        asked = [pool.submit(gold=gold, prediction=prediction, limit=limit) for gold, prediction in pairs]
        answers = [one.result() for one in asked]
    return [answer.failure or answer.value for answer in answers]


def math_verify_share(pairs: list[tuple[str, str]], limit: int) -> list[PeerVerdict]:
    """Returns whether math-verify, with its defaults except the limit, judges each pair as equal."""
    return [math_verify_pair(gold, prediction, limit) for gold, prediction in pairs]


def math_verify_pair(gold: str, prediction: str, limit: int) -> PeerVerdict:
    """See `math_verify_share`; returns the name of the exception if math-verify raises one."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    try:
        sides = [parse(text, parsing_timeout=limit) for text in (gold, prediction)]
        return bool(verify(*sides, timeout_seconds=limit))
    except Exception as error:  # whatever a library raises on a row: its speed is measured, so the row stays in, as
        return type(error).__name__  # not correct, and `compare` prints how many
