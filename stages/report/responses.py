"""Responses on the page: a few problems with what each policy answered, and how responses search by trial.

Problems and responses are hostile text until they are escaped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.foundations.legible import legible
from stages.pages.drawing import Chart, bars
from stages.report.inputs import Inputs
from stages.report.params import ReportParams

_OUTCOMES = {
    (False, True): "{last} right, {first} wrong",
    (False, False): "both wrong",
    (True, False): "{last} wrong, {first} right",
    (True, True): "both right",
}
"""Keys: the first policy is right, the last one is. In the order in which problems of each kind are taken."""


@dataclass(frozen=True)
class ExampleResponse:
    """What one policy said."""

    policy: str
    text: str
    verdict: str
    is_correct: bool
    tokens: int
    is_truncated: bool
    correct_samples: int
    samples: int
    """Sampled responses of this policy to the problem; 0 when it was only asked greedily."""


@dataclass(frozen=True)
class Example:
    """One problem."""

    benchmark: str
    problem_id: str
    problem: str
    answer: str
    outcome: str
    responses: list[ExampleResponse]


def choose_examples(inputs: Inputs, params: ReportParams, last: str | None) -> list[Example]:
    """Problems of each outcome in turn, the first of each in the benchmark's order: an illustration, no sample.

    Shown is the greedy response, or the first sampled one where there is no greedy one.
    """
    shown = {policy: _shown(rows) for policy, rows in inputs.responses.items()}
    if not shown or not params.example_problems:
        return []
    last = last if last in shown else list(shown)[-1]
    first = params.baseline_policy if params.baseline_policy in shown else next(iter(shown))
    chosen = _in_turn(shown[first], shown[last], params.example_problems)
    return [_example(inputs, params, shown, key, outcome, first, last) for key, outcome in chosen]


def _shown(rows: pandas.DataFrame) -> pandas.DataFrame:
    """One response of each problem, by (benchmark, problem id), in the table's order of problems."""
    ranked = rows.assign(is_sampled=rows["mode"] != "greedy", place=range(len(rows)))
    ranked = ranked.sort_values(["is_sampled", "sample_index", "place"])
    picked = ranked.drop_duplicates(["benchmark", "problem_id"]).sort_values("place")
    return picked.set_index(["benchmark", "problem_id"])


def _in_turn(
    first: pandas.DataFrame, last: pandas.DataFrame, count: int
) -> list[tuple[tuple[str, str], tuple[bool, bool]]]:
    kinds: dict[tuple[bool, bool], list[tuple[str, str]]] = {outcome: [] for outcome in _OUTCOMES}
    was_correct = (first["verdict"] == Verdict.CORRECT.value).to_dict()
    for key, verdict in last["verdict"].items():
        if key in was_correct:
            kinds[was_correct[key], verdict == Verdict.CORRECT.value].append(key)
    chosen = []
    while len(chosen) < count and any(kinds.values()):
        chosen += [(keys.pop(0), outcome) for outcome, keys in kinds.items() if keys]
    return chosen[:count]


def _example(
    inputs: Inputs,
    params: ReportParams,
    shown: dict[str, pandas.DataFrame],
    key: tuple[str, str],
    outcome: tuple[bool, bool],
    first: str,
    last: str,
) -> Example:
    words = _OUTCOMES[outcome].format(first=first, last=last)
    if first == last:
        words = "right" if outcome[1] else "wrong"
    row = shown[last].loc[key]
    return Example(
        benchmark=key[0],
        problem_id=legible(key[1], params.example_characters),
        problem=legible(row["problem"], params.example_characters),
        answer=legible(row["answer"], params.example_characters),
        outcome=words,
        responses=[
            _response(policy, rows.loc[key], inputs.responses[policy], params.example_characters)
            for policy, rows in shown.items()
            if key in rows.index
        ],
    )


