"""Asynchronous rounds on the report page: activities of every process, age of its data, and why devices waited.

The picture is inline SVG: one row per process, colours by activity, marks, steps, a time axis. A row has COLUMNS
columns, however long the round was. Each column has the colour of the activity that took most of its time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas
from markupsafe import Markup

from stages.foundations.timelines import Span, WrittenTimeline
from stages.pages.drawing import Chart, amount, bars, lines
from stages.pages.reading import curve_lines

MOST_ROWS = 24
"""Maximum number of processes in the picture and in the table; of more replicas, the least busy are shown."""
MOST_REASONS = 10
"""Columns of the table; rarer reasons are summed in the last one."""


def describe_rounds(
    timelines: Mapping[str, WrittenTimeline], curves: Mapping[str, pandas.DataFrame]
) -> list[dict[str, Any]]:
    """Returns the template's values for each round that has a timeline."""
    return [
        _describe(name, number, timeline, curves.get(name))
        for number, (name, timeline) in enumerate(timelines.items(), 1)
    ]


def _describe(name: str, number: int, timeline: WrittenTimeline, curve: pandas.DataFrame | None) -> dict[str, Any]:
    processes = shown_processes(timeline)
    shares = {process: timeline.shares[process] for process in processes if timeline.shares.get(process)}
    spent = Counter[str]()
    for of_process in shares.values():
        spent.update(of_process)
    reasons = ["busy", *(reason for reason, _ in spent.most_common() if reason != "busy")]
    if is_cut := len(reasons) > MOST_REASONS:
        reasons = reasons[: MOST_REASONS - 1]
    rows = []
    for process, of_process in shares.items():
        # Summed, so that the row of a process still sums to 1.
        rare = [sum(share for reason, share in of_process.items() if reason not in reasons)] if is_cut else []
        rows.append((process, [of_process.get(reason, 0.0) for reason in reasons] + rare))
    activities = {span.activity for process in processes for span in timeline.spans.get(process, [])}
    legend = [activity for activity in ACTIVITIES if activity in activities]
    return {
        "name": name,
        "timeline": timeline,
        "reasons": [*reasons, "other"] if is_cut else reasons,
        "shares": rows,
        "left_out": len(timeline.shares.keys() - set(processes)),
        "legend": [*legend, "other"] if activities - set(ACTIVITIES) else legend,
        "signs": [sign for mark, sign in SIGNS.items() if timeline.marks(mark)],
        "picture": picture(timeline, processes),
        "begin": begin_of(timeline),  # of the picture: processes were starting until then
        "charts": _charts(number, curve) if curve is not None else [],
        "counts": _counts(timeline, curve),
    }


def shown_processes(timeline: WrittenTimeline) -> list[str]:
    """Returns processes with spans, in the file's order; if there are too many, the least busy."""
    processes = [process for process in timeline.spans if timeline.spans[process]]
    if len(processes) <= MOST_ROWS:
        return processes
    replicas = [process for process in processes if process.startswith("replica/")]
    # At most half of the rows: otherwise many trainer ranks would leave no rows for the replicas.
    others = [process for process in processes if not process.startswith("replica/")][: MOST_ROWS // 2]
    busy = {process: timeline.shares.get(process, {}).get("busy", 0.0) for process in replicas}
    chosen = {*others, *sorted(replicas, key=lambda process: busy[process])[: MOST_ROWS - len(others)]}
    return [process for process in processes if process in chosen]


def _counts(timeline: WrittenTimeline, curve: pandas.DataFrame | None) -> list[tuple[str, float]]:
    """Returns the sums of the counts in the curve's steps; without a curve, the counts of the timeline."""
    names = [] if curve is None else sorted(name for name in curve if name.startswith(("repack/", "fault/")))
    if names:
        return [(name, float(curve[name].sum())) for name in names]
    return [(f"{name}s", timeline.count(name)) for name in ("fault", "repack move")]


CURVES = {
    "Staleness": ("versions", {"staleness/mean": "mean", "staleness/max": "largest"}),
    "Age of ready groups": ("seconds", {"buffer/age_seconds_p50": "median", "buffer/age_seconds_max": "oldest"}),
    "Devices that wait": ("%", {"bubble": "bubble"}),
}


def _charts(number: int, curve: pandas.DataFrame) -> list[Chart]:
    prefix = "staleness/count_"
    counts = {name.removeprefix(prefix): float(curve[name].sum()) for name in curve if name.startswith(prefix)}
    ages = {age: count for age, count in counts.items() if age.isdecimal()}
    shares = {age: ages[age] / sum(ages.values()) for age in sorted(ages, key=int) if sum(ages.values())}
    title = "Staleness of trained responses"
    charts = [bars(f"ages-{number}", title, "%", {"": shares}, "versions behind")] if shares else []
    for title, (unit, columns) in CURVES.items():
        drawn = curve_lines(curve, columns)
        means = (f"{line.label} {amount(sum(line.y) / len(line.y), unit)}" for line in drawn)
        summary = f"mean over the steps: {'; '.join(means)}"
        charts += [lines(f"{title}-{number}", title, unit, drawn, summary=summary)] if drawn else []
    return charts


COLUMNS = 480
MOST_STEPS = 120
"""Maximum number of lines for steps; with more steps, only every second, fourth, ... is drawn."""
WORK = ("train", "decode", "prefill", "judge")
IDLE = ("publish", "pull", "evaluate", "checkpoint", "no_groups", "no_prompts", "tools", "start", "dead")
ACTIVITIES = (*WORK, *IDLE, "away", "unnamed")
"""Activities that have a colour, in the legend's order."""
SIGNS = {"fault": ("✕", "a fault"), "repack move": ("◆", "a repack move"), "publish": ("▾", "a publication")}
"""Name of an instant -> its sign and its text in the legend."""
_LEFT, _WIDTH, _ROW, _TOP = 116, 960, 20, 22


@dataclass(frozen=True)
class _Window:
    """The part of the round that is drawn; times are in seconds."""

    begin: float
    end: float

    def share(self, at: float) -> float:
        return min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin)))

    def x(self, at: float) -> str:
        return f"{_LEFT + _WIDTH * self.share(at):.1f}".removesuffix(".0")


