"""curate: kept rows, dropped rows with reasons, other records, and that benchmarks do not change."""

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path

import pandas
import pytest

from stages.algorithms.answers.decisions import decide
from stages.algorithms.answers.extraction import extract_answer
from stages.algorithms.answers.verdicts import Verdict
from stages.curate.gradability import answer_kind, boxed, perturbed_answer
from stages.curate.run import band, normalise_text, read_pass_rates
from stages.curate.stage import AnswerKind, PassRates
from stages.engines.verifier.verifier import Judgement, Verifier
from stages.foundations.errors import UserError
from stages.foundations.tables import (
    BENCHMARK,
    CONTAMINATION,
    DIFFICULTY,
    DROPPED,
    DUPLICATE,
    PROBLEM,
    TRANSFORM,
    read_table,
    write_table,
)
from tests.fakes.one_stage import run_stage

ROLLOUTS = Path(__file__).parents[2].parent / "shared" / "data" / "rollouts" / "qwen25math_math100_x8.jsonl.gz"
INTEGERS = {"transform": {"kind": "integer"}, "answer_kinds": ["integer"]}
OUTPUTS = dict.fromkeys(("train", "validation", "conversations"), PROBLEM)
OUTPUTS |= {"benchmarks": BENCHMARK, "contamination": CONTAMINATION, "duplicates": DUPLICATE}
OUTPUTS |= {"transforms": TRANSFORM, "difficulty": DIFFICULTY, "dropped": DROPPED}
NONE = {"exact": False, "ngrams": None, "near_duplicates": None, "templates": None}
"""Decontamination without any rule."""
CURATE = {
    "max_problem_characters": 200,
    "answer_kinds": ["integer", "number"],
    "transform": {"kind": "none"},
    "gradability_test": True,
    "difficulty": {"kind": "none"},
    "deduplication": {"exact": True, "near_duplicates": None},
    "decontamination": NONE | {"exact": True},
    "validation_rows": 0,
    "max_train_rows": None,
}
VERIFIER = {"timeout_seconds": 5, "memory_mib": 1024, "workers": 1, "abort_undecided_fraction": 0.0}
HELD_OUT = [("Compute 9-8.", "1"), ("Compute 2+2.", "4")]


def curate(tmp_path, train, held_out=HELD_OUT, seed=0, roles=None, others=None, **changes):
    """Runs the stage on (problem, answer[, solution]) rows; `others` has more sources by name. Returns its tables."""
    for source, rows in {"drill": train, "held_out": held_out, **(others or {})}.items():
        names = ("problem", "answer", "solution")
        own = [{"solution": None, **dict(zip(names, row, strict=False))} for row in rows]
        table = [
            {**row, "problem_id": f"{source}/{i}", "source": source, "licence": "MIT"} for i, row in enumerate(own)
        ]
        write_table(table, tmp_path / "collected" / f"{source}.parquet", PROBLEM)
    return run_curate(tmp_path, seed, roles, **changes)


def run_curate(tmp_path, seed=0, roles=None, **changes):
    """Runs the stage on the existing tables."""
    roles = roles or {"drill": "train", "held_out": "benchmark"}
    params = {"seed": seed, "curate": CURATE | changes, "verifier": VERIFIER}
    origin = {"kind": "local", "sha256": "ab12"}
    params["sources"] = {name: {"role": role, "licence": "MIT", "from": origin} for name, role in roles.items()}
    metrics = run_stage("curate", tmp_path / "out", params, collected=tmp_path / "collected")
    tables = {name: read_table(tmp_path / "out" / name, schema) for name, schema in OUTPUTS.items()}
    return {**tables, "metrics": metrics}


def reasons(tables):
    """Returns the reason of each dropped row, by id."""
    return dict(zip(tables["dropped"]["row_id"], tables["dropped"]["reason"], strict=True))


