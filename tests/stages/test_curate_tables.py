"""curate: what it records besides the problems, the gradability test, difficulty, and rows that are broken."""

import gzip
import hashlib
import json
from pathlib import Path

import pandas
import pytest

from stages.algorithms.answers.decisions import Outcome, decide
from stages.algorithms.answers.extraction import extract_answer
from stages.algorithms.answers.verdicts import Verdict
from stages.curate.gradability import boxed, perturbed_answer
from stages.curate.run import band, read_pass_rates
from stages.curate.stage import PassRates
from stages.engines.verifier.verifier import Judgement, Verifier
from stages.foundations.errors import UserError
from stages.foundations.tables import PROBLEM, write_table
from tests.fakes.curate_stage import curate, reasons, run_curate

ROLLOUTS = Path(__file__).parents[2].parent / "shared" / "data" / "rollouts" / "qwen25math_math100_x8.jsonl.gz"
INTEGERS = {"transform": {"kind": "integer"}, "answer_kinds": ["integer"]}


def test_integer_transform_records_its_inverse(tmp_path):
    train = [
        ("What is 3/6?", "\\frac{3}{6}", "Half, so \\boxed{\\frac{1}{2}}."),
        ("Compute 1+1.", "2"),
        ("What is 0.1+0.2?", "0.3"),
        ("Solve $x^2=2x+1$ for the larger $x$.", "1+\\sqrt{2}"),
    ]
    tables = curate(tmp_path, train, **INTEGERS)
    row = tables["train"].iloc[0]
    assert row["problem"].startswith("What is 3/6?\nThe answer is $\\frac{m}{n}$") and row["answer"] == "3"  # 1 + 2
    assert extract_answer(row["solution"]).text == "3"
    assert tables["train"]["problem"].iloc[1] == "Compute 1+1."
    records = tables["transforms"].set_index("problem_id")
    assert records.index.tolist() == ["drill/0", "drill/3"]
    assert records.loc["drill/0", "original_answer"] == "\\frac{3}{6}"
    assert records.loc["drill/0", "inverse"] == "\\frac{1}{2}"
    assert json.loads(records.loc["drill/3", "parts"]) == {"m": 1, "n": 1, "p": 2}
    assert records.loc["drill/3", "inverse"] == "1 + 1\\sqrt{2}" and records.loc["drill/3", "answer"] == "4"
    assert tables["metrics"]["transform/rows"] == 2 and tables["metrics"]["transform/left_decimal"] == 1
    assert reasons(tables) == {"drill/2": "ungradable_answer"}
    both = curate(tmp_path, train, transform={"kind": "integer"})  # answer_kinds: integer, number
    assert both["train"].set_index("problem_id").loc["drill/2", "answer"] == "0.3"
    off = curate(tmp_path, train, transform={"kind": "none"})
    assert off["transforms"].empty and off["train"]["answer"].iloc[0] == "\\frac{3}{6}"


@pytest.mark.parametrize(
    ("answer", "other"),
    [
        ("3", "4"),
        ("-9", "-10"),
        ("199", "200"),
        ("0.25", "1.25"),
        ("1,999", "2,999"),
        ("3/4", "4/4"),
        ("\\frac{\\pi}{4}", "\\frac{\\pi}{5}"),
        ("x_1 = 2", "x_1 = 3"),
        ("x^2+1", "x^2+2"),
        ("x^2", "x^3"),
        ("(C)", "(D)"),
        ("J", "A"),
        ("True", "False"),
        ("no", "Yes"),
        ("east", "noteast"),
        ("x", "1+x"),
        ("x+y", "1+x+y"),
        ("f(x)=x", "f(x)=1+x"),
        ("five", "6"),
        ("\\tbinom52", "\\binom{6}{2}"),
        ("\\text{(B) }5", "(C) 6"),
        ("A, C", "A, D"),
        ("\\angle ABC", "\\angle ABD"),
        ("\\mathbb Z", "\\mathbb A"),
        ("No solution", "not No solution"),
        ("n \\text{ even}", "not n even"),
    ],
)
def test_perturbed_answers(answer, other):
    assert perturbed_answer(answer) == other


@pytest.mark.parametrize(
    "answer",
    ["five", "f(x)=x", r"\tbinom52", r"\text{(B) }5", r"\overline{CD}", r"\mathbb Z", "No solution", r"\text{A, B}"],
)
def test_what_is_perturbed_is_another_answer(answer):
    found = decide(answer, extract_answer(boxed(perturbed_answer(answer))), require_marker=True)
    assert isinstance(found, Outcome)
    assert found.verdict is Verdict.WRONG


