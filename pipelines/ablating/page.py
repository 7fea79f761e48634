"""The page of an ablation: reports/ablations/<name>.html, one file that needs no other.

Numbers, intervals and verdicts have the same words in Markdown and on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.ablating.definition import Ablation, Comparison, Metric
from pipelines.ablating.results import Difference, Judged, Measured, Row
from stages.algorithms.estimators import Interval
from stages.pages.drawing import WIDE, Chart, intervals
from stages.pages.drawing import Row as DrawnRow
from stages.pages.page import fill_page


def render_page(
    ablation: Ablation, tables: Mapping[str, Sequence[Row]], judged: Sequence[Judged], about: Mapping[str, Any]
) -> str:
    """The page as HTML; equal arguments give equal text."""
    warnings = {
        f"Not all runs are there. Missing: {'; '.join(about['missing'])}.": about["missing"],
        "dirty: uncommitted code was run.": about["is_dirty"],
        "Not all runs were made by the same code.": not about["is_one_code"],
    }
    content = {
        "ablation": ablation,
        "about": about,
        "warnings": [sentence for sentence, holds in warnings.items() if holds],
        "claims": claim_table(ablation, judged),
        "metrics": [
            (metric_table(ablation, name, rows), dot_plot(ablation.metrics[name], rows))
            for name, rows in tables.items()
        ],
    }
    return fill_page(Path(__file__).parent, content, {})


def dot_plot(metric: Metric, rows: Sequence[Row]) -> Chart | None:
    """Each variant: a hollow dot for each seed, the mean, and the baseline's mean plus each interval of the difference.

    Variants without a number are left out; None where there is no other.
    """
    known = [row for row in rows if row.measured.values]
    if not known:
        return None
    base = next((row.measured.mean for row in rows if row.to_baseline is None), None)
    factor = 100 if metric.unit == "percent" else 1
    drawn = []
    for row in known:
        spans: list[tuple[float, float] | None] = []
        if base is not None and row.to_baseline is not None:
            for own in (row.to_baseline.over_seeds, row.to_baseline.over_problems):
                spans.append((factor * (base + own.low), factor * (base + own.high)) if own else None)
        mean = None if row.measured.mean is None else factor * row.measured.mean
        dots = [factor * value for value in row.measured.values]
        drawn.append(DrawnRow(row.variant, mean, spans, dots, number(row.measured.mean, metric.unit)))
    label = f"{metric.label} by variant: " + ", ".join(f"{row.name} {row.text}" for row in drawn)
    # A wide t-interval of few seeds must not flatten everything else: intervals are cut at the frame.
    seen = [value for row in drawn for value in row.dots]
    room = max(max(seen) - min(seen), 0.02 * abs(max(seen)), 0.001 * factor)
    ends = [end for row in drawn for span in row.spans if span for end in span]
    low = max(min([*seen, *ends]), min(seen) - room) - 0.1 * room
    high = min(max([*seen, *ends]), max(seen) + room) + 0.1 * room
    more = {"rule": None if base is None else factor * base, "limits": (low, high), "width": WIDE}
    words = {"spoken": label, "x_label": metric.label + unit_suffix(metric)}
    if metric.unit == "tokens":
        words["tick"] = lambda value: number(value, metric.unit)
    return intervals(f"dots-{metric.label}", metric.label, drawn, **more, **words)


ABSENT = "–"


@dataclass(frozen=True)
class Table:
    """A table as text."""

    caption: str
    head: list[str]
    rows: list[list[str]]


def number(value: float | None, unit: str, is_difference: bool = False) -> str:
    """71.2 for a percentage, 1.25M or 340k for tokens; a difference has its sign."""
    if value is None:
        return ABSENT
    sign = "+" if is_difference and value > 0 else ""
    if unit == "percent":
        return f"{sign}{100 * value:.1f}"
    if unit == "tokens" and abs(value) >= 1_000:
        return f"{sign}{value / 1e6:.2f}M" if abs(value) >= 1e6 else f"{sign}{value / 1e3:.0f}k"
    return f"{sign}{value:.3g}"


def spread(measured: Measured, unit: str) -> str:
    """Mean ± standard deviation over seeds; how many seeds have no number, where one is missing."""
    if measured.mean is None:
        count, missing = len(measured.by_seed), len(measured.by_seed) - len(measured.values)
        return ABSENT if missing == count else f"{ABSENT} (in {missing} of {count} seeds)"
    sd = measured.seed_sd
    return number(measured.mean, unit) + (f" ± {number(sd, unit)}" if sd is not None else "")


def describe_missing(planned: Sequence[tuple[str, int]], done: Sequence[tuple[str, int]]) -> list[str]:
    """Variant and seed of the runs that are not done, those of one set of seeds together."""
    variants = list(dict.fromkeys(variant for variant, _ in planned))
    left = {name: {seed for variant, seed in planned if variant == name} for name in variants}
    for variant, seed in done:
        left[variant].discard(seed)
    of_all = set.intersection(*left.values()) if len(variants) > 1 else set()
    groups: dict[tuple[int, ...], list[str]] = {}
    for variant, seeds in left.items():
        groups.setdefault(tuple(sorted(seeds - of_all)), []).append(variant)
    told = [f"{_seeds(sorted(of_all))} of every variant"] if of_all else []
    return told + [f"{_seeds(seeds)} of {', '.join(names)}" for seeds, names in groups.items() if seeds]


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def interval(found: Interval | None, unit: str) -> str:
    if found is None:
        return ABSENT
    return f"{number(found.low, unit, True)} to {number(found.high, unit, True)}"


def format_difference(found: Difference | None, unit: str) -> str:
    """The mean difference, [interval over problems] and (interval over seeds)."""
    if found is None or found.mean is None:
        return ABSENT
    text = number(found.mean, unit, True)
    if found.over_problems:
        text += f" [{interval(found.over_problems, unit)}]"
    return text + (f" ({interval(found.over_seeds, unit)})" if found.over_seeds else "")


def published(value: float | None, is_difference: bool = False) -> str:
    if value is None:
        return ABSENT
    return f"{value:+.4g}" if is_difference else f"{value:.4g}"


def metric_table(ablation: Ablation, name: str, rows: Sequence[Row]) -> Table:
    """One metric: every variant with its seed mean, differences and the paper's number."""
    metric = ablation.metrics[name]
    head = ["variant", metric.label + unit_suffix(metric), f"minus {ablation.baseline}"]
    head += ["minus the one before"] if ablation.is_ladder else []
    has_published = any(row.published is not None for row in rows)
    lines = []
    for row in rows:
        line = [row.variant, spread(row.measured, metric.unit), format_difference(row.to_baseline, metric.unit)]
        line += [format_difference(row.to_previous, metric.unit)] if ablation.is_ladder else []
        lines.append(line + ([published(row.published)] if has_published else []))
    return Table(metric.label, head + (["paper"] if has_published else []), lines)


