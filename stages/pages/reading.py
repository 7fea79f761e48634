"""Numbers and curves of the stages of a graph. What a run does not have is absent, and no error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pandas
from pydantic import TypeAdapter, ValidationError

from stages.foundations.errors import UserError
from stages.foundations.stage_graph import GraphStage

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
    """Curves of each stage that has some, likewise; `folder` is data/curves."""
    found = {
        stage.address: _curve(folder / path.removeprefix("data/curves/"))
        for stage in stages
        for path in stage.curves
    }
    return {name: curve for name, curve in found.items() if curve is not None}


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
        curve = pandas.read_csv(path).apply(pandas.to_numeric)
    except (ValueError, pandas.errors.EmptyDataError) as error:
        raise UserError(f"{path} is not a table of curves ({error}): delete it and run `dvc repro`") from None
    if "step" not in curve:
        raise UserError(f"{path} has no column `step`: delete it and run `dvc repro`")
    return curve if len(curve) else None
