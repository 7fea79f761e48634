"""curate: what is kept, what goes and why, and that benchmarks stay what they are."""

import json

import pytest
import yaml

from stages.algorithms.answers.extraction import extract_answer
from stages.curate.__main__ import main
from stages.curate.answers import AnswerKind, answer_kind, ask_for_integer
from stages.curate.text import normalise_text
from stages.foundations.errors import UserError
from stages.foundations.tables import SCHEMAS, read_table, write_table

OUTPUTS = {
    "train": "problem", "validation": "problem", "benchmarks": "benchmark", "contamination": "contamination",
    "dropped": "dropped",
}  # fmt: skip
CURATE = {
    "max_problem_characters": 200,
    "answer_kinds": ["integer", "number"],
    "transform": {"kind": "none"},
    "deduplication": {"exact": True, "near_duplicates": None},
    "decontamination": {"exact": True, "ngrams": None, "near_duplicates": None},
    "validation_rows": 0,
    "max_train_rows": None,
}
HELD_OUT = [("Compute 9-8.", "1"), ("Compute 2+2.", "4")]


def curate(tmp_path, train, held_out=HELD_OUT, seed=0, roles=None, **changes):
    folder = tmp_path / "collected"
    for source, rows in {"drill": train, "held_out": held_out}.items():
        table = [
            {"problem_id": f"{source}/{i}", "source": source, "problem": problem, "answer": answer,
             "solution": rest[0] if rest else None, "licence": "MIT"}
            for i, (problem, answer, *rest) in enumerate(rows)
        ]  # fmt: skip
        write_table(table, folder / f"{source}.parquet", "problem")
    roles = roles or {"drill": "train", "held_out": "benchmark"}
    params = {"seed": seed, "curate": CURATE | changes}
    params["sources"] = {name: {"role": role, "licence": "MIT", "from": {}} for name, role in roles.items()}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    paths = {name: tmp_path / "out" / f"{name}.parquet" for name in OUTPUTS}
    metrics = tmp_path / "out" / "curate.json"
    flags = [f"--{name}={path}" for name, path in paths.items()]
    main([f"--params={tmp_path / 'params.yaml'}", f"--collected={folder}", f"--metrics={metrics}", *flags])
    tables = {name: read_table(path, OUTPUTS[name]) for name, path in paths.items()}
    return tables | {"metrics": json.loads(metrics.read_text())}


def reasons(tables):
    return dict(zip(tables["dropped"]["row_id"], tables["dropped"]["reason"], strict=True))


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
            ("?!", "7"),
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
        "drill/1": "duplicate", "drill/2": "contradicting_answers", "drill/3": "contradicting_answers",
        "drill/4": "contaminated", "drill/5": "no_answer", "drill/6": "no_problem", "drill/7": "problem_too_long",
        "drill/8": "ungradable_answer", "drill/9": "ungradable_answer",
    }  # fmt: skip
    assert tables["metrics"] == {
        "rows/in": 11, "rows/kept": 2, "train/rows": 2, "validation/rows": 0, "contamination/pairs": 1,
        "held_out/rows": 2, "held_out/rows_hit": 1, "dropped/duplicate": 1, "dropped/contradicting_answers": 2,
        "dropped/contaminated": 1, "dropped/no_answer": 1, "dropped/no_problem": 1, "dropped/problem_too_long": 1,
        "dropped/ungradable_answer": 2,
    }  # fmt: skip


def test_contamination_shows_both_texts(tmp_path):
    tables = curate(
        tmp_path, [("compute 2 + 2", "4"), ("Compute 1+2.", "3")], [*HELD_OUT, ("COMPUTE 2+2", "4")]
    )
    pairs = tables["contamination"].to_dict("records")
    assert pairs[0] == {
        "problem_id": "drill/0", "source": "drill", "problem": "compute 2 + 2", "benchmark": "held_out",
        "benchmark_problem_id": "held_out/1", "benchmark_problem": "Compute 2+2.", "rule": "exact",
    }  # fmt: skip
    assert [pair["benchmark_problem_id"] for pair in pairs] == ["held_out/1", "held_out/2"]
    assert tables["metrics"]["held_out/rows_hit"] == 2


def test_ngrams_and_near_duplicates_as_the_recipe_says(tmp_path):
    story = "Tom has 3 apples and buys 4 more on the way home. How many apples does Tom have?"
    train = [(story.replace("3", "5"), "9"), (story.replace("Tom", "Ann"), "7"), ("Compute 1+2.", "3")]
    ngrams = {"exact": False, "ngrams": {"words": 6, "shared_fraction": 0.5}, "near_duplicates": None}
    near = {"shingle_words": 1, "similarity": 0.7, "permutations": 128, "same_numbers": True}
    tables = curate(tmp_path, train, [(story, "7")], decontamination=ngrams)
    assert set(tables["contamination"]["rule"]) == {"ngrams"} and len(tables["contamination"]) == 2
    both = {"exact": False, "ngrams": None, "near_duplicates": near}
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
    assert len(first) == 6 and run() == first


