"""Leaks planted in training data are found, kind by kind; real rows that are said to be clean are nearly all let be.

The recalls that are stated in docs/explanation/curation.md are printed by `python -m benchmarks.planted_leaks` on all
rows; here they are floors. The rewordings also served to set the thresholds; those called held out were written
afterwards.
"""

import random
from functools import lru_cache
from pathlib import Path

import pytest

from stages.algorithms.decontamination import BenchmarkProblem, Contamination
from tests.fakes.planted_leaks import (
    formulas,
    planted,
    read_mirror,
    recall_by_kind,
    recipe_rules,
    renamed,
    respaced_latex,
    rewordings,
)

MIRROR = Path(__file__).parents[2].parent / "shared" / "data" / "mirror"
needs_real_rows = pytest.mark.skipif(not MIRROR.is_dir(), reason=f"the real rows ({MIRROR}) are not on this machine")
FLOORS = {
    "verbatim": 1.0,
    "respaced": 1.0,
    "respaced_latex": 1.0,
    "renumbered": 1.0,
    "renumbered_and_renamed": 1.0,
    "renumbered_latex": 0.85,
    "reworded_light": 0.95,
    "reworded_heavy": 0.8,
    "reworded_light_held_out": 0.9,
    "reworded_heavy_held_out": 0.4,
    "reworded_heavy_unseen": 0.45,
}


@lru_cache(maxsize=1)
def real_benchmarks():
    stories = read_mirror(MIRROR, "gsm8k/test", "question")
    latex = read_mirror(MIRROR, "math/math500", "problem")
    problems = [BenchmarkProblem("gsm8k_test", str(i), text) for i, text in enumerate(stories)]
    problems += [BenchmarkProblem("math500", str(i), text) for i, text in enumerate(latex)]
    return stories, latex, Contamination(problems, recipe_rules())


@needs_real_rows
def test_recall_of_each_kind_among_all_real_benchmark_problems():
    stories, latex, index = real_benchmarks()
    recalls = recall_by_kind(index, planted(stories[::25], latex[::8]))
    assert recalls.keys() == FLOORS.keys()
    for kind, (found, count) in recalls.items():
        assert count >= 7 and found / count >= FLOORS[kind], f"{kind}: {found} of {count}"


@needs_real_rows
@pytest.mark.parametrize(
    ("name", "field", "most"),
    # Hits in the train files are mostly problems of one template, by eye; AIME and MMLU each share one with MATH-500.
    [
        ("gsm8k/train", "question", 0.02),
        ("math/train", "problem", 0.06),
        ("theoremqa/test", "Question", 0.01),
        ("aime/aime_1983_2023", "problem", 0.02),
        ("mmlu_stem/test", "question", 0.01),
    ],
)
def test_few_real_rows_are_hit(name, field, most):
    rows = read_mirror(MIRROR, name, field)[::20]
    hits = sum(real_benchmarks()[2].find(row) is not None for row in rows)
    assert hits <= most * len(rows) + 1, f"{hits} of {len(rows)}"


@needs_real_rows
def test_real_leaks_between_public_sets_are_found():
    """An AIME problem of 1983-2023 and one of MMLU-STEM stand word for word in MATH-500."""
    index = real_benchmarks()[2]
    aime = next(row for row in read_mirror(MIRROR, "aime/aime_1983_2023", "problem") if "$P(11) = 181$" in row)
    assert index.find(aime).rule == "exact" and index.find(aime).benchmark == "math500"


def test_leaks_are_found_without_the_real_rows():
    """The same on the texts that stand beside the test, so that it is checked on every machine."""
    stories = [row["original"] for row in rewordings()]
    latex = [row["original"] for row in formulas()]
    problems = [BenchmarkProblem("b", str(i), text) for i, text in enumerate(stories + latex)]
    index = Contamination(problems, recipe_rules())
    recalls = recall_by_kind(index, planted(stories, latex))
    for kind in ("verbatim", "respaced", "respaced_latex", "renumbered", "renumbered_and_renamed"):
        assert recalls[kind][0] == recalls[kind][1], kind


def test_planters_change_what_they_say():
    story = "Tom has 3 apples. Later Ann gives Tom 4 more, so how many apples does Tom have?"
    changed = renamed(story, random.Random(1))
    assert "Ann" not in changed and "3 apples" not in changed and "apples does" in changed
    assert respaced_latex("Find $x=\\frac{1}{2}$.") == "Find \\( x\\; = \\;\\tfrac12 \\)."
