"""Asynchronous rounds on the page: what every process did and when, how old its data was, why devices waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pandas
from markupsafe import Markup
from matplotlib.axes import Axes

from stages.pages.drawing import DASHES, INK, SERIES, Chart, draw, show_legend
from stages.report.timeline_file import Timeline
from stages.report.timeline_picture import ACTIVITIES, SIGNS, begin_of, picture

MOST_ROWS = 24
"""Processes in the picture and in the table; of more replicas, those that were busy least."""
MOST_REASONS = 10
"""Columns of the table; rarer reasons are added up."""


@dataclass(frozen=True)
class AsynchronousRound:
    """What the page says of one round."""

    name: str
    timeline: Timeline
    processes: list[str]
    """Shown in the picture and the table."""
    left_out: int
    """Replicas that are not among them."""
    reasons: list[str]
    legend: list[str]
    signs: list[tuple[str, str]]
    picture: Markup
    begin: float
    """Of the picture, in seconds; processes were starting until then."""
    charts: list[Chart]
    counts: list[tuple[str, float]]
    """Repacks, faults, with what they count."""

    def share(self, process: str, reason: str) -> float:
        own = self.timeline.shares[process]
        if reason == "other":
            return sum(share for name, share in own.items() if name not in self.reasons)
        return own.get(reason, 0.0)


def describe_rounds(
    timelines: Mapping[str, Timeline], curves: Mapping[str, pandas.DataFrame]
) -> list[AsynchronousRound]:
    """One entry a round that has a timeline."""
    return [
        _described(name, number, timeline, curves.get(name))
        for number, (name, timeline) in enumerate(timelines.items(), 1)
    ]


def _described(
    name: str, number: int, timeline: Timeline, curve: pandas.DataFrame | None
) -> AsynchronousRound:
    processes = shown_processes(timeline)
    spent = Counter[str]()
    for process in processes:
        spent.update(timeline.shares.get(process, {}))
    reasons = ["busy", *(reason for reason, _ in spent.most_common() if reason != "busy")]
    if len(reasons) > MOST_REASONS:
        reasons = [*reasons[: MOST_REASONS - 1], "other"]
    seen = {span.activity for process in processes for span in timeline.spans.get(process, [])}
    legend = [activity for activity in ACTIVITIES if activity in seen]
    return AsynchronousRound(
        name=name,
        timeline=timeline,
        processes=[process for process in processes if timeline.shares.get(process)],
        left_out=len(timeline.shares.keys() - set(processes)),
        reasons=reasons,
        legend=[*legend, "other"] if seen - set(ACTIVITIES) else legend,
        signs=[sign for mark, sign in SIGNS.items() if timeline.marks.get(mark)],
        picture=picture(timeline, processes),
        begin=begin_of(timeline),
        charts=_charts(number, curve) if curve is not None else [],
        counts=_counts(timeline, curve),
    )


def shown_processes(timeline: Timeline) -> list[str]:
    """Processes with spans in the file's order, of too many the least busy."""
    processes = [process for process in timeline.spans if timeline.spans[process]]
    if len(processes) <= MOST_ROWS:
        return processes
    replicas = [process for process in processes if process.startswith("replica/")]
    others = [process for process in processes if not process.startswith("replica/")][: MOST_ROWS // 2]
    busy = {process: timeline.shares.get(process, {}).get("busy", 0.0) for process in replicas}
    chosen = {*others, *sorted(replicas, key=lambda process: busy[process])[: MOST_ROWS - len(others)]}
    return [process for process in processes if process in chosen]


def _counts(timeline: Timeline, curve: pandas.DataFrame | None) -> list[tuple[str, float]]:
    """What the steps have counted; where there is no curve, what the timeline has."""
    names = [] if curve is None else sorted(name for name in curve if name.startswith(("repack/", "fault/")))
    if names:
        return [(name, float(curve[name].sum())) for name in names]
    return [(f"{name}s", timeline.counts.get(name, 0)) for name in ("fault", "repack move")]


def _charts(number: int, curve: pandas.DataFrame) -> list[Chart]:
    counts = {
        int(name.rpartition("_")[2]): float(curve[name].sum())
        for name in curve
        if name.startswith("staleness/count_") and name.rpartition("_")[2].isdecimal()
    }
    charts = [_histogram(number, dict(sorted(counts.items())))] if sum(counts.values()) else []
    lines = (
        ("staleness", "Staleness", "versions", {"staleness/mean": "mean", "staleness/max": "largest"}),
        (
            "buffer-age",
            "Age of ready groups",
            "seconds",
            {"buffer/age_seconds_p50": "median", "buffer/age_seconds_max": "oldest"},
        ),
        ("bubble", "Devices that wait", "%", {"bubble": "bubble"}),
    )
    for name, title, unit, columns in lines:
        found = {own: label for own, label in columns.items() if own in curve and curve[own].notna().any()}
        if found:
            charts.append(_lines(f"{name}-{number}", title, unit, curve, found))
    return charts


def _histogram(number: int, counts: Mapping[int, float]) -> Chart:
    total = sum(counts.values())
    shares = [100 * count / total for count in counts.values()]

    def paint(axes: Axes) -> None:
        axes.bar(range(len(counts)), shares, color=SERIES[0], alpha=0.55, width=0.72)
        for place, share in enumerate(shares):
            axes.text(place, share, f"{share:.0f}", color=INK, ha="center", va="bottom", fontsize=9.5)
        axes.set_xticks(range(len(counts)), [str(age) for age in counts])
        axes.margins(y=0.16)
        axes.set_xlabel("versions behind")
        axes.set_ylabel("% of trained")

    told = ", ".join(f"{age}: {share:.1f}%" for age, share in zip(counts, shares, strict=True))
    label = f"Staleness of trained responses. {told}."
    return Chart("Staleness of trained responses", "", draw(f"staleness-counts-{number}", label, paint))


def _lines(name: str, title: str, unit: str, curve: pandas.DataFrame, columns: Mapping[str, str]) -> Chart:
    factor = 100 if unit == "%" else 1

    def paint(axes: Axes) -> None:
        for place, (column, label) in enumerate(columns.items()):
            own = curve[["step", column]].dropna()
            marker = "o" if len(own) == 1 else ""
            style = {"color": SERIES[place], "linestyle": DASHES[place], "marker": marker, "label": label}
            axes.plot(own["step"], own[column] * factor, **style)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.set_ylabel(unit)
        show_legend(axes)

    means = "; ".join(
        f"{label} {curve[column].mean() * factor:.3g}{'%' if unit == '%' else ''}"
        for column, label in columns.items()
    )
    return Chart(title, f"mean over the steps: {means}", draw(name, f"{title}. {means}.", paint))
