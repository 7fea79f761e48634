"""collect: every file of the shared mirror is read by a declarative field map."""

import json
from pathlib import Path

import pytest

from stages.collect.run import collect_source
from stages.collect.stage import SourceParams
from stages.foundations.machine import MIRROR_VARIABLE

MIRROR = Path(__file__).parents[2].parent / "shared" / "data" / "mirror"
PLAIN = {"problem": "problem", "answer": "answer", "solution": None}
GSM8K = {
    "problem": "question",
    "answer": {"kind": "after", "field": "answer", "marker": "####"},
    "solution": {"kind": "before", "field": "answer", "marker": "####", "strip": ["<<[^>]*>>"]},
}
PROBLEM = {"problem": "problem", "answer": "answer", "solution": "solution"}
LISTED = {"kind": "listed", "open": "", "separator": ", ", "close": ""}
MIRRORED = {
    "gsm8k/train": (GSM8K, 7473, "72"),
    "gsm8k/test": (GSM8K, 1319, "18"),
    "math/math500": (PROBLEM, 500, "\\left( 3, \\frac{\\pi}{2} \\right)"),
    "math/train": (PLAIN, 7470, "0"),
    "math/test": ({**PROBLEM, "answer": {"kind": "boxed", "field": "solution"}}, 5000, "2"),
    "aime/aime_1983_2023": (PROBLEM, 975, "60"),
    "aime/aime24": (PROBLEM, 30, "204"),
    "aime/aime25": ({"problem": "problem", "answer": "expected_answer", "solution": "reference_solution"}, 30, "70"),
    "amc/amc23": (PLAIN, 40, "27"),
    "theoremqa/test": (
        {"problem": "Question", "answer": {**LISTED, "field": "Answer", "open": "[", "close": "]"}, "solution": None},
        747,
        "11760",
    ),
    "mmlu_stem/test": (
        {
            "problem": {"kind": "choices", "field": "question", "choices": "choices"},
            "answer": {"kind": "choice_letter", "field": "answer"},
            "solution": None,
        },
        3018,
        "C",
    ),
    "svamp/test": (
        {
            "problem": {"kind": "joined", "fields": ["Body", "Question"], "separator": " "},
            "answer": "Answer",
            "solution": None,
        },
        1000,
        "145",
    ),
    "olympiadbench/test": (
        {
            "problem": "question",
            "answer": {**LISTED, "field": "final_answer"},
            "solution": {**LISTED, "field": "solution", "separator": "\n\n"},
        },
        675,
        "2",
    ),
}


@pytest.mark.skipif(not MIRROR.is_dir(), reason=f"needs the files of {MIRROR}")
@pytest.mark.parametrize("name", MIRRORED)
def test_each_file_of_the_mirror_has_a_field_map(name, monkeypatch):
    known = {entry["name"]: entry for entry in json.loads((MIRROR / "sources.json").read_text())}
    assert set(known) == set(MIRRORED)
    fields, rows, first_answer = MIRRORED[name]
    origin = {
        "kind": "url",
        **{key: known[name][key] for key in ("url", "sha256", "format")},
        "fields": fields,
        "only": {"Picture": [None]} if name == "theoremqa/test" else {},
        "max_rows": None,
    }
    source = SourceParams.model_validate({"role": "benchmark", "licence": "MIT", "from": origin})
    monkeypatch.setenv(MIRROR_VARIABLE, str(MIRROR))
    problems, funnel = collect_source("some", source)
    assert len(problems) == rows and problems[0]["answer"] == first_answer
    assert set(funnel.dropped_frame()["reason"]) <= {"missing_answer", "not_selected"}
    solutions = [problem["solution"] for problem in problems if problem["solution"]]
    if fields["solution"]:
        assert len(solutions) > 0.9 * rows
    if name.startswith("gsm8k"):
        assert not any("<<" in solution or "####" in solution for solution in solutions)
