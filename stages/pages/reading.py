"""Counts of a run's stages: their metrics, curves and losses, and the reasons for dropped rows.

Data that a run does not have are absent, which is not an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from pydantic import TypeAdapter, ValidationError

from stages.foundations.errors import UserError
from stages.foundations.stage_graph import GraphStage
from stages.pages.drawing import Chart, Line, lines
from stages.pages.shown_stages import shown

Metrics = dict[str, float]
_METRICS = TypeAdapter(Metrics)


def read_metrics(stages: Iterable[GraphStage], folder: Path) -> dict[str, Metrics]:
    """Metrics of each stage that has some, by its DVC name. `folder` is data/metrics; UserError on a broken file."""
    return {
        stage.address: _metrics(place)
        for stage in stages
        for path in stage.metrics
        if (place := folder / path.removeprefix("data/metrics/")).exists()
    }


def read_curves(stages: Iterable[GraphStage], folder: Path) -> dict[str, pandas.DataFrame]:
    """Returns curves of each stage that has some, likewise; `folder` is data/curves."""
    curves = {
        stage.address: _curve(folder / path.removeprefix("data/curves/")) for stage in stages for path in stage.curves
    }
    return {name: curve for name, curve in curves.items() if curve is not None}


def _metrics(path: Path) -> Metrics:
    try:
        return _METRICS.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, ValidationError) as error:
        what = f"{error.error_count()} values are no numbers" if isinstance(error, ValidationError) else error
        raise UserError(f"{path} is not a metrics file ({what}): delete it and run `dvc repro`") from None


def _curve(path: Path) -> pandas.DataFrame | None:
    if not path.exists():
        return None
    try:
        # One broken cell makes pandas read a whole column as text; `to_numeric` finds it.
        curve = pandas.read_csv(path).apply(pandas.to_numeric)
    except (ValueError, pandas.errors.EmptyDataError) as error:
        raise UserError(f"{path} is not a table of curves ({error}): delete it and run `dvc repro`") from None
    if "step" not in curve:
        raise UserError(f"{path} has no column `step`: delete it and run `dvc repro`")
    return curve if len(curve) else None


def curve_lines(curve: pandas.DataFrame, columns: Mapping[str, str]) -> list[Line]:
    """Returns a line over the steps for each column that has numbers; `columns` has its label by its name."""
    numbers = {label: curve[["step", name]].dropna() for name, label in columns.items() if name in curve}
    return [Line(label, *values.to_numpy().T.tolist()) for label, values in numbers.items() if len(values)]


def loss_charts(curves: Mapping[str, pandas.DataFrame], unit: str, x_label: str) -> list[Chart]:
    """Returns training and validation loss of each curve that has them, by the stage's address."""
    losses_of = {
        stage: curve_lines(curve, {"loss/train": "training", "loss/validation": "validation"})
        for stage, curve in curves.items()
    }
    return [
        lines(f"loss-{stage}", f"Loss of {stage}", unit, losses, x_label=x_label)
        for stage, losses in losses_of.items()
        if losses
    ]


@dataclass(frozen=True)
class Funnel:
    """The rows of one data stage."""

    stage: str
    rows_in: int
    kept: int
    dropped: list[tuple[str, int]]
    """Reason in words and rows, most rows first."""

    def share(self, rows: int) -> float:
        """Rows as a fraction of those that came in; 0 when none did."""
        return rows / self.rows_in if self.rows_in else 0.0


@dataclass(frozen=True)
class WayStep:
    """A step in a chain that rows pass through."""

    stage: str
    unit: str
    """`pages` or `exercises`."""
    what: str
    """Dropped rows and the reason, or the input."""
    dropped: int
    left: int


@dataclass(frozen=True)
class Way:
    """From the input, such as pages, to the trusted rows: one step per reason of drops."""

    title: str
    note: str
    steps: list[WayStep]


def data_funnels(stages: Sequence[GraphStage], metrics: Mapping[str, Metrics]) -> list[Funnel]:
    """Returns funnels of the stages that may drop rows, in the order of the graph."""
    return [
        _funnel(stage.address, metrics[stage.address])
        for stage in stages
        if shown(stage.name).has_funnel and "rows/in" in metrics.get(stage.address, {})
    ]


def _funnel(stage: str, metrics: Metrics) -> Funnel:
    drops = {key.removeprefix("dropped/"): int(value) for key, value in metrics.items() if key.startswith("dropped/")}
    ranked = sorted(drops.items(), key=lambda item: (-item[1], item[0]))
    words = [(reason.replace("_", " "), rows) for reason, rows in ranked]
    return Funnel(stage, int(metrics["rows/in"]), int(metrics.get("rows/kept", 0)), words)


def ways(stages: Sequence[GraphStage], metrics: Mapping[str, Metrics], params: Mapping[str, Any]) -> list[Way]:
    """Returns the chains in which every stage has counted its rows; `params` is the whole parameter file."""
    titles = dict.fromkeys(way.title for stage in stages if (way := shown(stage.name).way))
    complete = [_way(title, stages, metrics, params) for title in titles]
    return [way for way in complete if way is not None]


def _way(
    title: str, stages: Sequence[GraphStage], counted: Mapping[str, Metrics], params: Mapping[str, Any]
) -> Way | None:
    steps, notes, left, before = [], [], 0, ""
    for stage in stages:
        step, metrics = shown(stage.name).way, counted.get(stage.address, {})
        if step is None or step.title != title:
            continue
        # A stage of the chain has not run: rows would vanish there without a reason.
        if "rows/in" not in metrics:
            return None
        if step.first:
            left = int(metrics["rows/in"])
            steps.append(WayStep(before or stage.address, step.unit, step.first, 0, left))
        for reason, rows in _reasons(metrics, step.reasons):
            left -= rows
            steps.append(WayStep(stage.address, step.unit, reason.replace("_", " "), rows, left))
        if step.last:
            steps.append(WayStep(stage.address, step.unit, step.last, 0, int(metrics.get("rows/kept", 0))))
        notes.append(step.note(params.get(stage.name) or {}))
        before = stage.address
    return Way(title, " ".join(filter(None, notes)), steps)


def _reasons(metrics: Metrics, listed: Sequence[str]) -> list[tuple[str, int]]:
    counts = {key.removeprefix("dropped/"): int(rows) for key, rows in metrics.items() if key.startswith("dropped/")}
    order = {reason: place for place, reason in enumerate(listed)}
    # Reasons that the stage does not list come last, by name.
    return sorted(counts.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
