"""curate: what is kept, what goes and why, and that benchmarks stay what they are."""

import pytest

from stages.curate.gradability import answer_kind
from stages.curate.run import normalise_text
from stages.curate.stage import AnswerKind
from stages.foundations.errors import UserError
from stages.foundations.tables import PROBLEM
from tests.fakes.curate_stage import HELD_OUT, curate, reasons


def test_every_reason_once(tmp_path):
    tables = curate(
        tmp_path,
        [
            ("Compute 1+1.", "2", "1+1=2"),
            ("  compute  1 + 1", "2.0"),  # the same problem, the same answer
            ("Compute 5+5.", "10"),
            ("Compute 5+5", "11"),  # the same problem, another answer: neither can be trusted
            ("Compute 2+2.", "4"),  # stands in the benchmark
            ("Compute 3+3.", " "),
            ("?! ![a figure](pictures/a.png)", "7"),
            ("Compute " + "1+" * 150 + "1.", "151"),
            ("What colour?", "dark red"),
            ("Expand (x+1)^2.", "x^2+2x+1"),
            ("What is half of one?", "\\frac{1}{2}"),
        ],
    )
    assert tables["train"]["problem_id"].tolist() == ["drill/0", "drill/10"]
    assert tables["train"]["solution"].iloc[0] == "1+1=2" and tables["train"]["solution"].isna().tolist() == [
        False,
        True,
    ]
    assert reasons(tables) == {
        "drill/1": "duplicate",
        "drill/2": "contradicting_answers",
        "drill/3": "contradicting_answers",
        "drill/4": "contaminated",
        "drill/5": "no_answer",
        "drill/6": "no_problem",
        "drill/7": "problem_too_long",
        "drill/8": "ungradable_answer",
        "drill/9": "ungradable_answer",
    }
    assert tables["metrics"] == {
        "rows/in": 11,
        "rows/kept": 2,
        "train/rows": 2,
        "validation/rows": 0,
        "contamination/pairs": 1,
        "held_out/rows": 2,
        "held_out/rows_hit": 1,
        "dropped/duplicate": 1,
        "dropped/contradicting_answers": 2,
        "dropped/contaminated": 1,
        "dropped/no_answer": 1,
        "dropped/no_problem": 1,
        "dropped/problem_too_long": 1,
        "dropped/ungradable_answer": 2,
        "contamination/pairs_exact": 1,
        "duplicates/within_source": 2,
    }


def test_contamination_shows_both_texts(tmp_path):
    tables = curate(tmp_path, [("compute 2 + 2", "4"), ("Compute 1+2.", "3")], [*HELD_OUT, ("COMPUTE 2+2", "4")])
    pairs = tables["contamination"].to_dict("records")
    assert pairs[0] == {
        "problem_id": "drill/0",
        "source": "drill",
        "problem": "compute 2 + 2",
        "benchmark": "held_out",
        "benchmark_problem_id": "held_out/1",
        "benchmark_problem": "Compute 2+2.",
        "rule": "exact",
        "overlap": 1.0,
        "benchmark_revision": "sha256 ab12",
    }
    assert [pair["benchmark_problem_id"] for pair in pairs] == ["held_out/1", "held_out/2"]
    assert tables["metrics"]["held_out/rows_hit"] == 2


def test_ngrams_and_near_duplicates_as_the_recipe_says(tmp_path):
    story = "Tom has 3 apples and buys 4 more on the way home. How many apples does Tom have?"
    train = [(story.replace("3", "5"), "9"), (story.replace("Tom", "Ann"), "7"), ("Compute 1+2.", "3")]
    none = {"exact": False, "ngrams": None, "near_duplicates": None, "templates": None}
    ngrams = none | {"ngrams": {"words": 6, "shared_fraction": 0.5}}
    near = {"shingle_words": 1, "similarity": 0.7, "permutations": 128, "same_numbers": True}
    tables = curate(tmp_path, train, [(story, "7")], decontamination=ngrams)
    assert set(tables["contamination"]["rule"]) == {"ngrams"} and len(tables["contamination"]) == 2
    both = none | {"near_duplicates": near}
    tables = curate(tmp_path, train, [(story, "7")], decontamination=both)
    assert reasons(tables) == {"drill/1": "contaminated"}
    loose = {"exact": True, "near_duplicates": {**near, "same_numbers": False}}
    tables = curate(tmp_path, train, deduplication=loose)
    assert reasons(tables) == {"drill/1": "near_duplicate"}


def test_duplicates_stay_when_the_recipe_says_so(tmp_path):
    train = [("Compute 1+1.", "2"), ("Compute 1+1.", "2")]
    assert len(curate(tmp_path, train, deduplication={"exact": False, "near_duplicates": None})["train"]) == 2


