"""Answers of multiple choice, truth values and lists, as MMLU-Pro and TheoremQA ask for them."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from stages.collect.run import read_field
from stages.collect.stage import Listed
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from tests.fakes.file_server import MIRROR

LIMITS = VerifierParams(timeout_seconds=5.0, memory_mib=768, workers=1, abort_undecided_fraction=0.2)
FORMS = (
    "{l}",
    "({l})",
    "{l}.",
    "{l})",
    r"\text{{({l})}}",
    r"\textbf{{{l}}}",
    "Option {l}",
    "({l}) {t}",
    "{l}) {t}",
    "{l}. {t}",
)
TEXT = "oxidizing sulfur, or hydrogen and not a B cell"


def boxed(text):
    return f"\\boxed{{{text}}}"


@pytest.fixture(scope="module")
def verdicts():
    """Returns the verdict of each pair of gold answer and response, which must mark its answer."""
    with Verifier(LIMITS) as verifier:
        yield lambda pairs: [str(one.verdict) for one in verifier.judge(pairs, require_marker=True)]


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_write_a_choice_counts_for_its_letter_alone(verdicts, form):
    letters = "ABCDEFGHIJ"
    pairs = [(gold, boxed(form.format(l=letter, t=TEXT))) for gold in letters for letter in letters]
    expected = ["correct" if gold == letter else "wrong" for gold in letters for letter in letters]
    assert verdicts(pairs) == expected


@pytest.mark.parametrize(
    "answer",
    [
        "(A) or maybe C",
        "(A) or the second one",
        "A. x and also B",
        "(A) rather than (B)",
        "A: then option B",
        "A and B",
    ],
)
def test_a_response_that_names_two_choices_earns_nothing(verdicts, answer):
    assert "correct" not in verdicts([(gold, boxed(answer)) for gold in "ABC"])


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("True", ["true", r"\text{True}", "Yes", "TRUE"], ["False", r"\text{no}", "1"]),
        ("False", ["false", r"\mathrm{False}", "No"], ["True", "yes", "not False"]),
        ("(c)", ["c", "C", "(C)", r"\text{(c)}", "c) $2x$"], ["b", "(b)", "(c), (b)"]),
        ("1, 2, 4", ["[1, 2, 4]", "(1, 2, 4)", "1, 2, 4", r"\left[1,2,4\right]"], ["[1, 2, 5]", "[1, 2]", "4"]),
        ("-4, 0", ["[-4, 0]", "(-4, 0)", "-4 \\text{ and } 0"], ["[4, 0]", "[0, -4]", "(-4, 1)"]),
    ],
)
def test_truth_values_options_and_lists(verdicts, gold, right, wrong):
    assert verdicts([(gold, boxed(one)) for one in right]) == ["correct"] * len(right)
    assert "correct" not in verdicts([(gold, boxed(one)) for one in wrong])


@pytest.mark.skipif(not MIRROR.is_dir(), reason=f"needs the files of {MIRROR}")
def test_every_answer_of_theoremqa_is_decided_and_every_choice_of_mmlu_keeps_its_letter(verdicts):
    """Each answer in a box is right for itself; each choice with its text is right for its letter, and no other."""
    known = {entry["name"]: MIRROR / entry["sha256"] for entry in json.loads((MIRROR / "sources.json").read_text())}
    rows = json.loads(known["theoremqa/test"].read_bytes())
    read = Listed(kind="listed", field="Answer", open="", separator=", ", close="")
    answers = [read_field(read, row) for row in rows]
    assert Counter(verdicts([(answer, boxed(answer)) for answer in answers])) == {"correct": 800}
    rows = [json.loads(line) for line in known["mmlu_stem/test"].read_text().splitlines()][::10]
    pairs = [
        ("ABCD"[row["answer"]], boxed(f"({'ABCD'[place]}) {row['choices'][place]}"))
        for row in rows
        for place in range(4)
    ]
    is_right = [row["answer"] == place for row in rows for place in range(4)]
    counts = Counter(zip(is_right, verdicts(pairs), strict=True))
    assert not counts[False, "correct"] and counts[True, "correct"] > 0.96 * len(rows)
