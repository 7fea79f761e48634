"""Fresh answers of every kind, correct (+) and wrong (-), written against the conventions of docs/verifier.md.

The table is tab-separated; ⏎ stands for a line break; responses of the kind `truncated` were cut off by a token limit.
"""

from pathlib import Path

import pytest

from stages.algorithms.answers.verdicts import Leniency
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier

LINES = Path(__file__).with_name("verifier_cases.tsv").read_text(encoding="utf-8").splitlines()[1:]
ROWS = [line.split("\t") for line in LINES]
KINDS = sorted({row[0] for row in ROWS})
GRADING = Leniency(decimals=True, expressions=True)
PARAMS = VerifierParams(timeout_seconds=30, memory_mib=768, workers=2, abort_undecided_fraction=1.0)


@pytest.fixture(scope="module")
def verdicts():
    """The verdict of each row; `wrong` and no opinion are the same here: neither earns a reward."""
    pairs = [(gold, response.replace("⏎", "\n")) for _, _, gold, response in ROWS]
    with Verifier(PARAMS) as verifier:
        truncated = [row[0] == "truncated" for row in ROWS]
        judged = verifier.judge(pairs, truncated, allowed=[GRADING] * len(pairs))
    return [one.verdict.value for one in judged]


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_answers_of_every_kind_are_not_called_correct(kind, verdicts):
    false = [
        row for row, verdict in zip(ROWS, verdicts, strict=True) if row[:2] == [kind, "-"] and verdict == "correct"
    ]
    assert false == []


@pytest.mark.parametrize("kind", KINDS)
def test_correct_answers_of_every_kind_are_recognised(kind, verdicts):
    missed = [
        row for row, verdict in zip(ROWS, verdicts, strict=True) if row[:2] == [kind, "+"] and verdict != "correct"
    ]
    assert missed == []
