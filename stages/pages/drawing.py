"""Plots as inline SVG, from data: `lines`, `bars`, `intervals` and `histogram`.

Equal data gives equal bytes, and colours follow the page's light or dark theme. matplotlib has no CSS variables, so
plots are drawn in the stand-in colours below. These are then replaced by the page's variables. Text stays text, in the
page's font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stages.algorithms.estimators import Interval

# Near-blacks that no drawing would choose: each can be replaced by its variable without affecting anything else.
INK, MUTED, LINE, CARD, GOOD, BAD = "#010a01", "#020a02", "#030a03", "#040a04", "#050a05", "#060a06"
SERIES = ("#0a0101", "#0a0102", "#0a0103", "#0a0104", "#0a0105")
"""Stand-ins for the page's data colours."""
DASHES = ("-", "--", ":", "-.", (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v")
MOST_MARKERS = 12
"""Most points of a line that get a marker each."""
WIDTH, HEIGHT = 340, 196
"""Points; one point is one unit of the SVG, which is as wide as a phone."""
WIDE = 480
"""Width of a plot that has a page to itself."""
ROW = 22
"""Height of a row of `intervals`, in points."""

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    CARD: "var(--card)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    **{color: f"var(--series-{number})" for number, color in enumerate(SERIES, start=1)},
}
_SETTINGS = {
    # Text stays text instead of outlines, so it can be searched, copied and read aloud.
    "svg.fonttype": "none",
    "font.size": 11,
    "text.color": MUTED,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    # matplotlib would write `+1e3` in a corner and small numbers at the ticks, which readers overlook.
    "axes.formatter.useoffset": False,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "lines.linewidth": 1.7,
    "lines.markersize": 4,
    "errorbar.capsize": 3,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "legend.handlelength": 1.8,
    "legend.borderaxespad": 0,
    "legend.columnspacing": 1.2,
}


@dataclass(frozen=True)
class Chart:
    """One plot with its words."""

    title: str
    summary: str
    """The plot in one line; empty where its numbers are in the plot. A screen reader always reads it."""
    svg: Markup


@dataclass(frozen=True)
class Line:
    """Points over the x axis; intervals have whiskers. Lines with one label share one entry of the legend."""

    label: str
    x: Sequence[float]
    y: Sequence[float] | Sequence[Interval]
    style: int | None = None
    """Index of colour, dashes and marker; None: those of its place among the lines."""
    is_faint: bool = False
    is_joined: bool = True


def lines(
    name: str,
    title: str,
    unit: str,
    series: Sequence[Line],
    *,
    x_label: str = "step",
    summary: str | None = None,
    top: float | None = None,
    is_from_zero: bool = True,
    is_logarithmic: bool = False,
    doublings: Sequence[int] = (),
    stretches: Sequence[tuple[str, int, int]] = (),
) -> Chart:
    """Draws lines over steps. Unit % shows fractions as percentages; without a `summary` each line's ends are named.

    An axis of values is logarithmic where any value is above 0; zeros are then not drawn, and the summary says so.
    `doublings` are the ticks of a logarithmic x axis, `stretches` names and ends of its parts.
    """
    factor = 100 if unit == "%" else 1
    values = [_estimate(value) for line in series for value in line.y]
    is_logarithmic = is_logarithmic and max(values) > 0
    summary = _first_to_last(series, unit) if summary is None else summary
    if is_logarithmic and min(values) == 0:
        summary += "; zeros are not drawn"

    def paint(axes: Axes) -> None:
        known = set()
        for place, line in enumerate(series):
            place = place if line.style is None else line.style
            # Beyond the colours they repeat, with the next dashes and marker.
            style, look = place % len(SERIES), (place + place // len(SERIES)) % len(SERIES)
            points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if not is_logarithmic or _estimate(y) > 0]
            axes.errorbar(
                [x for x, _ in points],
                [factor * _estimate(y) for _, y in points],
                yerr=_whiskers([y for _, y in points], factor),
                color=SERIES[style],
                linestyle=DASHES[look] if line.is_joined else "",
                marker=MARKERS[look] if len(points) <= MOST_MARKERS or not line.is_joined else "",
                alpha=0.35 if line.is_faint else 1,
                label=None if line.label in known else plain_text(line.label),
                zorder=2 if line.is_joined else 5,
            )
            known.add(line.label)
        if is_logarithmic:
            axes.set_yscale("log")
        # From 0, because an axis with another start makes small differences look large.
        elif is_from_zero and min(values) >= 0:
            axes.set_ylim(bottom=0, top=top)
        if doublings:
            axes.set_xscale("log", base=2)
            axes.set_xticks(doublings, [str(tick) for tick in doublings])
            axes.minorticks_off()
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))
        _mark_stretches(axes, stretches, max(x for line in series for x in line.x))
        axes.set_xlabel(x_label)
        axes.set_ylabel(unit)
        _show_legend(axes)

    return Chart(title, summary, draw(name, f"{title}. {summary}.", paint))


