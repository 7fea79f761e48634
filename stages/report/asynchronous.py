"""The section on asynchronous rounds: what their devices did and waited for, and the age of their data."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pandas
from markupsafe import Markup

from stages.foundations.errors import UserError
from stages.pages.drawing import Chart, amount, bars, lines
from stages.pages.page import Part, charts, html, paragraph, table
from stages.pages.reading import curve_lines
from stages.report.inputs import ReportRun

DEVICES = ("trainer", "replica")
"""Kinds of processes that hold a device, one each."""
CURVES = {
    "Staleness": ("versions", {"staleness/mean": "mean", "staleness/max": "largest"}),
    "Age of ready groups": ("seconds", {"buffer/age_seconds_p50": "median", "buffer/age_seconds_max": "oldest"}),
    "Devices that wait": ("%", {"bubble": "bubble"}),
}


def timelines(run: ReportRun) -> Part:
    """The asynchronous rounds, those with a trace; None for a run without one."""
    waits = {name: read_waits(run.paths.schedules / name / "timeline.json") for name in run.rounds}
    waits = {name: of_round for name, of_round in waits.items() if of_round is not None}
    if not waits:
        return None
    told = (
        "Times differ between equal runs. <code>timeline.json</code> beside a round's schedule, in "
        "<code>data/schedules/</code>, is a trace that Perfetto opens: what each process did, and when."
    )
    shown = [_round(number, name, of_round, run) for number, (name, of_round) in enumerate(waits.items(), 1)]
    return paragraph(told, kind="quiet") + Markup("").join(shown)


def read_waits(path: Path) -> dict[str, dict[str, float]] | None:
    """Returns the share of each activity in the time of the trainer and of the replicas; None without a trace.

    Raises UserError if the file is no trace of a round.
    """
    if not path.exists():
        return None
    try:
        seconds = json.loads(path.read_text(encoding="utf-8"))["otherData"]["seconds"]
        spent = {kind: Counter[str]() for kind in DEVICES}
        for process, activities in seconds.items():
            kind = process.partition("/")[0]
            if kind in spent:
                # The time between two attempts is not known.
                spent[kind].update({name: _number(time) for name, time in activities.items() if name != "away"})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a timeline ({type(error).__name__}: {error}): delete it and run `dvc repro`"
        ) from None
    return {
        kind: {name: time / own.total() for name, time in own.most_common()}
        for kind, own in spent.items()
        if own.total()
    }


def _number(value: object) -> float:
    # Python reads NaN and Infinity from JSON, but neither has a place on an axis.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no amount")
    return float(value)


def _round(number: int, name: str, waits: Mapping[str, Mapping[str, float]], run: ReportRun) -> Markup:
    curve = run.round_curves.get(name, pandas.DataFrame())
    named = {kind: {one.replace("_", " "): share for one, share in own.items()} for kind, own in waits.items()}
    drawn = [bars(f"waits-{number}", "What the devices did", "%", named)] if named else []
    # Sums over the steps of the curve.
    counted = sorted(column for column in curve if column.startswith(("repack/", "fault/")))
    rows = [(column, f"{curve[column].sum():.6g}") for column in counted]
    label = f"Repacks and faults of {name}"
    counts = table(label, [], rows, "Repacks and faults, whole round") if rows else None
    return html("<h3>{}</h3>\n{}{}", name, charts([*drawn, *_curve_charts(number, curve)]), counts)


def _curve_charts(number: int, curve: pandas.DataFrame) -> list[Chart]:
    prefix = "staleness/count_"
    counts = {name.removeprefix(prefix): float(curve[name].sum()) for name in curve if name.startswith(prefix)}
    ages = {age: count for age, count in counts.items() if age.isdecimal()}
    shares = {age: ages[age] / sum(ages.values()) for age in sorted(ages, key=int) if sum(ages.values())}
    title = "Staleness of trained responses"
    drawn = [bars(f"ages-{number}", title, "%", {"": shares}, "versions behind")] if shares else []
    for title, (unit, columns) in CURVES.items():
        of_title = curve_lines(curve, columns)
        means = (f"{line.label} {amount(sum(line.y) / len(line.y), unit)}" for line in of_title)
        summary = f"mean over the steps: {'; '.join(means)}"
        drawn += [lines(f"{title}-{number}", title, unit, of_title, summary=summary)] if of_title else []
    return drawn
