"""Responses on the page: a few problems with each policy's response, and statistics of search by trial.

Problems and responses are untrusted text: the template shows invisible characters and escapes everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.pages.drawing import Chart, bars
from stages.report.inputs import Inputs

_OUTCOMES = {
    (False, True): "{last} right, {first} wrong",
    (False, False): "both wrong",
    (True, False): "{last} wrong, {first} right",
    (True, True): "both right",
}
"""Keys: (first policy is correct, last policy is correct). In the order in which problems of each kind are taken."""


def choose_examples(inputs: Inputs, count: int, baseline: str, last: str | None) -> list[dict[str, Any]]:
    """Returns problems of each outcome in turn, in the benchmark's order: an illustration, not a random sample.

    Shows the greedy response, or the first sampled one if there is no greedy response.
    """
    shown = {policy: _shown(rows) for policy, rows in inputs.responses.items()}
    if not shown or not count:
        return []
    # Responses may no longer exist for all graded policies.
    last = last if last in shown else list(shown)[-1]
    first = baseline if baseline in shown else next(iter(shown))
    examples = []
    for key, outcome in _in_turn(shown[first], shown[last], count):
        words = _OUTCOMES[outcome].format(first=first, last=last)
        if first == last:
            words = "right" if outcome[1] else "wrong"
        responses = [
            _response(policy, rows.loc[key], inputs.responses[policy])
            for policy, rows in shown.items()
            if key in rows.index
        ]
        problem = shown[last].loc[key, ["problem", "answer"]].to_dict()
        examples.append({"benchmark": key[0], "id": key[1], **problem, "outcome": words, "responses": responses})
    return examples


def _shown(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Returns one response of each problem, by (benchmark, problem id), in the table's order of problems."""
    ranked = rows.assign(is_sampled=rows["mode"] != "greedy", place=range(len(rows)))
    # The greedy response first, then the first sample.
    ranked = ranked.sort_values(["is_sampled", "sample_index", "place"])
    picked = ranked.drop_duplicates(["benchmark", "problem_id"]).sort_values("place")
    return picked.set_index(["benchmark", "problem_id"])


def _in_turn(
    first: pandas.DataFrame, last: pandas.DataFrame, count: int
) -> list[tuple[tuple[str, str], tuple[bool, bool]]]:
    kinds: dict[tuple[bool, bool], list[tuple[str, str]]] = {outcome: [] for outcome in _OUTCOMES}
    was_correct = (first["verdict"] == Verdict.CORRECT.value).to_dict()
    for key, verdict in last["verdict"].items():
        # A problem that only one of the two policies has answered has no outcome to show.
        if key in was_correct:
            kinds[was_correct[key], verdict == Verdict.CORRECT.value].append(key)
    chosen = []
    while len(chosen) < count and any(kinds.values()):
        chosen += [(keys.pop(0), outcome) for outcome, keys in kinds.items() if keys]
    return chosen[:count]


def _response(policy: str, row: pandas.Series, rows: pandas.DataFrame) -> dict[str, Any]:
    """Returns one policy's response; `samples` is 0 when it has only a greedy response."""
    benchmark, problem_id = row.name
    samples = rows[(rows["benchmark"] == benchmark) & (rows["problem_id"] == problem_id) & (rows["mode"] == "sampled")]
    return {
        "policy": policy,
        "text": row["response"],
        "verdict": row["verdict"].replace("_", " "),
        "is_correct": row["verdict"] == Verdict.CORRECT.value,
        "tokens": int(row["response_tokens"]),
        "is_truncated": bool(row["is_truncated"]),
        "correct_samples": int((samples["verdict"] == Verdict.CORRECT.value).sum()),
        "samples": len(samples),
        "episode": None if row.get("observed_characters") is None else _episode(row),
    }


def _episode(row: pandas.Series) -> dict[str, Any]:
    """Returns the course of a response of several turns; its segments are (text, whether the environment wrote it)."""
    cuts = [0, *row["observed_characters"], len(row["response"])]
    # Policy and environment alternate: every second stretch between two cuts was observed.
    segments = [(row["response"][a:b], place % 2 == 1) for place, (a, b) in enumerate(pairwise(cuts)) if a < b]
    counts = {name: int(row[name]) for name in ("turns", "calls", "failed_calls")}
    # pandas has NaN for a missing text.
    ending, fault = (text if isinstance(text, str) else "" for text in (row["ending"], row["environment_fault"]))
    return {"segments": segments, **counts, "ending": ending.replace("_", " "), "fault": fault}


_SHARES = {
    "no trial at all": "without_trials_fraction",
    "trials that repeat": "repeated_trial_fraction",
    "trials that are wrong": "wrong_trial_fraction",
}
_SOLVED = {"by every sample": "always_solved_fraction", "by none": "never_solved_fraction"}
_WORDS = "keyword_rate_"
# A chart has five colours.
_MOST_WORDS = 5


@dataclass(frozen=True)
class Search:
    """One benchmark's part of the section."""

    benchmark: str
    sentences: list[str]
    """Changes from the baseline to each policy of a round."""
    charts: list[Chart]


def describe_search(inputs: Inputs, baseline: str) -> list[Search]:
    """Returns an entry for each benchmark whose responses consist of trials; empty if there is none."""
    keys = {key for policy in inputs.graded for key in inputs.grades(policy)}
    names = sorted(key.removesuffix("/trials_mean") for key in keys if key.endswith("/trials_mean"))
    return [_search(inputs, name, baseline, number, keys) for number, name in enumerate(names, start=1)]


def _search(inputs: Inputs, benchmark: str, baseline: str, number: int, keys: Collection[str]) -> Search:
    start = f"{benchmark}/{_WORDS}"
    words = sorted(key.removeprefix(start) for key in keys if key.startswith(start))[:_MOST_WORDS]
    columns_of_words = {f"“{word.replace('_', ' ')}”": _WORDS + word for word in words}
    panels = [
        ("trials", "Trials of a response", "trials", {"mean": "trials_mean"}),
        ("claims", "“Yes” to a wrong pair", "%", {"of all claims": "false_claim_fraction"}),
        ("shares", "How responses search", "%", _SHARES),
        ("words", "Responses with words of retrying", "%", columns_of_words),
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
    by_label = {
        label: {
            policy: value
            for policy in inputs.graded
            if (value := inputs.grades(policy).get(f"{benchmark}/{column}")) is not None
        }
        for label, column in columns.items()
    }
    return {label: values for label, values in by_label.items() if values}


def _sentence(inputs: Inputs, benchmark: str, baseline: str, policy: str) -> str:
    """Describes changes from one policy to another: trials, length, truncated responses, false claims."""

    def both(column: str, factor: int, digits: int, unit: str) -> str:
        values = (inputs.grades(name).get(f"{benchmark}/{column}") for name in (baseline, policy))
        # A number may be missing, because grades are not validated.
        first, second = ("?" if value is None else f"{value * factor:.{digits}f}{unit}" for value in values)
        return f"{first} to {second}"

    return (
        f"From {baseline} to {policy}: {both('trials_mean', 1, 1, '')} trials a response, "
        f"{both('response_tokens_mean', 1, 0, '')} tokens, {both('truncated_fraction', 100, 1, '%')} cut off; "
        f"{both('without_trials_fraction', 100, 1, '%')} answer without a trial, and "
        f"{both('false_claim_fraction', 100, 1, '%')} of the claims are false."
    )