def test_every_reason_once(tmp_path):
    contradicting, ungradable = "contradicting_answers", "ungradable_answer"
    rows = [
        ("Compute 1+1.", "2", None, "1+1=2"),
        ("  compute  1 + 1", "2.0", "duplicate"),
        ("Compute 5+5.", "10", contradicting),
        ("Compute 5+5", "11", contradicting),  # the same problem, another answer: neither can be trusted
        ("Compute 2+2.", "4", "contaminated"),
        ("Compute 3+3.", " ", "no_answer"),
        ("?! ![a figure](pictures/a.png)", "7", "no_problem"),
        ("Compute " + "1+" * 150 + "1.", "151", "problem_too_long"),
        ("What colour?", "dark red", ungradable),
        ("Expand (x+1)^2.", "x^2+2x+1", ungradable),
        ("What is half of one?", "\\frac{1}{2}", None),
    ]
    tables = curate(tmp_path, [(problem, answer, *rest) for problem, answer, _, *rest in rows])
    assert tables["train"]["problem_id"].tolist() == ["drill/0", "drill/10"]
    assert tables["train"]["solution"].fillna("").tolist() == ["1+1=2", ""]
    assert reasons(tables) == {f"drill/{i}": reason for i, (_, _, reason, *_) in enumerate(rows) if reason}
    assert tables["metrics"] == {
        "rows/in": 11,
        "rows/kept": 2,
        "train/rows": 2,
        "validation/rows": 0,
        "contamination/pairs": 1,
        "held_out/rows": 2,
        "held_out/rows_hit": 1,
        **{f"dropped/{reason}": number for reason, number in Counter(reasons(tables).values()).items()},
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


STORY = "Tom has 3 apples and buys 4 more on the way home. How many apples does Tom have?"
STORIES = [(STORY.replace("3", "5"), "9"), (STORY.replace("Tom", "Ann"), "7"), ("Compute 1+2.", "3")]
NEAR = {"shingle_words": 1, "similarity": 0.7, "permutations": 128, "same_numbers": True}
HALVES = [("What is 3/6?", "1/2"), ("Compute 1+1.", "2")]


@pytest.mark.parametrize(
    ("train", "held_out", "changes", "dropped", "rules"),
    [
        (
            STORIES,
            [(STORY, "7")],
            {"decontamination": NONE | {"ngrams": {"words": 6, "shared_fraction": 0.5}}},
            dict.fromkeys(("drill/0", "drill/1"), "contaminated"),
            ["ngrams"] * 2,
        ),
        (
            STORIES,
            [(STORY, "7")],
            {"decontamination": NONE | {"near_duplicates": NEAR}},
            {"drill/1": "contaminated"},
            ["near_duplicates"],
        ),
        (
            STORIES,
            HELD_OUT,
            {"deduplication": {"exact": True, "near_duplicates": NEAR | {"same_numbers": False}}},
            {"drill/1": "near_duplicate"},
            [],
        ),
        ([("Compute 1+1.", "2")] * 2, HELD_OUT, {"deduplication": {"exact": False, "near_duplicates": None}}, {}, []),
        # A rewritten problem is still recognised.
        (HALVES, HALVES[:1], {"transform": {"kind": "integer"}}, {"drill/0": "contaminated"}, ["exact"]),
    ],
)
def test_duplicates_and_leaks_are_those_of_the_recipe(tmp_path, train, held_out, changes, dropped, rules):
    tables = curate(tmp_path, train, held_out, **changes)
    assert reasons(tables) == dropped and tables["contamination"]["rule"].tolist() == rules
    assert list(tables["validation"].columns) == PROBLEM.names


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
    assert len(fewer - validation) <= 4  # only places of removed rows get new rows
    limited = curate(tmp_path, SUMS, validation_rows=8, max_train_rows=10)
    assert len(limited["train"]) == 10 and set(limited["validation"]["problem_id"]) == validation
    assert limited["metrics"]["dropped/over_max_train_rows"] == 22


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation_rows": 40}, r"40 problems are left, but curate\.validation_rows is 40: lower it"),
        ({"train": HELD_OUT}, "0 problems are left"),
        ({"roles": {"drill": "train"}}, r"no entry of `sources` has role: benchmark"),
        (
            {"roles": {"drill": "train", "other": "train", "held_out": "benchmark"}},
            r"other\.parquet does not exist: `dvc repro collect@other`",
        ),
        ({"held_out": []}, r"held_out\.parquet has no rows"),
        ({"decontamination": NONE}, "decontamination must use at least one rule"),
        ({"decontamination": NONE | {"exact": True, "colour": "red"}}, r"decontamination\.colour"),
        (
            {"decontamination": NONE | {"ngrams": {"words": 8, "shared_fraction": 2}}},
            r"shared_fraction must be in \(0, 1\]",
        ),
    ],
)
def test_errors_name_what_to_do(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        curate(tmp_path, **{"train": SUMS, **changes})


KINDS = {
    AnswerKind.integer: ["1,234", "\\$5", "8/4", "$-3$"],
    AnswerKind.number: ["2.5", "28\\%", "\\frac{1}{3}"],
    AnswerKind.choice: ["C", "(B)"],
    AnswerKind.word: ["True"],
    AnswerKind.expression: ["x^2", "(1, 2)"],
    AnswerKind.prose: ["\\text{the red one}", "the red one"],
    None: ["", "  ."],
}


@pytest.mark.parametrize("kind", KINDS)
def test_answer_kinds(kind):
    assert {answer: answer_kind(answer) for answer in KINDS[kind]} == dict.fromkeys(KINDS[kind], kind)


def test_text_in_one_form():
    assert normalise_text("e\u0301\u00a0 x\r\n\r\n\r\n\n y \u200b\x00\ufeff") == "é x\n\ny"
    assert normalise_text(normalise_text(" a\t\tb\rc ")) == "a b\nc"


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


PERTURBED = r"""
3 | 4 || -9 | -10 || 199 | 200 || 0.25 | 1.25 || 1,999 | 2,999 || 3/4 | 4/4 || x_1 = 2 | x_1 = 3 || x^2+1 | x^2+2
\frac{\pi}{4} | \frac{\pi}{5} || x^2 | x^3 || (C) | (D) || J | A || True | False || no | Yes || east | noteast
x | 1+x || x+y | 1+x+y || f(x)=x | f(x)=1+x || five | 6 || \tbinom52 | \binom{6}{2} || \text{(B) }5 | (C) 6
A, C | A, D || \angle ABC | \angle ABD || \mathbb Z | \mathbb A || No solution | not No solution
n \text{ even} | not n even
"""


def test_perturbed_answers():
    table = dict(one.strip().split(" | ") for line in PERTURBED.strip().split("\n") for one in line.split("||"))
    assert {answer: perturbed_answer(answer) for answer in table} == table and len(table) == 26


@pytest.mark.parametrize(
    "answer",
    ["five", "f(x)=x", r"\tbinom52", r"\text{(B) }5", r"\overline{CD}", r"\mathbb Z", "No solution", r"\text{A, B}"],
)
def test_what_is_perturbed_is_another_answer(answer):
    found = decide(answer, extract_answer(boxed(perturbed_answer(answer))), require_marker=True)
    assert isinstance(found, Judgement)
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


def pairs_of(tables):
    """Returns the problem beside each duplicate, where both are, and by which rule."""
    columns = tables["duplicates"].set_index("problem_id")[["other_id", "scope", "rule"]]
    return {name: tuple(row) for name, row in columns.iterrows()}


def test_duplicates_within_and_across_sources(tmp_path):
    train = [("Compute 1+1.", "2"), ("Compute 1 + 1", "2"), ("Compute 5+5.", "10")]
    tables = curate(
        tmp_path,
        train,
        others={"more": [("compute 1+1", "2.0"), ("Please compute 5+5.", "10"), ("Compute 7+1.", "8")]},
        roles={"drill": "train", "more": "train", "held_out": "benchmark"},
        deduplication={"exact": True, "near_duplicates": NEAR | {"similarity": 0.6}},
    )
    assert pairs_of(tables) == {
        "drill/1": ("drill/0", "within_source", "exact"),
        "more/0": ("drill/0", "across_sources", "exact"),
        "more/1": ("drill/2", "across_sources", "near_duplicates"),
    }
    assert tables["duplicates"].iloc[-1][["other_problem", "similarity"]].tolist() == ["Compute 5+5.", 0.75]
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
    assert pairs_of(tables) == {
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
    id_again, missing = "duplicate_id", "missing_field"
    assert tables["dropped"]["reason"].tolist() == [id_again, missing, missing, id_again, missing]
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
    (tmp_path / "rates.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return rates_of(tmp_path / "rates.jsonl.gz", **changes)


def rates_of(file, **changes):
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    fields = {"problem_field": "question", "outcomes_field": "score"}
    bounds = {"least_pass_rate": 0.1, "most_pass_rate": 0.9}
    return {"kind": "pass_rates", "path": str(file), "sha256": sha256, **fields, **bounds, **changes}


def test_difficulty_from_pass_rates(tmp_path):
    measured = [
        ("compute 1 + 1", [True, False, False, False]),
        ("Compute 1+1.", [True, True, True, True]),  # measured again: 5 of 8
        ("Compute 1+2.", 0.0),
        ("Compute 1+3.", [True] * 4),
        ("What is half of 1?", 0.25),
        ("Compute 1+5.", "high"),
        ("Compute 1+5.", float("nan")),
        ("?", 1),
    ]
    lines = [json.dumps({"question": text, "score": score}) for text, score in measured]
    lines[6:6] = [json.dumps([1]), "{", "[" * 100_000]
    answers = {"Compute 1+1.": "2", "Compute 1+2.": "3", "Compute 1+3.": "4", "What is half of 1?": "1/2"}
    train = [*answers.items(), ("Compute 1+5.", "6")]
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
    rules = NONE | {"exact": True, "templates": {"similarity": 0.6, "reworded_similarity": 0.1}}
    tables = curate(tmp_path, train, [(story.format(200, 300), "500")] * 2, decontamination=rules)
    assert tables["metrics"]["dropped/contaminated"] == 98 and len(tables["train"]) == 1
    assert tables["metrics"]["contamination/pairs_template"] == 2 * 98
    assert tables["contamination"]["benchmark_problem_id"].value_counts().tolist() == [50, 50]


@pytest.mark.skipif(not ROLLOUTS.is_file(), reason=f"the recorded responses ({ROLLOUTS}) are not on this machine")
def test_pass_rates_of_recorded_responses():
    """Checks the bands of 100 problems of MATH, with 8 responses each and verdicts."""
    rates, unusable = read_pass_rates(PassRates(**rates_of(ROLLOUTS)))
    assert len(rates) == 100 and not unusable
    assert {samples for _, samples in rates.values()} == {8}
    assert len({band(rate) for rate, _ in rates.values()}) >= 4


def filtered(tmp_path, monkeypatch, source, train, fraction=0.5):
    monkeypatch.setattr("stages.engines.custom_functions.custom_file", lambda name: tmp_path / "mine.py")
    monkeypatch.setitem(VERIFIER, "abort_undecided_fraction", fraction)
    (tmp_path / "mine.py").write_text(source)
    return curate(tmp_path, train, filter={"kind": "function", "file": "custom/mine.py", "name": "keep"})


TO_FILTER = [
    ("Compute 1+1.", "2", "1+1=2"),
    ("Compute 1+1", "2"),  # a duplicate of the first, which the filter drops
    ("Compute 3+3.", "6"),
    ("Compute 4+4.", "8"),
    ("Compute 5+5.", "10"),
]


def test_a_function_of_the_users_drops_problems_before_duplicates_are_looked_for(tmp_path, monkeypatch):
    """The function gets no benchmark problems: it would fail on them."""
    source = """
def keep(problem, answer, solution, source):
    assert source == "drill"
    if solution:
        return "has a\\nsolution"
    return {"6": False, "8": None}.get(answer, True)
"""
    tables = filtered(tmp_path, monkeypatch, source, TO_FILTER)
    assert tables["train"]["problem_id"].tolist() == ["drill/1", "drill/4"]
    dropped = tables["dropped"].set_index("row_id")[["reason", "detail"]]
    assert [tuple(row) for row in dropped.to_numpy()] == [
        ("custom_filter", "has a solution"),
        ("custom_filter", ""),
        ("filter_failed", "it returned None, which is no finite number"),
    ]
    assert tables["metrics"]["dropped/custom_filter"] == 2 and tables["metrics"]["dropped/filter_failed"] == 1


def test_a_filter_may_see_all_rows(tmp_path, monkeypatch):
    source = "def keep(rows): return [len(rows) - 4] + [row['answer'] == '6' for row in rows[1:]]"
    assert filtered(tmp_path, monkeypatch, source, TO_FILTER)["train"]["answer"].tolist() == ["2", "6"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def keep(answer): return answer == '2' or 2",
            "failed on 3 of 5 .*the first: it returned 2, which is neither",
        ),
        ("def keep(licence, difficulty): return True", "wants difficulty, which no row has: a row has problem_id, so"),
    ],
)
def test_a_filter_that_fails_stops_the_stage_in_one_sentence(tmp_path, monkeypatch, source, message):
    with pytest.raises(UserError, match=message):
        filtered(tmp_path, monkeypatch, source, TO_FILTER)
    assert not (tmp_path / "out" / "train").exists()
