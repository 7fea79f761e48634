"""The page of an ablation: reports/ablations/<name>.html, one file that needs no other.

Numbers, intervals and verdicts have the same words in Markdown and on the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pipelines.ablating.definition import Ablation, Comparison, Metric
from pipelines.ablating.results import Difference, Judged, Measured, Row
from stages.algorithms.estimators import Interval

FOLDER = Path(__file__).parent
WIDTH, LEFT, RIGHT, TOP, STEP = 720, 190, 24, 10, 30
"""Of a plot, in units of its view box; STEP is the height of a variant."""


def render_page(
    ablation: Ablation, tables: Mapping[str, Sequence[Row]], judged: Sequence[Judged], about: Mapping[str, Any]
) -> str:
    """The page as HTML; equal arguments give equal text."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    metrics = [
        (metric_table(ablation, name, rows), Markup(dot_plot(ablation.metrics[name], rows)))
        for name, rows in tables.items()
    ]
    variants = [
        (name, variant.says, variant.builds_on, {key: str(value) for key, value in variant.changes.items()})
        for name, variant in ablation.variants.items()
    ]
    claims = claim_table(ablation, judged)
    style = Markup((FOLDER / "page.css").read_text(encoding="utf-8"))
    return environment.get_template("template.html").render(
        ablation=ablation,
        metrics=metrics,
        claims=claims,
        variants=variants,
        about=about,
        style=style,
        overrides={key: str(value) for key, value in ablation.overrides.items()},
    )


def dot_plot(metric: Metric, rows: Sequence[Row]) -> str:
    """Each variant: a hollow dot for each seed, the mean, and the baseline's mean plus each interval of the difference.

    Thick: over problems; thin: over seeds. A variant's bar that leaves out the dashed line (the baseline's mean)
    differs from the baseline.
    """
    known = [row for row in rows if row.measured.values]
    if not known:
        return ""
    base = next((row.measured.mean for row in rows if row.to_baseline is None), None)
    spans = {row.variant: _spans(row, base) for row in known}
    numbers = [value for row in known for value in row.measured.values]
    numbers += [end for pair in spans.values() for span in pair if span for end in span]
    # A wide t-interval of few seeds must not flatten everything else: bars are cut at the frame.
    seen = [value for row in known for value in row.measured.values]
    room = max(max(seen) - min(seen), 0.02 * abs(max(seen)), 0.001)
    low, high = max(min(numbers), min(seen) - room), min(max(numbers), max(seen) + room)
    low, high = low - 0.1 * room, high + 0.1 * room

    def x(value: float) -> float:
        place = (min(max(value, low), high) - low) / (high - low)
        return round(LEFT + place * (WIDTH - LEFT - RIGHT), 1)

    height = TOP + STEP * len(known) + 34
    label = f"{metric.label} by variant: " + ", ".join(
        f"{row.variant} {number(row.measured.mean, metric.unit)}" for row in known
    )
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">']
    parts += _axis(metric, low, high, x, TOP + STEP * len(known))
    if base is not None:
        parts.append(f'<line class="base" x1="{x(base)}" x2="{x(base)}" y1="{TOP}" y2="{TOP + STEP * len(known)}"/>')
    for place, row in enumerate(known):
        parts += _variant(row, spans[row.variant], x, TOP + STEP * (place + 0.5))
    return "\n".join([*parts, "</svg>"])


def _spans(row: Row, base: float | None) -> tuple[tuple[float, float] | None, ...]:
    """The intervals of the difference to the baseline, over problems and over seeds, moved to the baseline's mean."""
    if base is None or row.to_baseline is None:
        return (None, None)
    found = (row.to_baseline.over_problems, row.to_baseline.over_seeds)
    return tuple((base + own.low, base + own.high) if own else None for own in found)


def _axis(metric: Metric, low: float, high: float, x: Any, bottom: float) -> list[str]:
    parts = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>']
    for value in round_values(low, high):
        parts.append(f'<text class="tick" x="{x(value)}" y="{bottom + 15}">{number(value, metric.unit)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    name = escape(metric.label + unit_suffix(metric))
    return [*parts, f'<text class="tick" x="{middle}" y="{bottom + 31}">{name}</text>']


def round_values(low: float, high: float) -> list[float]:
    """Four to eight multiples of 1, 2 or 5 times a power of ten between the ends."""
    largest = (high - low) / 4 * (1 + 1e-9)  # a quarter of 0.0039999... is one thousandth
    power = 10.0 ** math.floor(math.log10(largest))
    step = max(factor * power for factor in (1, 2, 5) if factor * power <= largest)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _variant(row: Row, spans: Sequence[tuple[float, float] | None], x: Any, y: float) -> list[str]:
    parts = [f'<text class="name" x="{LEFT - 12}" y="{y + 4}">{escape(row.variant)}</text>']
    for span, kind in zip(reversed(spans), ("seeds", "problems"), strict=True):
        if span:
            parts.append(f'<line class="{kind}" x1="{x(span[0])}" x2="{x(span[1])}" y1="{y}" y2="{y}"/>')
    parts += [f'<circle class="seed" cx="{x(value)}" cy="{y}" r="3.5"/>' for value in row.measured.values]
    if row.measured.mean is not None:
        parts.append(f'<circle class="mean" cx="{x(row.measured.mean)}" cy="{y}" r="5"/>')
    return parts


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
