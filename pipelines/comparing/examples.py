"""The problems that one side wins and the other loses, with what each said. A bounded number, and the page says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas

from pipelines.comparing.results import Findings
from pipelines.comparing.scoring import Benchmark
from pipelines.comparing.sides import Side
from stages.foundations.legible import legible

CHARACTERS = 1_500
"""Of a text; the page says where one was cut."""
RESPONSES = 3
"""Of each side to a problem: the greedy one, then the first sampled ones, of the first seed."""
PROBLEMS_ON_THE_PAGE = 400
"""Over all comparisons: about 8 MB where every text is as long as allowed."""


@dataclass(frozen=True)
class Response:
    """One response, made legible."""

    mode: str
    text: str
    verdict: str
    is_correct: bool


@dataclass(frozen=True)
class Problem:
    """One problem that the sides answer differently."""

    name: str
    first_score: float
    second_score: float
    text: str
    answer: str
    first: list[Response]
    second: list[Response]


@dataclass(frozen=True)
class Outcome:
    """Problems won or lost by the second side."""

    count: int
    shown: list[Problem]


@dataclass(frozen=True)
class Examples:
    """One benchmark, one pair."""

    benchmark: str
    metric: str
    first: str
    second: str
    wins: Outcome
    losses: Outcome
    ties: int
    without_text: list[str]
    """Sides whose responses are not to be had."""


def examples(findings: Findings, families: Sequence[str], problems: int) -> list[Examples]:
    """Of each pair and benchmark, on the first metric: at most `problems` won and as many lost, the largest first."""
    pairs = list(dict.fromkeys((one.first, one.second) for one in findings.comparisons))
    sides = {side.name: side for side in findings.sides}
    most = min(problems, max(1, PROBLEMS_ON_THE_PAGE // (2 * len(pairs) * len(findings.benchmarks))))
    return [
        _examples(findings, benchmark, benchmark.metrics(families)[0], sides[first], sides[second], most)
        for first, second in pairs
        for benchmark in findings.benchmarks
        if benchmark.metrics(families)
    ]


def _examples(
    findings: Findings, benchmark: Benchmark, metric: str, first: Side, second: Side, most: int
) -> Examples:
    scores = [findings.scores[side.name, benchmark.name][metric] for side in (first, second)]
    table = pandas.DataFrame({"first": scores[0], "second": scores[1]})
    table["gain"] = (table["second"] - table["first"]).round(12)
    rows = [_rows(side, benchmark.name) for side in (first, second)]
    outcomes = []
    for sign in (1, -1):
        own = table[sign * table["gain"] > 0].assign(size=lambda frame: -frame["gain"].abs())
        own = own.sort_values("size", kind="stable")
        outcomes.append(Outcome(len(own), [_problem(row, rows) for row in own.head(most).itertuples()]))
    without = [side.name for side, own in zip((first, second), rows, strict=True) if own is None]
    ties = int((table["gain"] == 0).sum())
    return Examples(benchmark.name, metric, first.name, second.name, outcomes[0], outcomes[1], ties, without)


def _rows(side: Side, benchmark: str) -> dict[str, pandas.DataFrame] | None:
    """The first seed's responses by problem, greedy ones first."""
    responses = side.answers[0].responses
    if responses is None:
        return None
    own = responses[responses["benchmark"] == benchmark].sort_values(["mode", "sample_index"], kind="stable")
    return {str(name): group.head(RESPONSES) for name, group in own.groupby("problem_id", sort=False)}


def _problem(row, rows: Sequence[dict[str, pandas.DataFrame] | None]) -> Problem:
    own = [table.get(row.Index) if table else None for table in rows]
    known = next((table for table in own if table is not None), None)
    text, answer = ("", "") if known is None else known.iloc[0][["problem", "answer"]]
    said = [[] if table is None else [_response(one) for one in table.itertuples()] for table in own]
    return Problem(
        legible(str(row.Index), 200),
        row.first,
        row.second,
        legible(text, CHARACTERS),
        legible(answer, 200),
        *said,
    )


def _response(row) -> Response:
    return Response(
        row.mode, legible(row.response, CHARACTERS), row.verdict.replace("_", " "), row.verdict == "correct"
    )
