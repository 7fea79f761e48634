"""Numbers, intervals and verdicts as people read them, the same in Markdown and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.ablating.definition import Ablation, Comparison, Metric
from pipelines.ablating.results import Difference, Judged, Measured, Row
from stages.algorithms.estimators import Interval

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


def told_missing(planned: Sequence[tuple[str, int]], done: Sequence[tuple[str, int]]) -> list[str]:
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


def told_difference(found: Difference | None, unit: str) -> str:
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
        line = [row.variant, spread(row.measured, metric.unit), told_difference(row.to_baseline, metric.unit)]
        line += [told_difference(row.to_previous, metric.unit)] if ablation.is_ladder else []
        lines.append(line + ([published(row.published)] if has_published else []))
    return Table(metric.label, head + (["paper"] if has_published else []), lines)


def overview_table(ablation: Ablation, tables: dict[str, Sequence[Row]]) -> Table:
    """The metrics after the first one: seed means only."""
    names = list(ablation.metrics)[1:]
    head = [
        "variant",
        *(ablation.metrics[name].label + unit_suffix(ablation.metrics[name]) for name in names),
    ]
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
                told_claim(ablation, one.claimed),
                published(one.published, True),
                told_difference(one.found, unit),
                signs or ABSENT,
                one.verdict,
            ]
        )
    return Table("Claims", ["claim", "paper", "here", "seed by seed", "verdict"], lines)


def told_claim(ablation: Ablation, claimed: Comparison) -> str:
    metric = ablation.metrics[claimed.metric]
    if claimed.direction == "same":
        within = number(claimed.margin, metric.unit)
        return f"{metric.label}: {claimed.variant} the same as {claimed.against} (within {within})"
    return f"{metric.label}: {claimed.variant} {claimed.direction} than {claimed.against}"
