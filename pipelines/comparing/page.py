"""The page of a comparison: one self-contained file without scripts.

The terminal and Markdown use the same words. `as_json` is the whole comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pipelines.comparing.results import (
    CHARACTERS,
    RESPONSES,
    ComparisonFindings,
    Examples,
    PolicyComparison,
    SharedBenchmark,
)
from pipelines.output import aligned
from stages.algorithms.estimators import FEWEST_PROBLEMS, LARGEST_P, Interval
from stages.pages.drawing import BAD, GOOD, INK, MUTED, WIDE, Chart, Row, cut, intervals
from stages.pages.page import fill_page, markdown_table, metric_label, points

# Colour is for findings about the setting. `higher` and `lower` concern two policies, and stay black.
_COLORS = {"better": GOOD, "worse": BAD, "not separated": MUTED}


def render_page(findings: ComparisonFindings, shown: Sequence[Examples]) -> str:
    """The page as HTML; equal arguments give equal text. All text is escaped: problems, responses are hostile."""
    benchmarks = {one.name: one for one in findings.benchmarks}
    # `groupby` needs equal benchmarks side by side. The sort is stable, so that metrics keep their order.
    ordered = sorted(findings.comparisons, key=lambda one: one.benchmark)
    tables = [
        (benchmarks[name], plot(name, rows := list(group)), rows)
        for name, group in groupby(ordered, key=lambda one: one.benchmark)
    ]
    leading = [one for one in findings.comparisons if one.metric == _leading(findings, one)]
    content = {
        "findings": findings,
        "tables": tables,
        "sentences": [(one, sentence(one)) for one in leading],
        "notes": notes(findings),
        "shown": shown,
        "characters": CHARACTERS,
        "responses": RESPONSES,
        # With one seed per side the column would hold only dashes.
        "has_seeds": any(len(side.answers) > 1 for side in findings.sides),
    }
    filters = {"score": percent, "interval": format_interval, "p": format_p, "seeds": format_seeds}
    return fill_page(Path(__file__).parent, content, filters)


def _leading(findings: ComparisonFindings, one: PolicyComparison) -> str:
    return next(other.metric for other in findings.comparisons if other.benchmark == one.benchmark)


def plot(benchmark: str, comparisons: Sequence[PolicyComparison]) -> Chart:
    """Each difference with its interval, around a line at 0; hollow where it is not separated."""
    rows = [
        Row(
            f"{cut(one.second, 12)} − {cut(one.first, 12)}, {metric_label(one.metric)}",
            100 * one.difference.interval.estimate,
            [(100 * one.difference.interval.low, 100 * one.difference.interval.high)],
            text=points(one.difference.interval.estimate),
            color=_COLORS.get(one.verdict, INK),
            is_hollow=one.verdict == "not separated",
        )
        for one in comparisons
    ]
    words = {"spoken": "; ".join(map(sentence, comparisons)), "x_label": "percentage points"}
    return intervals(f"differences-{benchmark}", benchmark, rows, rule=0, width=WIDE, **words)


ABSENT = "–"
HEAD = (
    "benchmark",
    "metric",
    "first",
    "second",
    "first %",
    "second %",
    "difference",
    "95% interval",
    "p",
    "won",
    "lost",
    "even",
    "seeds",
    "finding",
)


def percent(score: float, seed_sd: float | None = None) -> str:
    """Formats `87.7`, with ± the seeds' standard deviation where there are several."""
    return f"{100 * score:.1f}" + ("" if seed_sd is None else f" ± {100 * seed_sd:.1f}")


def format_interval(interval: Interval | None) -> str:
    return ABSENT if interval is None else f"{points(interval.low)} to {points(interval.high)}"


def format_p(value: float) -> str:
    """Formats three digits; small values as a bound."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def format_seeds(one: PolicyComparison) -> str:
    """The interval over seeds, or the seeds' differences if two are too few for one; a dash for one seed per side."""
    if one.over_seeds:
        return format_interval(one.over_seeds)
    return ", ".join(points(value) for value in one.by_seed.values()) if len(one.by_seed) > 1 else ABSENT


def sentence(one: PolicyComparison) -> str:
    """Returns the finding in one sentence."""
    measured = f"{metric_label(one.metric)} on {one.benchmark}"
    interval = f"[{format_interval(one.difference.interval)}], corrected p\u00a0{format_p(one.corrected)}"
    difference = f"{points(one.difference.interval.estimate)} points {interval}"
    if one.verdict in ("higher", "lower"):
        return (
            f"{one.second} scores {one.verdict} than {one.first} in {measured}, on these problems and for "
            f"these two policies: {difference}."
        )
    if one.verdict != "not separated":
        return f"{one.second} is {one.verdict} than {one.first} in {measured}: {difference}."
    # Stated before "not separated", because more problems would help and another policy would not.
    if one.difference.problems < FEWEST_PROBLEMS:
        both = f"{one.second} and {one.first}"
        return f"Too few problems ({one.difference.problems}) to separate {both} in {measured}: {difference}."
    return f"{one.second} and {one.first} are not separated in {measured}: {difference}."


