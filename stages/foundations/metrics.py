"""Metric files and curves: flat, sorted, finite, and equal between equal runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.foundations.files import write_json, write_text_atomically

HEADLINE = frozenset(["kept", "loss", "accuracy", "score", "low", "high", "tokens"])
"""The columns of `dvc metrics show`: few and short, or the table outgrows every screen. Rows kept by a data stage,
validation loss, share of correct rollouts in a round's last step, score on a benchmark with its 95% interval, and mean
tokens of a response."""


def write_metrics(path: Path, metrics: Mapping[str, float], headlines: Mapping[Path, Mapping[str, str]] = {}) -> None:
    """Writes `{"<thing>/<quantity>": number}`, and beside it the few numbers that a person compares.

    `headlines` holds for each file what stands in it: a word of HEADLINE and the name of the number in `metrics`. DVC
    is told of these files only (`metrics:` in dvc.yaml), because it makes a column of every number that it is told of.
    What `metrics` lacks is left out. ValueError names every value that is not a finite number, and every column that
    is not in HEADLINE.
    """
    broken = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
    }
    if broken:
        raise ValueError(f"metrics must be finite numbers: {broken}")
    unknown = {column for shown in headlines.values() for column in shown} - HEADLINE
    if unknown:
        raise ValueError(f"a headline has columns of {sorted(HEADLINE)}, not {sorted(unknown)}")
    for place, shown in headlines.items():
        write_json(place, {column: metrics[name] for column, name in shown.items() if name in metrics})
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
