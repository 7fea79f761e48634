"""The page's section on each benchmark: the headline, the table of policies, the plots, published figures.

The second half reads the scores that stage `grade` wrote, and tests which of their differences are significant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.estimators import FEWEST_PROBLEMS, Interval, PairedDifference, compare_paired
from stages.pages.drawing import SERIES, Chart, Line, bars, lines
from stages.pages.page import metric_label, points
from stages.report.inputs import Inputs, Metrics
from stages.report.stage import PublishedFigure, ReportParams

_TITLES = {"greedy": "Greedy", "avg": "Mean of samples", "pass": "Any of the samples", "maj": "Majority of samples"}
# Shown in this order, before the rates of keywords, which the parameters name.
_OTHER = ("unparsed_fraction", "exhausted_fraction", "verifier_failed_fraction", "branching_frequency", "coding_rate")


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


@dataclass(frozen=True)
class PolicyRow:
    """A line of the table."""

    policy: str
    scores: list[Interval | None]
    difference: Comparison | None
    """Difference to the baseline, on the headline's metric."""
    response_tokens: float | None
    truncated_fraction: float | None
    undecided_fraction: float | None


@dataclass(frozen=True)
class Benchmark:
    """One benchmark's part of the page."""

    name: str
    number: int
    problems: int | None
    metrics: list[str]
    """Score names, in the order of the table's columns."""
    headline_metric: str
    headline: list[tuple[str, Interval]]
    """First policy, baseline, policy before RL, and last policy, with the headline's score."""
    comparisons: list[Comparison]
    """Last policy against the baseline, then against the policy that RL started from if that is another one; each on
    the headline's metric, then greedy."""
    rows: list[PolicyRow]
    charts: list[Chart]
    other: dict[str, list[tuple[str, float | None]]]
    """Further measures by name: policy and value."""
    published: list[PublishedFigure]
    beside_published: list[tuple[str, Interval]]
    """The last policy's scores on the published metrics and on the headline's."""


def describe_benchmarks(inputs: Inputs, params: ReportParams) -> list[Benchmark]:
    """Returns an entry for each benchmark on which some policy was graded."""
    return [_describe(inputs, params, name, number) for number, name in enumerate(benchmark_names(inputs), start=1)]


def _describe(inputs: Inputs, params: ReportParams, name: str, number: int) -> Benchmark:
    metrics = metric_names(inputs, name)
    # avg@k uses every sample of a problem, so its interval is the narrowest.
    headline_metric = next((metric for metric in metrics if metric.startswith("avg")), metrics[0])
    last = last_policy(inputs)
    baseline = params.baseline_policy
    differences = {policy: compare(inputs, name, headline_metric, baseline, policy) for policy in inputs.graded}
    before_rl = policy_before_rl(inputs)
    compared = list(dict.fromkeys([headline_metric, *(["greedy"] if "greedy" in metrics else [])]))
    comparisons = [
        compare(inputs, name, metric, start, last)
        # They may be the same policy, whose comparison is then shown once.
        for start in dict.fromkeys([baseline, before_rl])
        for metric in compared
    ]
    chosen = [inputs.graded[0], baseline, before_rl, last]
    shown = dict.fromkeys(policy for policy in chosen if policy in inputs.graded)
    scores = {policy: score(inputs.grades(policy), name, headline_metric) for policy in shown}
    return Benchmark(
        name=name,
        number=number,
        problems=next((int(n) for policy in inputs.graded if (n := _value(inputs, policy, name, "problems"))), None),
        metrics=metrics,
        headline_metric=headline_metric,
        headline=[(policy, own) for policy, own in scores.items() if own],
        comparisons=[comparison for comparison in comparisons if comparison],
        rows=[_row(inputs, policy, name, metrics, differences[policy]) for policy in inputs.graded],
        charts=_charts(inputs, name, number, metrics),
        other=_other_measures(inputs, name),
        published=params.published.get(name, []),
        beside_published=_beside(inputs.grades(last), name, headline_metric, params),
    )


def _beside(grades: Metrics, benchmark: str, headline_metric: str, params: ReportParams) -> list[tuple[str, Interval]]:
    wanted = sorted({headline_metric, *(figure.metric for figure in params.published.get(benchmark, []))})
    scores = {metric: score(grades, benchmark, metric) for metric in wanted}
    return [(metric, own) for metric, own in scores.items() if own]