def cells(one: PolicyComparison) -> list[str]:
    """A row under `HEAD`."""
    return [
        one.benchmark,
        metric_label(one.metric),
        one.first,
        one.second,
        percent(one.first_score, one.first_seed_sd),
        percent(one.second_score, one.second_seed_sd),
        points(one.difference.interval.estimate),
        format_interval(one.difference.interval),
        format_p(one.corrected),
        str(one.difference.wins),
        str(one.difference.losses),
        str(one.difference.ties),
        format_seeds(one),
        one.verdict,
    ]


def notes(findings: ComparisonFindings) -> list[str]:
    """Facts needed to read the table."""
    count, seeds = len(findings.comparisons), max(len(side.answers) for side in findings.sides)
    lines = [f"RESTRICTED to what all sides share: {line}" for line in findings.restrictions]
    lines += [line for one in findings.benchmarks if (line := _describe_leaked(one, findings.is_clean))]
    lines += [
        "Differences: second minus first, in percentage points, on the same problems; 95% interval over problems.",
        f"p: over problems too, corrected for {count} comparison{'s' if count > 1 else ''} (Holm). "
        f"A finding needs p < {LARGEST_P:g}, {FEWEST_PROBLEMS} problems, no seed against it.",
        "'better' and 'worse' are about the setting: the interval over seeds excludes 0. "
        "'higher' and 'lower' are about these policies.",
    ]
    if seeds == 1:
        lines.append("One seed each: these results do not show what training again would give.")
    else:
        lines.append("±: standard deviation over seeds. seeds: 95% interval over seeds, or each seed's difference.")
    return lines


def _describe_leaked(benchmark: SharedBenchmark, is_clean: bool) -> str:
    """Says how many problems a side was trained on; empty where none."""
    if not benchmark.leaked:
        return ""
    if is_clean:
        return f"CLEAN: {benchmark.leaked} problems of {benchmark.name} that a side was trained on are left out."
    count = f"{benchmark.leaked} of {len(benchmark.problems)} problems"
    return f"TRAINED ON: {count} of {benchmark.name} are in a side's training tables; --clean leaves them out."


def text_table(findings: ComparisonFindings) -> str:
    """Aligned columns for a terminal, with the notes below."""
    rows = [list(HEAD), *(cells(one) for one in findings.comparisons)]
    # A terminal has little width: a column without any value is left out.
    kept = [place for place in range(len(HEAD)) if HEAD[place] != "seeds" or any(r[place] != ABSENT for r in rows[1:])]
    columns = [[row[place] for row in rows] for place in kept]
    rule = ["-" * max(map(len, column)) for column in columns]
    head, *lines = zip(*columns, strict=True)
    return "\n".join([*aligned([head, rule, *lines], left_columns=len(kept)), "", *notes(findings)])


def markdown(findings: ComparisonFindings) -> str:
    """The same table for MLflow."""
    rows = markdown_table(HEAD, [cells(one) for one in findings.comparisons])
    return "\n".join([*rows, "", *(f"- {note}" for note in notes(findings))]) + "\n"


def as_json(findings: ComparisonFindings) -> dict[str, Any]:
    """Everything but the scores of problems, in fractions."""
    sides = [
        {
            "name": side.name,
            "answers": [
                {"where": own.where, "policy": own.policy, "seed": own.seed, "verdicts_md5": own.digest}
                for own in side.answers
            ],
        }
        for side in findings.sides
    ]
    shared = [
        {
            # The problems are left out: their number shows the basis of the comparison.
            "name": one.name,
            "problems": len(one.problems),
            "samples": one.samples,
            "greedy": one.is_greedy,
            "in_training_tables": one.leaked,
        }
        for one in findings.benchmarks
    ]
    return {
        "sides": sides,
        "benchmarks": shared,
        "restrictions": list(findings.restrictions),
        "clean": findings.is_clean,
        "comparisons": [_as_json(one) for one in findings.comparisons],
    }


def _as_json(one: PolicyComparison) -> dict[str, Any]:
    return {
        "benchmark": one.benchmark,
        "metric": one.metric,
        "first": one.first,
        "second": one.second,
        "problems": one.difference.problems,
        "first_score": one.first_score,
        "second_score": one.second_score,
        "difference": one.difference.interval.estimate,
        "low": one.difference.interval.low,
        "high": one.difference.interval.high,
        "p": one.difference.p_value,
        "p_corrected": one.corrected,
        "wins": one.difference.wins,
        "losses": one.difference.losses,
        "ties": one.difference.ties,
        "first_seed_sd": one.first_seed_sd,
        "second_seed_sd": one.second_seed_sd,
        "by_seed": {str(seed): value for seed, value in one.by_seed.items()},
        # The low and the high end. The estimate is `difference` already.
        "over_seeds": list(one.over_seeds[1:]) if one.over_seeds else None,
        "finding": one.verdict,
        "claim": one.claim,
    }