def _first_to_last(series: Sequence[Line], unit: str) -> str:
    """Returns where each label's lines begin and end; faint ones only where there are no others."""
    parts = []
    for label in dict.fromkeys(line.label for line in series if line.is_joined):
        of_label = [line for line in series if line.label == label]
        shown = [line for line in of_label if not line.is_faint] or of_label
        parts.append(f"{label} {amount(shown[0].y[0], unit)} → {amount(shown[-1].y[-1], unit)}")
    return "; ".join(parts)


def _mark_stretches(axes: Axes, stretches: Sequence[tuple[str, int, int]], end: float) -> None:
    """Draws a rule where a stretch begins, and its name above the plot, cut to the available width."""
    for name, start, stop in stretches:
        if start:
            axes.axvline(start + 0.5, color=LINE, linewidth=1.2)
        place = {"va": "bottom", "clip_on": False, "transform": axes.get_xaxis_transform()}
        # About 46 letters of this size fit across the plot.
        shown = cut(name, max(3, int(46 * (stop - start) / end)))
        axes.text(start + 0.8, 1.0, plain_text(shown), color=MUTED, fontsize=10, **place)
    if stretches:
        axes.set_xlim(0, end + 1)


def bars(
    name: str, title: str, unit: str, series: Mapping[str, Mapping[str, float | Interval]], x_label: str = ""
) -> Chart:
    """Draws a bar per series at each name, with its value above. Scores with intervals are fractions, from 0 to 100%.

    Unit % shows fractions as percentages.
    """
    factor = 100 if unit == "%" else 1
    names = list(dict.fromkeys(key for values in series.values() for key in values))
    is_scores = any(isinstance(value, Interval) for values in series.values() for value in values.values())

    def paint(axes: Axes) -> None:
        width = 0.62 / len(series)
        for number, (label, values) in enumerate(series.items()):
            places = [names.index(key) + (number - (len(series) - 1) / 2) * width for key in values]
            heights = [factor * _estimate(value) for value in values.values()]
            look = {"color": SERIES[number], "label": plain_text(label), "alpha": 0.22 if is_scores else 0.55}
            axes.bar(places, heights, width=width * 0.92, **look)
            tops = heights
            if is_scores:
                whiskers = _whiskers([*values.values()], factor)
                axes.errorbar(places, heights, yerr=whiskers, fmt="o", color=SERIES[number])
                # Above the whisker, and below 112, where the axis ends.
                tops = [min(100 * value.high + 2.5, 101) for value in values.values()]
            for place, height, top in zip(places, heights, tops, strict=True):
                axes.text(
                    place, top, _short(height), color=INK, ha="center", va="bottom", fontsize=11 if is_scores else 9.5
                )
        axes.margins(y=0.16)
        axes.set_ylim(0, 112 if is_scores else None)
        if is_scores:
            axes.set_yticks(range(0, 101, 25))
        shown = [cut(key, 14) for key in names]
        # About 44 letters fit side by side under the plot; longer names are slanted.
        is_crowded = sum(len(key) + 2 for key in shown) > 44
        slant = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if is_crowded else {}
        axes.set_xticks(range(len(names)), map(plain_text, shown), **slant)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.set_xlabel(x_label)
        axes.set_ylabel(unit)
        _show_legend(axes)

    parts = [
        (f"{label}: " if label else "") + ", ".join(f"{key} {amount(value, unit)}" for key, value in values.items())
        for label, values in series.items()
    ]
    return Chart(title, "", draw(name, f"{title}. {'; '.join(parts)}.", paint))