def _value(inputs: Inputs, policy: str, benchmark: str, quantity: str) -> float | None:
    return inputs.grades(policy).get(f"{benchmark}/{quantity}")


def _row(inputs: Inputs, policy: str, benchmark: str, metrics: list[str], difference: Comparison | None) -> PolicyRow:
    described = (
        _value(inputs, policy, benchmark, name)
        for name in ("response_tokens_mean", "truncated_fraction", "undecided_fraction")
    )
    scores = [score(inputs.grades(policy), benchmark, metric) for metric in metrics]
    return PolicyRow(policy, scores, difference, *described)


def _charts(inputs: Inputs, benchmark: str, number: int, metrics: list[str]) -> list[Chart]:
    charts = []
    for metric in metrics:
        scores = {policy: score(inputs.grades(policy), benchmark, metric) for policy in inputs.graded}
        known = {policy: value for policy, value in scores.items() if value}
        if known:
            family = metric.partition("_at_")[0]
            title = _TITLES[family] if family == "greedy" else f"{_TITLES[family]}, {metric_label(metric)}"
            charts.append(bars(f"score-{number}-{family}", title, "%", {"": known}))
    passes = {policy: pass_scores(inputs.grades(policy), benchmark) for policy in inputs.graded}
    # Two points are not a curve.
    if any(len(value) > 2 for value in passes.values()):
        charts.append(_pass_chart(f"pass-{number}", passes))
    lengths = _by_policy(inputs, benchmark, "response_tokens_mean")
    if lengths:
        charts.append(bars(f"length-{number}", "Response length", "tokens", {"mean": lengths}))
    shares = {"cut off": "truncated_fraction", "undecided": "undecided_fraction"}
    series = {label: _by_policy(inputs, benchmark, name) for label, name in shares.items()}
    series = {label: values for label, values in series.items() if values}
    if series:
        charts.append(bars(f"shares-{number}", "Cut off, or without a verdict", "%", series))
    return charts


def _pass_chart(name: str, passes: dict[str, dict[int, Interval]]) -> Chart:
    """Returns pass@k over k; with more policies than colours, only the last ones."""
    # The last ones, because readers look for the effect of the newest round.
    shown = {policy: scores for policy, scores in list(passes.items())[-len(SERIES) :] if scores}
    summary = "; ".join(
        f"{policy} " + ", ".join(f"{100 * one.estimate:.1f}% at {k}" for k, one in scores.items())
        for policy, scores in shown.items()
    )
    drawn = [Line(policy, [*scores], [*scores.values()]) for policy, scores in shown.items()]
    ticks = sorted({k for scores in shown.values() for k in scores})
    # 105: markers at 100% need room above them.
    more = {"x_label": "k", "summary": summary, "top": 105, "doublings": ticks}
    return lines(name, "Any of k samples, pass@k", "%", drawn, **more)


def _by_policy(inputs: Inputs, benchmark: str, quantity: str) -> dict[str, float]:
    values = {policy: _value(inputs, policy, benchmark, quantity) for policy in inputs.graded}
    return {policy: value for policy, value in values.items() if value is not None}


def _other_measures(inputs: Inputs, benchmark: str) -> dict[str, list[tuple[str, float | None]]]:
    """Returns the shares of responses without a verdict and the emergence measures, if some policy has them."""
    keys = {key for policy in inputs.graded for key in inputs.grades(policy) if key.startswith(f"{benchmark}/")}
    names = sorted(key.rpartition("/")[2] for key in keys)
    wanted = [name for name in _OTHER if name in names] + [name for name in names if name.startswith("keyword_rate_")]
    return {
        name.replace("_", " "): [(policy, _value(inputs, policy, benchmark, name)) for policy in inputs.graded]
        for name in wanted
    }


def verdict_sentence(comparison: Comparison) -> str:
    """Returns the result in one sentence. It is about these two policies; to compare settings needs several seeds."""
    difference = comparison.difference
    low, high = map(points, difference.interval[1:])
    paired = f"on the same {difference.problems} problems, 95% interval {low} to {high} points"
    names = f"{comparison.policy} and {comparison.baseline}"
    # With very few problems the interval itself is too uncertain.
    if difference.problems < FEWEST_PROBLEMS:
        return f"Too few problems to compare {names}: {paired}."
    if difference.verdict == "not separated":
        return f"No difference between {names} is shown: {paired}."
    scores = "scores higher" if difference.verdict == "better" else "scores lower"
    return f"{comparison.policy} {scores} than {comparison.baseline}: {paired}."


