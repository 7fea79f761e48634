"""Answers that look paid for are not, and right ones in unusual forms are; a few of each class, drawn at random.

`python -m benchmarks.unearned` draws many.
"""

import pytest

from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from tests.fakes.unearned_answers import EARNED, UNEARNED, drawn, towers

PARAMS = VerifierParams(timeout_seconds=5, memory_mib=768, workers=1, abort_undecided_fraction=0.0)
COUNT = 20


@pytest.fixture(scope="module")
def verifier():
    with Verifier(PARAMS) as verifier:
        yield verifier


@pytest.mark.parametrize("kind", UNEARNED)
@pytest.mark.parametrize("is_reward", [False, True])
def test_what_is_not_earned_is_not_paid(verifier, kind, is_reward):
    pairs = drawn(UNEARNED[kind], COUNT, seed=5)
    judged = verifier.judge(pairs, require_marker=is_reward)
    assert [pair for pair, one in zip(pairs, judged, strict=True) if one.verdict == "correct"] == []


@pytest.mark.parametrize("is_reward", [False, True])
def test_what_is_earned_is_paid(verifier, is_reward):
    pairs = drawn(EARNED["owed"], 3 * COUNT, seed=5)
    judged = verifier.judge(pairs, require_marker=is_reward)
    assert [pair for pair, one in zip(pairs, judged, strict=True) if one.verdict != "correct"] == []


def test_towers_are_seen_without_a_worker(verifier):
    before = verifier.worker_pids()
    judged = verifier.judge(drawn(towers, 3 * COUNT, seed=5), require_marker=True)
    assert {one.path for one in judged} <= {"exact", "extraction"}
    assert "correct" not in {one.verdict for one in judged}
    assert verifier.worker_pids() == before
