"""What the page says of responses that search by trial: how much they try, what they repeat, claim and give up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas

from stages.pages.drawing import Chart
from stages.report.charts import branch_chart, value_chart
from stages.report.inputs import Inputs

_SHARES = {
    "no trial at all": "without_trials_fraction",
    "trials that repeat": "repeated_trial_fraction",
    "trials that are wrong": "wrong_trial_fraction",
}
_SOLVED = {"by every sample": "always_solved_fraction", "by none": "never_solved_fraction"}
_WORDS = "keyword_rate_"
_MOST_WORDS = 5
BRANCHED = {
    "Response length, by round": ("length/response_tokens_mean", "tokens"),
    "Cut off, by round": ("length/truncated_fraction", "%"),
    "Accuracy on training problems, by round": ("accuracy/mean", "%"),
}
"""Title -> column and unit of the curves that are drawn where rounds start from one policy."""


@dataclass(frozen=True)
class Search:
    """One benchmark's part of the section."""

    benchmark: str
    sentences: list[str]
    """What changed from the baseline to each policy of a round."""
    charts: list[Chart]


def describe_search(inputs: Inputs, baseline: str) -> list[Search]:
    """An entry for each benchmark whose responses are made of trials; empty for other benchmarks."""
    names = sorted(
        {
            key.rpartition("/")[0]
            for policy in inputs.graded
            for key in inputs.grades(policy)
            if key.endswith("/trials_mean")
        }
    )
    return [_describe(inputs, name, baseline, number) for number, name in enumerate(names, start=1)]


def branch_charts(inputs: Inputs) -> list[Chart]:
    """Curves of the rounds that start from one policy, each its own line; empty where none do."""
    starts = [start for name, start in inputs.rounds.items() if name in inputs.round_curves]
    together = [name for name in inputs.round_curves if starts.count(inputs.rounds[name]) > 1]
    found = []
    for title, (column, unit) in BRANCHED.items():
        curves = _with_column(inputs.round_curves, together, column)
        if len(curves) > 1:
            found.append(branch_chart(f"branch-{column.replace('/', '-')}", title, column, unit, curves))
    return found


def _with_column(
    curves: Mapping[str, pandas.DataFrame], names: Sequence[str], column: str
) -> dict[str, pandas.DataFrame]:
    return {name: curves[name] for name in names if column in curves[name]}


def _describe(inputs: Inputs, benchmark: str, baseline: str, number: int) -> Search:
    words = sorted(
        {
            key.partition(_WORDS)[2]
            for policy in inputs.graded
            for key in inputs.grades(policy)
            if key.startswith(f"{benchmark}/{_WORDS}")
        }
    )[:_MOST_WORDS]
    said = {f"“{word.replace('_', ' ')}”": _WORDS + word for word in words}
    panels = [
        ("trials", "Trials of a response", "trials", {"mean": "trials_mean"}),
        ("claims", "“Yes” to a wrong pair", "%", {"of all claims": "false_claim_fraction"}),
        ("shares", "How responses search", "%", _SHARES),
        ("words", "Responses with words of retrying", "%", said),
        ("solved", "Problems that are solved", "%", _SOLVED),
    ]
    charts = [
        value_chart(f"search-{name}-{number}", title, unit, series)
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