def test_a_gold_answer_must_grade_itself_correct_and_another_wrong(tmp_path):
    train = [
        ("Compute 1+1.", "2"),
        ("Half of one?", "0.5"),
        ("Solve it.", "\\frac{1}{"),
        ("Which?", "east"),
        ("Expand it.", "x^2+2x+1"),
        ("Where?", "(1, 2)"),
        ("Is it so?", "Yes"),
    ]
    kinds = ["integer", "number", "word", "expression"]
    tables = curate(tmp_path, train, answer_kinds=kinds)
    kept, dropped = set(tables["train"]["problem_id"]), reasons(tables)
    assert {"drill/0", "drill/1", "drill/4", "drill/5", "drill/6"} <= kept
    assert dropped["drill/2"] in ("gold_not_correct", "perturbed_not_wrong")
    assert set(dropped.values()) <= {"gold_not_correct", "perturbed_not_wrong"}
    assert len(curate(tmp_path, train, answer_kinds=kinds, gradability_test=False)["train"]) == 7


def test_a_verifier_that_fails_on_gold_answers_stops_the_stage(tmp_path, monkeypatch):
    timed_out = Judgement(Verdict.TIMED_OUT, "x", "math_verify", "5 s")
    monkeypatch.setattr(Verifier, "judge", lambda self, pairs, **_: [timed_out] * len(pairs))
    with pytest.raises(UserError, match=r"failed on the gold answers of 1 of 1 problems: raise verifier\.timeout"):
        curate(tmp_path, [("Compute 1+1.", "2")])


def test_duplicates_within_and_across_sources(tmp_path):
    train = [("Compute 1+1.", "2"), ("Compute 1 + 1", "2"), ("Compute 5+5.", "10")]
    near = {"shingle_words": 1, "similarity": 0.6, "permutations": 128, "same_numbers": True}
    tables = curate(
        tmp_path,
        train,
        others={"more": [("compute 1+1", "2.0"), ("Please compute 5+5.", "10"), ("Compute 7+1.", "8")]},
        roles={"drill": "train", "more": "train", "held_out": "benchmark"},
        deduplication={"exact": True, "near_duplicates": near},
    )
    pairs = {row["problem_id"]: row for row in tables["duplicates"].to_dict("records")}
    assert {key: (row["other_id"], row["scope"], row["rule"]) for key, row in pairs.items()} == {
        "drill/1": ("drill/0", "within_source", "exact"),
        "more/0": ("drill/0", "across_sources", "exact"),
        "more/1": ("drill/2", "across_sources", "near_duplicates"),
    }
    assert pairs["more/1"]["other_problem"] == "Compute 5+5." and pairs["more/1"]["similarity"] == 0.75
    assert tables["metrics"]["duplicates/across_sources"] == 2


def test_a_benchmark_that_overlaps_itself_is_reported_and_kept(tmp_path):
    held_out = [("Compute 2+2.", "4")] * 3 + [("compute 2+2", "5"), ("Compute 8+1.", "9")]
    tables = curate(
        tmp_path,
        [("Compute 2+2.", "4"), ("Compute 1+2.", "3")],
        held_out,
        others={"exam": [("Compute 8+1.", "9")]},
        roles={"drill": "train", "held_out": "benchmark", "exam": "benchmark"},
    )
    assert len(tables["benchmarks"]) == 6
    pairs = {
        row["problem_id"]: (row["other_id"], row["scope"], row["rule"])
        for row in tables["duplicates"].to_dict("records")
    }
    assert pairs == {
        "held_out/1": ("held_out/0", "within_benchmark", "exact"),
        "held_out/2": ("held_out/0", "within_benchmark", "exact"),
        "held_out/3": ("held_out/0", "within_benchmark", "contradicting_answers"),
        "exam/0": ("held_out/4", "across_benchmarks", "exact"),
    }
    assert tables["contamination"]["benchmark_problem_id"].tolist() == [f"held_out/{i}" for i in range(4)]
    assert tables["metrics"]["held_out/rows_hit"] == 4


def test_broken_rows_are_dropped_with_a_reason(tmp_path):
    curate(tmp_path, [("Compute 1+1.", "2"), ("Compute 1+3.", "4"), ("Compute 1+4.", "5"), ("Compute 1+5.", "6")])
    place = tmp_path / "collected" / "drill.parquet"
    table = pandas.read_parquet(place).astype(object)
    table.loc[1, "problem_id"] = "drill/0"
    table.loc[2, "problem"] = None
    table.loc[3, ["problem_id", "licence"]] = None
    write_table(table, place, PROBLEM)
    bench = tmp_path / "collected" / "held_out.parquet"
    rows = pandas.read_parquet(bench).astype(object)
    rows = pandas.concat([rows, rows.iloc[:1], rows.iloc[1:].assign(problem_id="held_out/9", answer=None)])
    write_table(rows, bench, PROBLEM)
    tables = run_curate(tmp_path)
    assert tables["train"]["problem_id"].tolist() == ["drill/0"]
    assert tables["dropped"]["reason"].tolist() == [
        "duplicate_id",
        "missing_field",
        "missing_field",
        "duplicate_id",
        "missing_field",
    ]
    assert json.loads(tables["dropped"]["row"].iloc[2])["problem"] == "Compute 1+5."
    assert tables["metrics"]["rows/in"] == 4 and tables["metrics"]["dropped/missing_field"] == 2
    assert tables["metrics"]["benchmarks/dropped/duplicate_id"] == 1 and len(tables["benchmarks"]) == 2
    write_table(rows.assign(problem=None), bench, PROBLEM)
    with pytest.raises(UserError, match="no row of benchmark `held_out` has all its texts"):
        run_curate(tmp_path)