def test_benchmarks_are_normalised_and_otherwise_untouched(tmp_path):
    held_out = [("Compute  2+2.\r\n", "4"), ("Compute 2+2.", "5"), ("Which colour?", "dark red")]
    tables = curate(tmp_path, [("Compute 1+1.", "2")], held_out)
    assert tables["benchmarks"]["problem"].tolist() == ["Compute 2+2.", "Compute 2+2.", "Which colour?"]
    assert tables["benchmarks"]["answer"].tolist() == ["4", "5", "dark red"]
    assert tables["benchmarks"]["benchmark"].tolist() == ["held_out"] * 3
    assert tables["benchmarks"]["problem_id"].tolist() == ["held_out/0", "held_out/1", "held_out/2"]


SUMS = [(f"Compute {a}+{b}.", str(a + b)) for a in range(30, 40) for b in range(1, 5)]


def test_split_is_a_draw_by_the_seed_and_stable_against_more_rows(tmp_path):
    tables = curate(tmp_path, SUMS, validation_rows=8)
    validation, train = set(tables["validation"]["problem_id"]), list(tables["train"]["problem_id"])
    assert len(validation) == 8 and len(train) == 32 and not validation & set(train)
    assert train == sorted(train, key=lambda name: int(name.split("/")[1]))
    assert set(curate(tmp_path, SUMS, seed=1, validation_rows=8)["validation"]["problem_id"]) != validation
    fewer = set(curate(tmp_path, SUMS[:36], validation_rows=8)["validation"]["problem_id"])
    assert len(fewer - validation) <= 4  # only places of rows that are gone are filled anew


def test_max_train_rows_are_kept_apart_from_validation(tmp_path):
    tables = curate(tmp_path, SUMS, validation_rows=8, max_train_rows=10)
    assert (len(tables["train"]), len(tables["validation"])) == (10, 8)
    assert tables["metrics"]["dropped/over_max_train_rows"] == 22
    assert set(tables["validation"]["problem_id"]) == set(
        curate(tmp_path, SUMS, validation_rows=8)["validation"]["problem_id"]
    )


def test_equal_runs_give_equal_bytes(tmp_path):
    def run():
        curate(tmp_path, [*SUMS, *HELD_OUT], validation_rows=5)
        return {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    first = run()
    assert len(first) == 9 and run() == first


def test_empty_tables_keep_their_columns(tmp_path):
    tables = curate(tmp_path, [("Compute 1+1.", "2")])
    assert tables["contamination"].empty and list(tables["validation"].columns) == PROBLEM.names


def test_errors_name_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"40 problems are left and curate\.validation_rows asks for 40: lower it"):
        curate(tmp_path, SUMS, validation_rows=40)
    with pytest.raises(UserError, match="0 problems are left"):
        curate(tmp_path, HELD_OUT)
    with pytest.raises(UserError, match=r"no entry of `sources` has role: benchmark"):
        curate(tmp_path, SUMS, roles={"drill": "train"})
    with pytest.raises(UserError, match=r"other\.parquet does not exist: `dvc repro collect@other`"):
        curate(tmp_path, SUMS, roles={"drill": "train", "other": "train", "held_out": "benchmark"})
    with pytest.raises(UserError, match=r"held_out\.parquet has no rows"):
        curate(tmp_path, SUMS, held_out=[])
    nothing = {"exact": False, "ngrams": None, "near_duplicates": None, "templates": None}
    with pytest.raises(UserError, match="decontamination must use at least one rule"):
        curate(tmp_path, SUMS, decontamination=nothing)
    with pytest.raises(UserError, match=r"decontamination\.colour"):
        curate(tmp_path, SUMS, decontamination={**nothing, "exact": True, "colour": "red"})
    with pytest.raises(UserError, match=r"shared_fraction must be in \(0, 1\]"):
        curate(tmp_path, SUMS, decontamination={**nothing, "ngrams": {"words": 8, "shared_fraction": 2}})


def test_a_rewritten_problem_is_still_recognised(tmp_path):
    train = [("What is 3/6?", "1/2"), ("Compute 1+1.", "2")]
    tables = curate(tmp_path, train, [("What is 3/6?", "1/2")], transform={"kind": "integer"})
    assert reasons(tables) == {"drill/0": "contaminated"}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("1,234", AnswerKind.integer),
        ("\\$5", AnswerKind.integer),
        ("8/4", AnswerKind.integer),
        ("$-3$", AnswerKind.integer),
        ("2.5", AnswerKind.number),
        ("28\\%", AnswerKind.number),
        ("\\frac{1}{3}", AnswerKind.number),
        ("C", AnswerKind.choice),
        ("(B)", AnswerKind.choice),
        ("True", AnswerKind.word),
        ("x^2", AnswerKind.expression),
        ("(1, 2)", AnswerKind.expression),
        ("\\text{the red one}", AnswerKind.prose),
        ("the red one", AnswerKind.prose),
        ("", None),
        ("  .", None),
    ],
)
def test_answer_kinds(answer, kind):
    assert answer_kind(answer) == kind


def test_text_in_one_form():
    assert normalise_text("e\u0301\u00a0 x\r\n\r\n\r\n\n y \u200b\x00\ufeff") == "é x\n\ny"
    assert normalise_text(normalise_text(" a\t\tb\rc ")) == "a b\nc"
