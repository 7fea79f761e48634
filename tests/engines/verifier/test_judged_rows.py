"""Rows with a verdict: new ones of every kind, recorded ones of other graders, and random ones that look correct.

The table verifier_cases.tsv follows docs/reference/answer-conventions.md, correct (+) and wrong (-). ⏎ is a
line break, and responses of the kind `truncated` reached a token limit. `python -m benchmarks.unearned` draws many more
of the random rows.
"""

import gzip
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from stages.algorithms.answers.verdicts import Leniency
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from tests.fakes.unearned_answers import EARNED, UNEARNED, drawn, towers

LINES = Path(__file__).with_name("verifier_cases.tsv").read_text(encoding="utf-8").splitlines()[1:]
ROWS = [line.split("\t") for line in LINES]
KINDS = sorted({row[0] for row in ROWS})
RECORDED = Path(__file__).parents[3].parent / "shared" / "data" / "verifier_cases"
GRADING = Leniency(decimals=True, expressions=True)
PARAMS = VerifierParams(timeout_seconds=30, memory_mib=768, workers=2, abort_undecided_fraction=1.0)
COUNT = 20


@pytest.fixture(scope="module")
def verifier():
    with Verifier(PARAMS) as verifier:
        yield verifier


@pytest.fixture(scope="module")
def paid(verifier):
    """Returns whether each row is judged correct; `wrong` and undecided are equal here: neither earns a reward."""
    pairs = [(gold, response.replace("⏎", "\n")) for _, _, gold, response in ROWS]
    truncated = [row[0] == "truncated" for row in ROWS]
    judged = verifier.judge(pairs, truncated, allowed=[GRADING] * len(pairs))
    return [one.verdict == "correct" for one in judged]


@pytest.mark.parametrize("sign", ["+", "-"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_every_kind_the_correct_answers_are_paid_and_no_others(kind, sign, paid):
    assert [
        row for row, is_paid in zip(ROWS, paid, strict=True) if row[:2] == [kind, sign] and is_paid != (sign == "+")
    ] == []


CONTRADICTORY = {35, 98, 100, 101, 104, 114, 115}
"""Rows labelled correct whose chain of equations contradicts itself."""
LEFT = {"cases": CONTRADICTORY | {187, 253, 263, 269, 276, 317}, "model_outputs": {4145}}
"""Rows whose label we do not follow: docs/evidence/verifier.md gives the reason for each."""


def stated_by(row):
    """What the row's own parameters allow: a number of decimals of Math-Verify, an absolute precision of others."""
    precision = row.get("params", {}).get("precision")
    if precision is None or isinstance(precision, list):
        return GRADING
    is_places = isinstance(precision, int)
    return replace(GRADING, tolerance=Fraction(1, 10**precision) if is_places else Fraction(str(precision)))


@pytest.mark.parametrize("name", LEFT)
def test_recorded_verdicts_but_those_that_we_do_not_follow(name, verifier):
    path = RECORDED / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"needs {path}, which is not part of the repository")
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    judged = verifier.judge([(row["gold"], row["pred"]) for row in rows], allowed=list(map(stated_by, rows)))
    pairs = zip(rows, judged, strict=True)
    assert {at for at, (row, one) in enumerate(pairs) if (one.verdict == "correct") != row["expected"]} == LEFT[name]


@pytest.mark.parametrize("is_reward", [False, True])
@pytest.mark.parametrize("kind", [*UNEARNED, *EARNED])
def test_what_is_earned_is_paid_and_nothing_else(verifier, kind, is_reward):
    pairs = drawn(EARNED[kind], 3 * COUNT, seed=5) if kind in EARNED else drawn(UNEARNED[kind], COUNT, seed=5)
    judged = verifier.judge(pairs, require_marker=is_reward)
    paid = [pair for pair, one in zip(pairs, judged, strict=True) if one.verdict == "correct"]
    assert paid == (pairs if kind in EARNED else [])


def test_towers_are_seen_without_a_worker(verifier):
    before = verifier.worker_pids()
    judged = verifier.judge(drawn(towers, 3 * COUNT, seed=5), require_marker=True)
    assert {one.path for one in judged} <= {"exact", "extraction"}
    assert "correct" not in {one.verdict for one in judged}
    assert verifier.worker_pids() == before