def test_a_column_of_the_wrong_type_is_told(tmp_path):
    curate(tmp_path, [("Compute 1+1.", "2")])
    place = tmp_path / "collected" / "drill.parquet"
    pandas.read_parquet(place).assign(problem=[{"text": 1}]).to_parquet(place)
    with pytest.raises(UserError, match="has a column of the wrong type for a problem table"):
        run_curate(tmp_path)


def pass_rates(tmp_path, lines, **changes):
    content = gzip.compress("\n".join(lines).encode())
    (tmp_path / "rates.jsonl.gz").write_bytes(content)
    return {
        "kind": "pass_rates",
        "path": str(tmp_path / "rates.jsonl.gz"),
        "sha256": hashlib.sha256(content).hexdigest(),
        "problem_field": "question",
        "outcomes_field": "score",
        **{"least_pass_rate": 0.1, "most_pass_rate": 0.9, **changes},
    }


def test_difficulty_from_pass_rates(tmp_path):
    lines = [
        json.dumps({"question": "compute 1 + 1", "score": [True, False, False, False]}),
        json.dumps({"question": "Compute 1+1.", "score": [True, True, True, True]}),  # measured again: 5 of 8
        json.dumps({"question": "Compute 1+2.", "score": 0.0}),
        json.dumps({"question": "Compute 1+3.", "score": [True] * 4}),
        json.dumps({"question": "What is half of 1?", "score": 0.25}),
        json.dumps({"question": "Compute 1+5.", "score": "high"}),
        json.dumps([1]),
        "{",
        "[" * 100_000,
        json.dumps({"question": "Compute 1+5.", "score": float("nan")}),
        json.dumps({"question": "?", "score": 1}),
    ]
    train = [
        ("Compute 1+1.", "2"),
        ("Compute 1+2.", "3"),
        ("Compute 1+3.", "4"),
        ("What is half of 1?", "1/2"),
        ("Compute 1+5.", "6"),
    ]
    tables = curate(tmp_path, train, difficulty=pass_rates(tmp_path, lines), **INTEGERS)
    found = tables["difficulty"].set_index("problem_id")
    assert found["pass_rate"].tolist() == [0.625, 0.0, 1.0, 0.25]
    assert found["band"].tolist() == ["medium", "unsolved", "solved", "hard"] and found["samples"].iloc[0] == 8
    assert reasons(tables) == {"drill/1": "too_hard", "drill/2": "too_easy"}
    assert tables["metrics"]["difficulty/unusable_no_pass_rate"] == 2
    assert tables["metrics"]["difficulty/unusable_malformed_line"] == 2
    assert tables["metrics"]["difficulty/unusable_no_problem"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "has sha256"),
        ({"path": "nowhere.jsonl"}, "does not exist: correct"),
        ({"problem_field": "text"}, "no line has a problem in `text`"),
        ({"least_pass_rate": 0.95}, "least_pass_rate must not exceed"),
    ],
)
def test_mistakes_in_pass_rates_are_told(tmp_path, changes, message):
    rates = pass_rates(tmp_path, [json.dumps({"question": "Compute 1+1.", "score": 1})], **changes)
    with pytest.raises(UserError, match=message):
        curate(tmp_path, [("Compute 1+1.", "2")], difficulty=rates)


def test_pairs_of_one_benchmark_problem_are_bounded(tmp_path):
    story = "Tom has {} red apples and buys {} more apples on the market. How many apples does Tom have?"
    train = [(story.format(n, n + 1), str(2 * n + 1)) for n in range(2, 100)] + [("Compute 1+1.", "2")]
    rules = {
        "exact": True,
        "ngrams": None,
        "near_duplicates": None,
        "templates": {"similarity": 0.6, "reworded_similarity": 0.1},
    }
    tables = curate(tmp_path, train, [(story.format(200, 300), "500")] * 2, decontamination=rules)
    assert tables["metrics"]["dropped/contaminated"] == 98 and len(tables["train"]) == 1
    assert tables["metrics"]["contamination/pairs_template"] == 2 * 98
    assert tables["contamination"]["benchmark_problem_id"].value_counts().tolist() == [50, 50]


@pytest.mark.skipif(not ROLLOUTS.is_file(), reason=f"the recorded responses ({ROLLOUTS}) are not on this machine")
def test_pass_rates_of_recorded_responses():
    """100 problems of MATH, 8 responses each, with verdicts: the bands that they fall into."""
    digest = hashlib.sha256(ROLLOUTS.read_bytes()).hexdigest()
    params = PassRates(
        kind="pass_rates",
        path=str(ROLLOUTS),
        sha256=digest,
        problem_field="question",
        outcomes_field="score",
        least_pass_rate=0,
        most_pass_rate=1,
    )
    rates, unusable = read_pass_rates(params)
    assert len(rates) == 100 and not unusable
    assert {samples for _, samples in rates.values()} == {8}
    assert len({band(rate) for rate, _ in rates.values()}) >= 4