@dataclass(frozen=True)
class Row:
    """A line of `intervals`."""

    name: str
    value: float | None
    spans: Sequence[tuple[float, float] | None] = ()
    """Up to two intervals: the first is a line, the second a broad band behind it."""
    dots: Sequence[float] = ()
    """Smaller, hollow: the numbers whose mean is `value`."""
    text: str = ""
    """Text on the right."""
    color: str = SERIES[0]
    is_hollow: bool = False


def intervals(
    name: str,
    title: str,
    rows: Sequence[Row],
    *,
    spoken: str,
    summary: str = "",
    rule: float | None = None,
    limits: tuple[float, float] | None = None,
    x_label: str = "",
    tick: Callable[[float], str] = "{:g}".format,
    width: int = WIDTH,
) -> Chart:
    """Draws rows one below the other, each a dot with its intervals, and a dotted `rule` for comparison.

    Intervals are cut at the `limits`.
    """

    def paint(axes: Axes) -> None:
        for place, row in enumerate(rows):
            for span, look in zip(row.spans, ({"linewidth": 2}, {"linewidth": 8, "alpha": 0.3}), strict=False):
                if span:
                    axes.plot(span, (place, place), color=row.color, solid_capstyle="butt", **look)
            hollow = {"linestyle": "", "marker": "o", "markerfacecolor": CARD}
            axes.plot(row.dots, [place] * len(row.dots), **hollow, markersize=5, markeredgecolor=INK, zorder=3)
            if row.value is not None:
                fill = CARD if row.is_hollow else row.color
                look = {"markersize": 7, "markerfacecolor": fill, "markeredgecolor": row.color}
                axes.plot(row.value, place, **hollow | look, zorder=4)
            right = {"va": "center", "transform": axes.get_yaxis_transform()}
            axes.text(1.02, place, plain_text(row.text), color=INK, **right)
        if rule is not None:
            axes.axvline(rule, color=MUTED, linewidth=1, linestyle=":", zorder=1)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.set_yticks(range(len(rows)), [plain_text(cut(row.name, 40)) for row in rows], color=INK)
        # Upside down: the first row is at the top.
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(limits)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        axes.set_xlabel(x_label)

    height = ROW * len(rows) + (52 if x_label else 36)
    return Chart(title, summary, draw(name, spoken, paint, width, height))


def histogram(
    name: str,
    title: str,
    edges: Sequence[int],
    counts: Sequence[int],
    *,
    spoken: str,
    summary: str,
    rule: float,
    is_logarithmic: bool,
) -> Chart:
    """Draws numbers of rows between edges, which are in characters, and a dotted rule."""

    def paint(axes: Axes) -> None:
        widths = [end - start for start, end in pairwise(edges)]
        axes.bar(edges[:-1], counts, width=widths, align="edge", color=SERIES[0], alpha=0.55)
        # A logarithmic axis starts at 1, but the median may be 0.
        axes.axvline(max(rule, edges[0]), color=INK, linewidth=1, linestyle=":")
        axes.set_xscale("log" if is_logarithmic else "linear")
        if not is_logarithmic:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("characters")
        axes.set_ylabel("rows")

    return Chart(title, summary, draw(name, spoken, paint))


