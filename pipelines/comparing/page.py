"""The page of a comparison: one file without scripts that needs no other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from pipelines.comparing.examples import CHARACTERS, RESPONSES, Examples
from pipelines.comparing.results import Comparison, Findings
from pipelines.comparing.wording import (
    metric_label,
    notes,
    percent,
    points,
    sentence,
    told_interval,
    told_p,
    told_seeds,
)

FOLDER = Path(__file__).parent
STYLES = (FOLDER.parent / "ablating" / "page.css", FOLDER / "page.css")
"""The look of the ablations' pages, and what is added here."""
WIDTH, LEFT, RIGHT, TOP, STEP = 760, 230, 70, 8, 26
"""Of a plot, in units of its view box; STEP is the height of a comparison."""


def render_page(findings: Findings, shown: Sequence[Examples]) -> str:
    """The page as HTML; equal arguments give equal text. Every text is escaped: problems and responses are hostile."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "interval": told_interval,
        "p": told_p,
        "metric": metric_label,
        "seeds": told_seeds,
    }
    benchmarks = {one.name: one for one in findings.benchmarks}
    ordered = sorted(findings.comparisons, key=lambda one: one.benchmark)
    tables = [
        (benchmarks[name], Markup(plot(own := list(group))), own)
        for name, group in groupby(ordered, key=lambda one: one.benchmark)
    ]
    style = "".join(file.read_text(encoding="utf-8") for file in STYLES)
    leading = [one for one in findings.comparisons if one.metric == _leading(findings, one)]
    return environment.get_template("template.html").render(
        findings=findings,
        tables=tables,
        sentences=[(one, sentence(one)) for one in leading],
        notes=notes(findings),
        shown=shown,
        characters=CHARACTERS,
        responses=RESPONSES,
        style=Markup(style),
        has_seeds=any(len(side.answers) > 1 for side in findings.sides),
    )


def _leading(findings: Findings, one: Comparison) -> str:
    return next(other.metric for other in findings.comparisons if other.benchmark == one.benchmark)


def plot(comparisons: Sequence[Comparison]) -> str:
    """Each difference as a dot with its interval, around a line at 0; filled where it is called better or worse."""
    ends = [end for one in comparisons for end in (*one.difference.interval[1:], 0.0)]
    low, high = min(ends), max(ends)
    room = max(high - low, 0.02) * 0.05
    low, high = low - room, high + room

    def x(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    bottom = TOP + STEP * len(comparisons)
    label = "; ".join(sentence(one) for one in comparisons)
    parts = [f'<svg viewBox="0 0 {WIDTH} {bottom + 22}" role="img" aria-label="{escape(label)}">']
    parts.append(f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="{TOP}" y2="{bottom}"/>')
    parts.append(f'<text class="tick" x="{x(0)}" y="{bottom + 16}">0</text>')
    for place, one in enumerate(comparisons):
        y = TOP + STEP * (place + 0.5)
        kind = one.verdict.replace(" ", "-")
        name = f"{_short(one.second)} − {_short(one.first)}, {metric_label(one.metric)}"
        estimate, low_end, high_end = one.difference.interval
        parts.append(f'<text class="name" x="{LEFT - 12}" y="{y + 4}">{escape(name)}</text>')
        parts.append(f'<line class="{kind}" x1="{x(low_end)}" x2="{x(high_end)}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{kind}" cx="{x(estimate)}" cy="{y}" r="5"/>')
        parts.append(f'<text class="value" x="{WIDTH - RIGHT + 12}" y="{y + 4}">{points(estimate)}</text>')
    return "\n".join([*parts, "</svg>"])


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"
