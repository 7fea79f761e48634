"""The picture of a round's timeline as inline SVG: a row a process, colours by activity, marks, steps, a time axis.

However long a round was, a row has COLUMNS columns, each in the colour of what took most of its time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from stages.report.timeline_file import Span, Timeline

COLUMNS = 480
MOST_STEPS = 120
"""Lines for steps; of more, every second, fourth, ..."""
ACTIVITIES = (
    *(
        "train",
        "decode",
        "prefill",
        "judge",
        "publish",
        "pull",
        "checkpoint",
        "no_groups",
        "no_prompts",
        "start",
    ),
    *("dead", "away", "unnamed"),
)
"""Those with a colour of their own, in the legend's order."""
SIGNS = {"fault": ("✕", "a fault"), "repack move": ("◆", "a repack move"), "publish": ("▾", "a publication")}
"""Name of an instant -> its sign and what the legend says."""
_LEFT, _WIDTH, _ROW, _TOP = 116, 960, 20, 22


def picture(timeline: Timeline, processes: Sequence[str]) -> Markup:
    """A row a process and time from left to right; colours by activity (classes of timeline.css)."""
    wall = max(timeline.wall_seconds, 1e-9)
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
        for activity, path in _paths(timeline.spans.get(process, []), wall, top + 2, _ROW - 4).items():
            parts.append(f'<path class="did-{activity}" d="{path}"/>')
        parts.append("</g>")
    for at in _steps(timeline):
        x = _x(at, wall)
        parts.append(f'<path class="step" d="M{x} {_TOP - 4}V{bottom}"/>')
    for mark, (sign, _) in SIGNS.items():
        parts += _signs(mark, sign, timeline, processes, wall)
    for at, label in _ticks(wall):
        parts.append(f'<text x="{_x(at, wall)}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    return Markup("\n".join([*parts, "</svg>"]))


def _x(at: float, wall: float) -> str:
    return f"{_LEFT + _WIDTH * min(1.0, at / wall):.1f}".removesuffix(".0")


def _paths(spans: Iterable[Span], wall: float, top: int, height: int) -> dict[str, str]:
    """Rectangles of each activity: runs of columns in which it took most of the time."""
    columns: list[Counter[str]] = [Counter() for _ in range(COLUMNS)]
    width = wall / COLUMNS
    for span in spans:
        first, last = (min(COLUMNS - 1, int(at / width)) for at in (span.start, span.end))
        name = span.activity if span.activity in ACTIVITIES else "other"
        for column in range(first, last + 1):
            overlap = min(span.end, (column + 1) * width) - max(span.start, column * width)
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


def _signs(mark: str, sign: str, timeline: Timeline, processes: Sequence[str], wall: float) -> list[str]:
    """At most one a column and row; marks of processes without a row stand above all rows."""
    rows = {process: _TOP + _ROW * row + 14 for row, process in enumerate(processes)}
    places = {
        (int(COLUMNS * min(1.0, at / wall)), rows.get(process, _TOP - 6))
        for process, at in timeline.marks.get(mark, [])
    }
    size = _WIDTH / COLUMNS
    return [
        f'<text class="sign {mark.split()[0]}" x="{_LEFT + size * column:.0f}" y="{y}">{sign}</text>'
        for column, y in sorted(places)
    ]


def _ticks(wall: float) -> list[tuple[float, str]]:
    """Four to nine round times."""
    unit, name = next(((own, name) for own, name in ((3600, "h"), (60, "min")) if wall >= 2 * own), (1, "s"))
    spread = wall / unit / 5
    power = 10.0 ** math.floor(math.log10(spread))
    width = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= spread * 0.999)
    count = math.floor(wall / unit / width + 1e-6)
    return [(number * width * unit, f"{number * width:.6g} {name}") for number in range(count + 1)]


def _told(process: str, timeline: Timeline) -> str:
    shares = timeline.shares.get(process, {})
    return f"{process}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())


def _spoken(timeline: Timeline) -> str:
    return f"Timeline of {timeline.wall_seconds:.1f} seconds. The table below has each process's shares."