def test_empty_tables_keep_their_columns(tmp_path):
    tables = curate(tmp_path, [("Compute 1+1.", "2")])
    assert tables["contamination"].empty and list(tables["validation"].columns) == SCHEMAS["problem"].names


def test_errors_name_what_to_do(tmp_path):
    with pytest.raises(
        UserError, match=r"40 problems are left and curate\.validation_rows asks for 40: lower it"
    ):
        curate(tmp_path, SUMS, validation_rows=40)
    with pytest.raises(UserError, match="0 problems are left"):
        curate(tmp_path, HELD_OUT)
    with pytest.raises(UserError, match=r"no entry of `sources` has role: benchmark"):
        curate(tmp_path, SUMS, roles={"drill": "train"})
    with pytest.raises(UserError, match=r"other\.parquet does not exist: `dvc repro collect@other`"):
        curate(tmp_path, SUMS, roles={"drill": "train", "other": "train", "held_out": "benchmark"})
    with pytest.raises(UserError, match=r"held_out\.parquet has no rows"):
        curate(tmp_path, SUMS, held_out=[])
    nothing = {"exact": False, "ngrams": None, "near_duplicates": None}
    with pytest.raises(UserError, match="decontamination must use at least one rule"):
        curate(tmp_path, SUMS, decontamination=nothing)
    with pytest.raises(UserError, match=r"decontamination\.colour"):
        curate(tmp_path, SUMS, decontamination={**nothing, "exact": True, "colour": "red"})
    with pytest.raises(UserError, match=r"shared_fraction must be in \(0, 1\]"):
        curate(tmp_path, SUMS, decontamination={**nothing, "ngrams": {"words": 8, "shared_fraction": 2}})


def test_integer_answers(tmp_path):
    train = [
        ("What is 3/6?", "\\frac{3}{6}", "Half, so \\boxed{\\frac{1}{2}}."),
        ("Compute 1+1.", "2"),
        ("What is 0.1+0.2?", "0.3"),
    ]
    tables = curate(tmp_path, train, transform={"kind": "integer"}, answer_kinds=["integer"])
    row = tables["train"].iloc[0]
    assert (
        row["problem"].startswith("What is 3/6?\nThe answer is $\\frac{m}{n}$") and row["answer"] == "3"
    )  # 1 + 2
    assert extract_answer(row["solution"]).text == "3"
    assert tables["train"].iloc[1]["problem"] == "Compute 1+1."
    assert reasons(tables) == {"drill/2": "no_integer_form"}


def test_a_rewritten_problem_is_still_recognised(tmp_path):
    train = [("What is 3/6?", "1/2"), ("Compute 1+1.", "2")]
    tables = curate(tmp_path, train, [("What is 3/6?", "1/2")], transform={"kind": "integer"})
    assert reasons(tables) == {"drill/0": "contaminated"}


@pytest.mark.parametrize(
    ("answer", "total"),
    [
        ("-\\dfrac{3}{4}", "7"),
        ("6/4", "5"),  # 3/2
        ("2\\sqrt{3}", "5"),
        ("\\sqrt{51}", "52"),  # 1 + 51
        ("\\frac{5\\sqrt{2}}{3}", "10"),
        ("\\frac{\\pi}{4}", "5"),
        ("$16\\pi$", "16"),
        ("-3\\pi", "3"),
        ("5", None),  # an integer already
        ("0.25", None),  # maybe rounded
        ("25\\%", None),
        ("\\sqrt{8}", None),  # 2 sqrt 2: not unique as written
        ("\\frac{2\\sqrt{3}}{4}", None),
        ("x+1", None),
        ("\\sqrt{x}", None),
    ],
)
def test_integer_forms(answer, total):
    question = ask_for_integer(answer, "How much is it?")
    assert (question and question.answer) == total


def test_letters_of_the_request_are_not_the_problems_own():
    assert "$p + q$" in ask_for_integer("1/2", "Let $m=3$ and $n$ be even.").request
    assert "$m + n$" in ask_for_integer("1/2", "Find the maximum of \\mu in metres.").request
    assert ask_for_integer("1/2", "Points m, p, u, M and P.") is None


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("1,234", AnswerKind.integer), ("\\$5", AnswerKind.integer), ("8/4", AnswerKind.integer),
        ("$-3$", AnswerKind.integer), ("2.5", AnswerKind.number), ("28\\%", AnswerKind.number),
        ("\\frac{1}{3}", AnswerKind.number), ("C", AnswerKind.choice), ("(B)", AnswerKind.choice),
        ("True", AnswerKind.word), ("x^2", AnswerKind.expression), ("(1, 2)", AnswerKind.expression),
        ("\\text{the red one}", AnswerKind.prose), ("the red one", AnswerKind.prose), ("", None), ("  .", None),
    ],
)  # fmt: skip
def test_answer_kinds(answer, kind):
    assert answer_kind(answer) == kind


def test_text_in_one_form():
    assert normalise_text("e\u0301\u00a0 x\r\n\r\n\r\n\n y \u200b\x00\ufeff") == "é x\n\ny"
    assert normalise_text(normalise_text(" a\t\tb\rc ")) == "a b\nc"