def overview_table(ablation: Ablation, tables: dict[str, Sequence[Row]]) -> Table:
    """The metrics after the first one: seed means only."""
    names = list(ablation.metrics)[1:]
    head = ["variant", *(ablation.metrics[name].label + unit_suffix(ablation.metrics[name]) for name in names)]
    lines = [
        [row.variant, *(_cell(tables[name][place], ablation.metrics[name].unit) for name in names)]
        for place, row in enumerate(tables[next(iter(tables))])
    ]
    return Table("Other measures", head, lines)


def _cell(row: Row, unit: str) -> str:
    paper = f"; paper {published(row.published)}" if row.published is not None else ""
    return spread(row.measured, unit) + paper


def unit_suffix(metric: Metric) -> str:
    return {"percent": ", %", "tokens": ", tokens", "number": ""}[metric.unit]


def claim_table(ablation: Ablation, judged: Sequence[Judged]) -> Table:
    """The paper's claims with what was found."""
    lines = []
    for one in judged:
        unit = ablation.metrics[one.claimed.metric].unit
        signs = ", ".join(number(value, unit, True) for value in one.found.by_seed.values())
        lines.append(
            [
                describe_claim(ablation, one.claimed),
                published(one.published, True),
                format_difference(one.found, unit),
                signs or ABSENT,
                one.verdict,
            ]
        )
    return Table("Claims", ["claim", "paper", "here", "seed by seed", "verdict"], lines)


def describe_claim(ablation: Ablation, claimed: Comparison) -> str:
    metric = ablation.metrics[claimed.metric]
    if claimed.direction == "same":
        within = number(claimed.margin, metric.unit)
        return f"{metric.label}: {claimed.variant} the same as {claimed.against} (within {within})"
    return f"{metric.label}: {claimed.variant} {claimed.direction} than {claimed.against}"