def begin_of(timeline: WrittenTimeline) -> float:
    """Returns where the picture begins: 0, or shortly before the first work if starting took a sixth of the time."""
    first = [span.start for spans in timeline.spans.values() for span in spans if span.activity in WORK]
    begin, end = min(first, default=0.0), timeline.wall_seconds
    return begin - 0.03 * (end - begin) if begin > end / 6 else 0.0


def picture(timeline: WrittenTimeline, processes: Sequence[str]) -> Markup:
    """Draws one row per process, time from left to right, colours by activity (classes of timeline.css)."""
    begin = begin_of(timeline)
    # A round that failed at once has length 0, and positions are divided by the length.
    window = _Window(begin, max(timeline.wall_seconds, begin + 1e-9))
    height = _TOP + _ROW * len(processes) + 24
    spoken = f"Timeline of {timeline.wall_seconds:.1f} seconds. The table below has each process's shares."
    parts = [f'<svg viewBox="0 0 {_LEFT + _WIDTH + 24} {height}" role="img" aria-label="{spoken}">']
    bottom = _TOP + _ROW * len(processes)
    for row, process in enumerate(processes):
        top = _TOP + _ROW * row
        # 15 letters fit into the margin on the left.
        label = process if len(process) <= 15 else process[:14] + "…"
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end">{Markup.escape(label)}</text>'
            f"<g><title>{Markup.escape(_describe_shares(process, timeline))}</title>"
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
    """Returns each activity's rectangles: runs of columns in which it took most of the time."""
    columns: list[Counter[str]] = [Counter() for _ in range(COLUMNS)]
    width = (window.end - window.begin) / COLUMNS
    for span in spans:
        start, end = max(0.0, span.start - window.begin), span.end - window.begin
        # The very end of the round would be in a column after the last one.
        first, last = (min(COLUMNS - 1, int(at / width)) for at in (start, end))
        name = span.activity if span.activity in ACTIVITIES else "other"
        for column in range(first, last + 1):
            overlap = min(end, (column + 1) * width) - max(start, column * width)
            columns[column][name] += max(0.0, overlap)
    paths: dict[str, str] = defaultdict(str)
    size, column = _WIDTH // COLUMNS, 0
    winners = [max(times, key=times.__getitem__) if times.total() else "" for times in columns]
    while column < COLUMNS:
        end = column
        while end < COLUMNS and winners[end] == winners[column]:
            end += 1
        if winners[column]:
            length = size * (end - column)
            paths[winners[column]] += f"M{_LEFT + size * column} {top}h{length}v{height}h-{length}z"
        column = end
    return dict(paths)


def _steps(timeline: WrittenTimeline) -> list[float]:
    taken = sorted(at for _, at in timeline.marks("batch taken"))
    # A power of two: a longer round then shows some of the same lines, and no new ones.
    return taken[:: 2 ** max(0, math.ceil(math.log2(len(taken) / MOST_STEPS)))] if taken else []


def _signs(mark: str, sign: str, timeline: WrittenTimeline, processes: Sequence[str], window: _Window) -> list[str]:
    """Draws at most one sign per column and row; signs of processes without a row are above all rows."""
    rows = {process: _TOP + _ROW * row + 14 for row, process in enumerate(processes)}
    places = {(int(COLUMNS * window.share(at)), rows.get(process, _TOP - 6)) for process, at in timeline.marks(mark)}
    size = _WIDTH / COLUMNS
    return [
        f'<text class="sign {mark.split()[0]}" x="{_LEFT + size * column:.0f}" y="{y}">{sign}</text>'
        for column, y in sorted(places)
    ]


def _ticks(window: _Window) -> list[tuple[float, str]]:
    """Returns four to nine ticks at round numbers."""
    units = ((3600, "h"), (60, "min"))
    unit, name = next(((seconds, name) for seconds, name in units if window.end >= 2 * seconds), (1, "s"))
    spread = (window.end - window.begin) / unit / 5
    # 0.999: a width that fits exactly must not fail because of rounding.
    power = 10.0 ** math.floor(math.log10(spread))
    width = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= spread * 0.999)
    first, last = math.ceil(window.begin / unit / width), math.floor(window.end / unit / width + 1e-6)
    return [(number * width * unit, f"{number * width:.6g} {name}") for number in range(first, last + 1)]


def _describe_shares(process: str, timeline: WrittenTimeline) -> str:
    shares = timeline.shares.get(process, {})
    return f"{process}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
