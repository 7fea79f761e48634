"""Scores of policies on benchmarks, as the `grade` stage wrote them, and which of their differences are real."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.comparisons import PairedDifference, compare_paired
from stages.algorithms.estimators import Interval
from stages.report.inputs import Inputs, Metrics

FAMILIES = ("greedy", "avg", "pass", "maj")
"""Scores in the order in which they are shown."""

_SCORE = re.compile(r"(?P<family>greedy|(?:avg|pass|maj)(?=_at_))(?:_at_(?P<k>\d+))?")


@dataclass(frozen=True)
class Comparison:
    """A policy against the baseline on the problems that both answered."""

    benchmark: str
    metric: str
    """`greedy` or `avg_at_<k>`."""
    baseline: str
    policy: str
    difference: PairedDifference
    """Policy minus baseline, as fractions."""


def benchmark_names(inputs: Inputs) -> list[str]:
    """Benchmarks that some policy has a score on, sorted."""
    names = set()
    for policy in inputs.graded:
        for key in inputs.grades(policy):
            benchmark, _, metric = key.rpartition("/")
            if benchmark and _SCORE.fullmatch(metric):
                names.add(benchmark)
    return sorted(names)


def metric_names(inputs: Inputs, benchmark: str) -> list[str]:
    """One metric of each family that some policy has, the one with the largest k, in the order of `FAMILIES`."""
    largest: dict[str, int] = {}
    for policy in inputs.graded:
        for key in inputs.grades(policy):
            name, _, metric = key.rpartition("/")
            match = _SCORE.fullmatch(metric)
            if match and name == benchmark:
                family, k = match["family"], int(match["k"] or 0)
                largest[family] = max(k, largest.get(family, 0))
    return [
        "greedy" if family == "greedy" else f"{family}_at_{largest[family]}"
        for family in FAMILIES
        if family in largest
    ]


def metric_label(metric: str) -> str:
    """`avg_at_8` as people write it: avg@8."""
    return metric.replace("_at_", "@")


def score(grades: Metrics, benchmark: str, metric: str) -> Interval | None:
    """A score with its interval, as fractions; None when it or its interval is missing."""
    name = f"{benchmark}/{metric}"
    values = [grades.get(name + end) for end in ("", "_low", "_high")]
    return None if None in values else Interval(*values)


def pass_scores(grades: Metrics, benchmark: str) -> dict[int, Interval]:
    """pass@k by k, all that there are, smallest k first."""
    found: dict[int, Interval] = {}
    for key in grades:
        name, _, metric = key.rpartition("/")
        match = _SCORE.fullmatch(metric)
        if name == benchmark and match and match["family"] == "pass":
            own = score(grades, benchmark, metric)
            found |= {int(match["k"]): own} if own else {}
    return dict(sorted(found.items()))


def last_policy(inputs: Inputs) -> str | None:
    """The graded policy of the last RL round; without one, the last graded policy."""
    graded = inputs.graded
    of_rounds = [name for name in inputs.rounds if name in graded]
    return (of_rounds or graded or [None])[-1]


def policy_before_rl(inputs: Inputs) -> str | None:
    """The policy that the first of the last policy's rounds began from; the last policy where no round made it."""
    policy = last_policy(inputs)
    while policy in inputs.rounds:
        policy = inputs.rounds[policy]
    return policy


def compare(inputs: Inputs, benchmark: str, metric: str, baseline: str, policy: str) -> Comparison | None:
    """The paired difference; None when a policy is missing or they have no problem in common.

    A problem's score is the mean over its responses, so that all responses of a problem stay together. An undecided
    verdict counts as not correct, as it does in the scores.
    """
    mode = "greedy" if metric == "greedy" else "sampled"
    scores = [problem_scores(inputs, name, benchmark, mode) for name in (baseline, policy)]
    if baseline == policy or any(own is None for own in scores):
        return None
    both = pandas.concat(scores, axis=1, join="inner", keys=["first", "second"]).sort_index()
    if both.empty:
        return None
    return Comparison(benchmark, metric, baseline, policy, compare_paired(both["first"], both["second"]))


def problem_scores(inputs: Inputs, policy: str, benchmark: str, mode: str) -> pandas.Series | None:
    """Share of correct responses of each problem, by problem id; None without responses."""
    rows = inputs.responses.get(policy)
    if rows is None:
        return None
    rows = rows[(rows["benchmark"] == benchmark) & (rows["mode"] == mode)]
    if rows.empty:
        return None
    return (rows["verdict"] == Verdict.CORRECT.value).groupby(rows["problem_id"]).mean()
