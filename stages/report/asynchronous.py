"""Asynchronous rounds on the report page: what their devices did and waited for, and the age of their data."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas

from stages.foundations.errors import UserError
from stages.pages.drawing import Chart, amount, bars, lines
from stages.pages.reading import curve_lines

DEVICES = ("trainer", "replica")
"""Kinds of processes that hold a device, one each."""


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


def describe_rounds(
    waits: Mapping[str, Mapping[str, Mapping[str, float]]], curves: Mapping[str, pandas.DataFrame]
) -> list[dict[str, Any]]:
    """Returns the template's values for each asynchronous round."""
    return [
        {
            "name": name,
            "charts": [*_waits(number, of_round), *_charts(number, curves.get(name))],
            "counts": _counts(curves.get(name)),
        }
        for number, (name, of_round) in enumerate(waits.items(), 1)
    ]


def _waits(number: int, of_round: Mapping[str, Mapping[str, float]]) -> list[Chart]:
    named = {
        kind: {activity.replace("_", " "): share for activity, share in shares.items()}
        for kind, shares in of_round.items()
    }
    return [bars(f"waits-{number}", "What the devices did", "%", named, "")] if named else []


def _counts(curve: pandas.DataFrame | None) -> list[tuple[str, float]]:
    """Returns the sums of the counts in the curve's steps."""
    names = [] if curve is None else sorted(name for name in curve if name.startswith(("repack/", "fault/")))
    return [(name, float(curve[name].sum())) for name in names]


CURVES = {
    "Staleness": ("versions", {"staleness/mean": "mean", "staleness/max": "largest"}),
    "Age of ready groups": ("seconds", {"buffer/age_seconds_p50": "median", "buffer/age_seconds_max": "oldest"}),
    "Devices that wait": ("%", {"bubble": "bubble"}),
}


def _charts(number: int, curve: pandas.DataFrame | None) -> list[Chart]:
    if curve is None:
        return []
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
