"""The picture of a round's timeline as inline SVG: a row a process, colours by activity, marks, steps, a time axis.

However long a round was, a row has COLUMNS columns, each in the colour of what took most of its time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stages.report.timeline_file import Span, Timeline

COLUMNS = 480
MOST_STEPS = 120
"""Lines for steps; of more, every second, fourth, ..."""
WORK = ("train", "decode", "prefill", "judge")
ACTIVITIES = (
    *WORK,
    "publish",
    "pull",
    "checkpoint",
    "no_groups",
    "no_prompts",
    "start",
    "dead",
    "away",
    "unnamed",
)
"""Those with a colour of their own, in the legend's order."""
SIGNS = {"fault": ("✕", "a fault"), "repack move": ("◆", "a repack move"), "publish": ("▾", "a publication")}
"""Name of an instant -> its sign and what the legend says."""
_LEFT, _WIDTH, _ROW, _TOP = 116, 960, 20, 22


@dataclass(frozen=True)
class _Window:
    """The part of the round that is drawn, in seconds."""

    begin: float
    end: float

    def share(self, at: float) -> float:
        return min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin)))

    def x(self, at: float) -> str:
        return f"{_LEFT + _WIDTH * self.share(at):.1f}".removesuffix(".0")


def begin_of(timeline: Timeline) -> float:
    """Where the picture begins: at 0, or shortly before the first work where starting took a sixth of the time."""
    first = [span.start for own in timeline.spans.values() for span in own if span.activity in WORK]
    begin, end = min(first, default=0.0), timeline.wall_seconds
    return begin - 0.03 * (end - begin) if begin > end / 6 else 0.0


def picture(timeline: Timeline, processes: Sequence[str]) -> Markup:
    """A row a process and time from left to right; colours by activity (classes of timeline.css)."""
    begin = begin_of(timeline)
    window = _Window(begin, max(timeline.wall_seconds, begin + 1e-9))
    height = _TOP + _ROW * len(processes) + 24
    parts = [
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 24} {height}" role="img" aria-label="{_spoken(timeline)}">'
    ]
    bottom = _TOP + _ROW * len(processes)
    for row, process in enumerate(processes):
        top = _TOP + _ROW * row
        label = process if len(process) <= 15 else process[:14] + "…"
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{Markup.escape(label)}</text>'
            f"<g><title>{Markup.escape(_told(process, timeline))}</title>"
        )
        for activity, path in _paths(timeline.spans.get(process, []), window, top + 2, _ROW - 4).items():
            parts.append(f'<path class="did-{activity}" d="{path}"/>')
        parts.append("</g>")
    for at in _steps(timeline):
        parts.append(f'<path class="step" d="M{window.x(at)} {_TOP - 4}V{bottom}"/>')
    for mark, (sign, _) in SIGNS.items():
        parts += _signs(mark, sign, timeline, processes, window)
    for at, label in _ticks(window):
        parts.append(f'<text x="{window.x(at)}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    return Markup("\n".join([*parts, "</svg>"]))


def _paths(spans: Iterable[Span], window: _Window, top: int, height: int) -> dict[str, str]:
    """Rectangles of each activity: runs of columns in which it took most of the time."""
    columns: list[Counter[str]] = [Counter() for _ in range(COLUMNS)]
    width = (window.end - window.begin) / COLUMNS
    for span in spans:
        start, end = max(0.0, span.start - window.begin), span.end - window.begin
        first, last = (min(COLUMNS - 1, int(at / width)) for at in (start, end))
        name = span.activity if span.activity in ACTIVITIES else "other"
        for column in range(first, last + 1):
            overlap = min(end, (column + 1) * width) - max(start, column * width)
            columns[column][name] += max(0.0, overlap)
    paths: dict[str, str] = defaultdict(str)
    size, column = _WIDTH // COLUMNS, 0
    winners = [max(own, key=own.__getitem__) if own.total() else "" for own in columns]
    while column < COLUMNS:
        end = column
        while end < COLUMNS and winners[end] == winners[column]:
            end += 1
        if winners[column]:
            length = size * (end - column)
            paths[winners[column]] += f"M{_LEFT + size * column} {top}h{length}v{height}h-{length}z"
        column = end
    return dict(paths)


def _steps(timeline: Timeline) -> list[float]:
    taken = sorted(at for _, at in timeline.marks.get("batch taken", []))
    return taken[:: 2 ** max(0, math.ceil(math.log2(len(taken) / MOST_STEPS)))] if taken else []


def _signs(mark: str, sign: str, timeline: Timeline, processes: Sequence[str], window: _Window) -> list[str]:
    """At most one a column and row; marks of processes without a row stand above all rows."""
    rows = {process: _TOP + _ROW * row + 14 for row, process in enumerate(processes)}
    places = {
        (int(COLUMNS * window.share(at)), rows.get(process, _TOP - 6))
        for process, at in timeline.marks.get(mark, [])
    }
    size = _WIDTH / COLUMNS
    return [
        f'<text class="sign {mark.split()[0]}" x="{_LEFT + size * column:.0f}" y="{y}">{sign}</text>'
        for column, y in sorted(places)
    ]


def _ticks(window: _Window) -> list[tuple[float, str]]:
    """Four to nine round times."""
    units = ((3600, "h"), (60, "min"))
    unit, name = next(((own, name) for own, name in units if window.end >= 2 * own), (1, "s"))
    spread = (window.end - window.begin) / unit / 5
    power = 10.0 ** math.floor(math.log10(spread))
    width = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= spread * 0.999)
    first, last = math.ceil(window.begin / unit / width), math.floor(window.end / unit / width + 1e-6)
    return [(number * width * unit, f"{number * width:.6g} {name}") for number in range(first, last + 1)]


def _told(process: str, timeline: Timeline) -> str:
    shares = timeline.shares.get(process, {})
    return f"{process}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def _spoken(timeline: Timeline) -> str:
    return f"Timeline of {timeline.wall_seconds:.1f} seconds. The table below has each process's shares."
