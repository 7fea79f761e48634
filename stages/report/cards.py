"""Dataset cards: for each table its rows, fields, licences, sources, hash, and how long its texts are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stages.foundations.legible import legible
from stages.pages.drawing import INK, SERIES, Chart, draw
from stages.report.tables import MOST_VALUES, Column, TableFacts

_BINS = 30
_MOST_LISTED = 12
_LETTERS = 80
"""Longest name of a source or licence that is shown."""
_SPREAD = 40
"""Longest text over median length from which the axis of lengths is logarithmic."""


@dataclass(frozen=True)
class Card:
    """One table, told to a reader."""

    name: str
    stage: str
    purpose: str
    rows: int
    size: str
    md5: str
    columns: list[Column]
    values: list[tuple[str, list[tuple[str, int]], int]]
    """Column, its most frequent values with their rows, and how many further values there are."""
    charts: list[Chart]


def describe_tables(tables: Sequence[TableFacts]) -> list[Card]:
    """A card for each table."""
    return [_card(table) for table in tables]


def _card(table: TableFacts) -> Card:
    values = [
        (
            column,
            [(legible(value, _LETTERS), rows) for value, rows in counts[:_MOST_LISTED]],
            max(0, len(counts) - _MOST_LISTED),
        )
        for column, counts in table.values.items()
        if 0 < len(counts) <= MOST_VALUES
    ]
    charts = [_length_chart(table.name, column, lengths) for column, lengths in table.characters.items()]
    return Card(
        table.name,
        table.stage,
        table.purpose,
        table.rows,
        _size(table.bytes),
        table.md5,
        table.columns,
        values,
        charts,
    )


def _length_chart(table: str, column: str, lengths: numpy.ndarray) -> Chart:
    """Histogram of lengths in characters; the number axis is logarithmic where few texts are far longer than most."""
    median, longest = float(numpy.median(lengths)), int(lengths.max())
    is_logarithmic = longest > _SPREAD * max(1.0, median)
    edges = length_bins(lengths, is_logarithmic)
    counts, _ = numpy.histogram(lengths, edges)

    def paint(axes: Axes) -> None:
        axes.bar(edges[:-1], counts, width=numpy.diff(edges), align="edge", color=SERIES[0], alpha=0.55)
        axes.axvline(max(median, float(edges[0])), color=INK, linewidth=1, linestyle=":")
        axes.set_xscale("log" if is_logarithmic else "linear")
        if not is_logarithmic:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlim(float(edges[0]), float(edges[-1]))
        axes.set_xlabel("characters")
        axes.set_ylabel("rows")

    share = f"median {median:,.0f}, 95% up to {numpy.percentile(lengths, 95):,.0f}, longest {longest:,} characters"
    name = f"card-{re.sub('[^a-z0-9]+', '-', table.casefold())}-{column}"
    spoken = f"Lengths of {column} in {table}: {share}."
    return Chart(f"Length of {column}", share, draw(name, spoken, paint))


def length_bins(lengths: numpy.ndarray, is_logarithmic: bool) -> numpy.ndarray:
    """Edges of bins that hold every length, in whole characters; equal steps, or equal ratios from 1 on."""
    longest = max(1, int(lengths.max()))
    if is_logarithmic:
        return numpy.unique(numpy.ceil(numpy.geomspace(1, longest + 1, _BINS + 1)).astype(numpy.int64))
    step = -(-(longest + 1) // _BINS)
    return numpy.arange(0, longest + step + 1, step)


def _size(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
