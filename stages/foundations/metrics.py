"""Metric files and curves: flat, sorted, finite, and equal between equal runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.foundations.files import write_json, write_text_atomically


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Writes `{"<thing>/<quantity>": number}`; ValueError names every value that is not a finite number."""
    broken = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
    }
    if broken:
        raise ValueError(f"metrics must be finite numbers: {broken}")
    write_json(path, dict(metrics))


def write_curves(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Writes one CSV row per step; columns are `step` and then the union of the other keys, sorted.

    A step that lacks a value leaves its cell empty.
    """
    columns = sorted({name for row in rows for name in row} - {"step"})
    text = io.StringIO()
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomically(path, text.getvalue())
