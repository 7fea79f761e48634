"""Small plots as inline SVG: equal data gives equal bytes, and colours follow the page's light or dark theme.

matplotlib knows no CSS, so plots are drawn in the stand-in colours below, which become the page's variables.
Text stays text, in the page's own font; ids carry the plot's name, because all plots share one document.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from stages.algorithms.estimators import Interval

INK, MUTED, LINE = "#010a01", "#020a02", "#030a03"
SERIES = ("#0a0101", "#0a0102", "#0a0103", "#0a0104", "#0a0105")
"""Stand-ins for the page's colours of data."""
DASHES = ("-", "--", ":", "-.", (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v")

_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)"} | {
    color: f"var(--series-{number})" for number, color in enumerate(SERIES, start=1)
}
_WIDTH, _HEIGHT = 340, 196
"""Points; one point is one unit of the SVG, which is as wide as a phone."""
_SETTINGS = {
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
    "axes.formatter.useoffset": False,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "lines.linewidth": 1.7,
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
    """The plot in one line; empty where its numbers stand in the plot. A screen reader always hears it."""
    svg: Markup


def draw(name: str, label: str, paint: Callable[[Axes], None]) -> Markup:
    """The SVG of one plot that `paint` fills. `label` is what a screen reader says instead of it."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a matplotlibrc of this machine must not show
        matplotlib.rcParams.update(_SETTINGS | {"svg.hashsalt": name})
        figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), facecolor="none", layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        paint(axes)
        content = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(content, format="svg", metadata=nothing)
    return Markup(_inline(content.getvalue(), name, label))


def show_legend(axes: Axes) -> None:
    """A legend above the plot, where it hides no data, if there is more than one thing to tell apart."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = 1 if max(map(len, labels)) > 24 else min(3, len(labels))
        axes.figure.legend(handles, labels, loc="outside upper left", ncols=columns)


def show_policies(axes: Axes, policies: Iterable[str]) -> None:
    """Policies along the x axis, slanted where there is no room."""
    names = [name if len(name) <= 14 else name[:13] + "…" for name in policies]
    is_crowded = sum(len(name) + 2 for name in names) > 44
    slant = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if is_crowded else {}
    axes.set_xticks(range(len(names)), [plain_text(name) for name in names], **slant)
    axes.set_xlim(-0.5, len(names) - 0.5)


def whiskers(intervals: Sequence[Interval]) -> list[list[float]]:
    """Distances below and above, in percent; never negative, though rounding may put an estimate on its bound."""
    return [
        [max(0.0, 100 * (own.estimate - own.low)) for own in intervals],
        [max(0.0, 100 * (own.high - own.estimate)) for own in intervals],
    ]


def plain_text(text: str) -> str:
    """Text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def _inline(svg: str, name: str, label: str) -> str:
    """The drawing alone: no XML header, no metadata, no fixed size, no name that another plot may have."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    spoken = Markup.escape(label)
    tag = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{spoken}">'
    svg = re.sub(r"<svg [^>]*>", lambda _: tag, svg, count=1)
    svg = re.sub(r" id=\"[A-Za-z0-9.]+_\d+\"", "", svg)
    svg = re.sub(r" id=\"|xlink:href=\"#|url\(#", lambda match: f"{match[0]}{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"#0[0-9a]0[0-9a]0[0-9a]", lambda match: _VARIABLES.get(match[0], match[0]), svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()