def _response(policy: str, row: pandas.Series, rows: pandas.DataFrame, characters: int) -> ExampleResponse:
    benchmark, problem_id = row.name
    own = rows[(rows["benchmark"] == benchmark) & (rows["problem_id"] == problem_id) & (rows["mode"] == "sampled")]
    return ExampleResponse(
        policy=policy,
        text=legible(row["response"], characters),
        verdict=row["verdict"].replace("_", " "),
        is_correct=row["verdict"] == Verdict.CORRECT.value,
        tokens=int(row["response_tokens"]),
        is_truncated=bool(row["is_truncated"]),
        correct_samples=int((own["verdict"] == Verdict.CORRECT.value).sum()),
        samples=len(own),
    )


_SHARES = {
    "no trial at all": "without_trials_fraction",
    "trials that repeat": "repeated_trial_fraction",
    "trials that are wrong": "wrong_trial_fraction",
}
_SOLVED = {"by every sample": "always_solved_fraction", "by none": "never_solved_fraction"}
_WORDS = "keyword_rate_"
_MOST_WORDS = 5


@dataclass(frozen=True)
class Search:
    """One benchmark's part of the section."""

    benchmark: str
    sentences: list[str]
    """What changed from the baseline to each policy of a round."""
    charts: list[Chart]


def describe_search(inputs: Inputs, baseline: str) -> list[Search]:
    """An entry for each benchmark whose responses are made of trials; empty for other benchmarks."""
    keys = {key for policy in inputs.graded for key in inputs.grades(policy)}
    names = sorted(key.removesuffix("/trials_mean") for key in keys if key.endswith("/trials_mean"))
    return [_search(inputs, name, baseline, number, keys) for number, name in enumerate(names, start=1)]


def _search(inputs: Inputs, benchmark: str, baseline: str, number: int, keys: Collection[str]) -> Search:
    start = f"{benchmark}/{_WORDS}"
    words = sorted(key.removeprefix(start) for key in keys if key.startswith(start))[:_MOST_WORDS]
    said = {f"“{word.replace('_', ' ')}”": _WORDS + word for word in words}
    panels = [
        ("trials", "Trials of a response", "trials", {"mean": "trials_mean"}),
        ("claims", "“Yes” to a wrong pair", "%", {"of all claims": "false_claim_fraction"}),
        ("shares", "How responses search", "%", _SHARES),
        ("words", "Responses with words of retrying", "%", said),
        ("solved", "Problems that are solved", "%", _SOLVED),
    ]
    charts = [
        bars(f"search-{name}-{number}", title, unit, series)
        for name, title, unit, columns in panels
        if (series := _series(inputs, benchmark, columns))
    ]
    sentences = [
        _sentence(inputs, benchmark, baseline, policy)
        for policy in inputs.rounds
        if policy in inputs.graded and baseline in inputs.graded and policy != baseline
    ]
    return Search(benchmark, sentences, charts)


def _series(inputs: Inputs, benchmark: str, columns: Mapping[str, str]) -> dict[str, dict[str, float]]:
    found = {
        label: {
            policy: value
            for policy in inputs.graded
            if (value := inputs.grades(policy).get(f"{benchmark}/{column}")) is not None
        }
        for label, column in columns.items()
    }
    return {label: values for label, values in found.items() if values}


def _sentence(inputs: Inputs, benchmark: str, baseline: str, policy: str) -> str:
    """From one policy to another: trials, length, cut-off responses, false claims."""

    def both(column: str, factor: int, digits: int, unit: str) -> str:
        values = (inputs.grades(name).get(f"{benchmark}/{column}") for name in (baseline, policy))
        first, second = ("?" if value is None else f"{value * factor:.{digits}f}{unit}" for value in values)
        return f"{first} to {second}"

    return (
        f"From {baseline} to {policy}: {both('trials_mean', 1, 1, '')} trials a response, "
        f"{both('response_tokens_mean', 1, 0, '')} tokens, {both('truncated_fraction', 100, 1, '%')} cut off; "
        f"{both('without_trials_fraction', 100, 1, '%')} answer without a trial, and "
        f"{both('false_claim_fraction', 100, 1, '%')} of the claims are false."
    )