def draw(name: str, label: str, paint: Callable[[Axes], None], width: int = WIDTH, height: int = HEIGHT) -> Markup:
    """Returns the SVG of one plot that `paint` fills. A screen reader reads `label` instead of it.

    All plots of a page share one document: ids begin with the plot's `name`.
    """
    name = re.sub("[^a-z0-9]+", "-", name.casefold())
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a matplotlibrc of this machine must have no effect
        # Without a salt the ids of clip paths would differ in every run.
        matplotlib.rcParams.update(_SETTINGS | {"svg.hashsalt": name})
        figure = Figure(figsize=(width / 72, height / 72), facecolor="none", layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure.add_subplot())
        content = io.StringIO()
        # None leaves an entry out: matplotlib would write the date and its version.
        figure.savefig(content, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    # Only the drawing: no XML header, no metadata, no fixed size, no name that another plot may have.
    svg = content.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    tag = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
    svg = re.sub(r"<svg [^>]*>", lambda _: tag, svg, count=1)
    # Ids such as `line2d_7` are not referenced.
    svg = re.sub(r" id=\"[A-Za-z0-9.]+_\d+\"", "", svg)
    svg = re.sub(r" id=\"|xlink:href=\"#|url\(#", lambda match: f"{match[0]}{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"#0[0-9a]0[0-9a]0[0-9a]", lambda match: _VARIABLES.get(match[0], match[0]), svg)
    return Markup(re.sub(r"\s*\n\s*", "\n", svg).strip())


_FONT = 'text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }'


def picture_file(title: str, about: str, drawings: Sequence[tuple[str, str]]) -> str:
    """Returns a file with drawings side by side, each SVG under its heading, in the page's colours of both themes."""
    colors, _, _ = (Path(__file__).parent / "page.css").read_text(encoding="utf-8").partition("* {")
    parts, left, bottom = [], 24, 0
    for heading, svg in drawings:
        width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
        parts.append(f'<text x="{left}" y="78" style="font-weight:650">{escape(heading)}</text>')
        parts.append(str(svg).replace("<svg ", f'<svg x="{left}" y="84" width="{width}" height="{height}" ', 1))
        left, bottom = left + width + 24, max(bottom, height + 108)
    size = max(620, left), bottom
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="{size[0]}" '
        f'height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}">',
        f"<title>{escape(title)}</title><style>{colors}{_FONT}</style>",
        f'<rect width="{size[0]}" height="{size[1]}" style="fill:var(--paper)"/>',
        f'<text x="24" y="34" style="font-size:18px;font-weight:650">{escape(cut(title, 70))}</text>',
        f'<text x="24" y="56" style="fill:var(--muted)">{escape(about)}</text>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def amount(value: float | Interval, unit: str) -> str:
    """Formats three digits; unit % shows a fraction as a percentage."""
    return f"{100 * _estimate(value):.3g}%" if unit == "%" else f"{_estimate(value):.3g}"


def plain_text(text: str) -> str:
    """Escapes text so that matplotlib sees no formula in it."""
    return text.replace("$", r"\$")


def _show_legend(axes: Axes) -> None:
    """Adds a legend above the plot, where it hides no data, if there are several things to distinguish."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = 1 if max(map(len, labels)) > 24 else min(3, len(labels))
        axes.figure.legend(handles, labels, loc="outside upper left", ncols=columns)


def _estimate(value: float | Interval) -> float:
    return value.estimate if isinstance(value, Interval) else float(value)


def _whiskers(values: Sequence[float] | Sequence[Interval], factor: int) -> list[list[float]] | None:
    """Returns distances below and above; never negative, though rounding may put an estimate on its bound."""
    if not any(isinstance(value, Interval) for value in values):
        return None
    return [
        [max(0.0, factor * (value.estimate - value.low)) for value in values],
        [max(0.0, factor * (value.high - value.estimate)) for value in values],
    ]


def cut(text: str, letters: int) -> str:
    """Returns the text, or its beginning with an ellipsis."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _short(number: float) -> str:
    if number < 0.05:
        return "0"
    return f"{number:.0f}" if number >= 99.95 else f"{number:.1f}"