FAMILIES = ("greedy", "avg", "pass", "maj")
"""Scores in the order in which they are shown."""
# `greedy` has no k, the others must have one: a stage's `pass_rate` is not a score.
_SCORE = re.compile(r"(?P<family>greedy|(?:avg|pass|maj)(?=_at_))(?:_at_(?P<k>\d+))?")


def benchmark_names(inputs: Inputs) -> list[str]:
    """Returns the benchmarks on which some policy has a score, sorted."""
    names = set()
    for policy in inputs.graded:
        for key in inputs.grades(policy):
            benchmark, _, metric = key.rpartition("/")
            if benchmark and _SCORE.fullmatch(metric):
                names.add(benchmark)
    return sorted(names)


def metric_names(inputs: Inputs, benchmark: str) -> list[str]:
    """Returns the metric with the largest k of each family that some policy has, in the order of `FAMILIES`."""
    largest: dict[str, int] = {}
    for policy in inputs.graded:
        for key in inputs.grades(policy):
            name, _, metric = key.rpartition("/")
            match = _SCORE.fullmatch(metric)
            if match and name == benchmark:
                family, k = match["family"], int(match["k"] or 0)
                largest[family] = max(k, largest.get(family, 0))
    return [
        "greedy" if family == "greedy" else f"{family}_at_{largest[family]}" for family in FAMILIES if family in largest
    ]


def score(grades: Metrics, benchmark: str, metric: str) -> Interval | None:
    """Returns a score with its interval, as fractions; None when it or its interval is missing."""
    name = f"{benchmark}/{metric}"
    values = [grades.get(name + end) for end in ("", "_low", "_high")]
    return None if None in values else Interval(*values)


def pass_scores(grades: Metrics, benchmark: str) -> dict[int, Interval]:
    """Returns all pass@k by k, smallest k first."""
    by_k: dict[int, Interval] = {}
    for key in grades:
        name, _, metric = key.rpartition("/")
        match = _SCORE.fullmatch(metric)
        if name == benchmark and match and match["family"] == "pass":
            interval = score(grades, benchmark, metric)
            by_k |= {int(match["k"]): interval} if interval else {}
    return dict(sorted(by_k.items()))


def last_policy(inputs: Inputs) -> str | None:
    """Returns the graded policy of the last RL round; without one, the last graded policy."""
    graded = inputs.graded
    # `policies` may list them in any order; rounds are in the order of the parameter file.
    of_rounds = [name for name in inputs.rounds if name in graded]
    return (of_rounds or graded or [None])[-1]


def policy_before_rl(inputs: Inputs) -> str | None:
    """Returns the policy from which the last policy's first round started; the last policy if no round made it."""
    policy = last_policy(inputs)
    while policy in inputs.rounds:
        policy = inputs.rounds[policy]
    return policy


def compare(inputs: Inputs, benchmark: str, metric: str, baseline: str, policy: str) -> Comparison | None:
    """Returns the paired difference; None when a policy is missing or they have no problem in common.

    A problem's score is the mean over its responses, so that all responses of a problem stay together. An undecided
    verdict counts as not correct, as in the scores.
    """
    mode = "greedy" if metric == "greedy" else "sampled"
    scores = [problem_scores(inputs, name, benchmark, mode) for name in (baseline, policy)]
    if baseline == policy or any(series is None for series in scores):
        return None
    # Sorted, because resampling draws positions, so the order of a table would change the interval.
    both = pandas.concat(scores, axis=1, join="inner", keys=["first", "second"]).sort_index()
    if both.empty:
        return None
    return Comparison(benchmark, metric, baseline, policy, compare_paired(both["first"], both["second"]))


def problem_scores(inputs: Inputs, policy: str, benchmark: str, mode: str) -> pandas.Series | None:
    """Returns the share of correct responses of each problem, by problem id; None without responses."""
    rows = inputs.responses.get(policy)
    if rows is None:
        return None
    rows = rows[(rows["benchmark"] == benchmark) & (rows["mode"] == mode)]
    if rows.empty:
        return None
    return (rows["verdict"] == Verdict.CORRECT.value).groupby(rows["problem_id"]).mean()
