"""Dataset cards: for each table its rows, fields, licences, sources, hash, and text lengths.

Tables are read in batches of rows, so memory does not grow with their size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stages.foundations.files import dvc_md5
from stages.foundations.stage_graph import GraphStage
from stages.foundations.tables import open_table
from stages.pages.drawing import INK, SERIES, Chart, draw
from stages.pages.page import visible_text
from stages.pages.shown_stages import shown

_BINS = 30
_MOST_LISTED = 12
_LETTERS = 80
"""Longest name of a source or licence that is shown."""
_SPREAD = 40
"""Longest text over median length from which the axis of lengths is logarithmic."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: str
    filled: int
    """Rows in which the column is not empty."""


@dataclass(frozen=True)
class Card:
    """One table, described for a reader who does not know its purpose."""

    name: str
    """Its path under data/, without the ending: `problems/train`."""
    stage: str
    """DVC's name of the stage that makes it."""
    purpose: str
    rows: int
    size: str
    md5: str
    """Hash of the file, as in dvc.lock."""
    columns: list[Column]
    values: list[tuple[str, list[tuple[str, int]], int]]
    """Column, its most frequent values with their rows, and the number of further values."""
    charts: list[Chart]


MEASURED = ("content", "problem", "solution", "response", "answer")
"""Text columns whose lengths are shown, in this order."""
COUNTED = ("source", "licence", "kind", "format", "rule", "scope", "band", "benchmark")
"""Columns whose values are counted."""
_ROWS_AT_ONCE = 4_096
MOST_VALUES = 1_000
"""Most different values of a counted column; a column with more is left out."""


def read_cards(folders: Sequence[Path], stages: Iterable[GraphStage]) -> list[Card]:
    """Returns a card for each table of the stages, in the order of the graph; a folder is named as in `data/`.

    A missing table is left out. UserError for a file that is not a table.
    """
    places = {folder.name: folder for folder in folders}
    cards = []
    for stage in stages:
        for pattern, purpose in shown(stage.name).tables.items():
            name = pattern.replace("*", stage.item)
            top, _, rest = name.partition("/")
            path = places[top] / f"{rest}.parquet"
            if path.exists():
                with open_table(path) as file:
                    cards.append(_card(name, stage.address, purpose, path, file))
    return cards


def _card(name: str, stage: str, purpose: str, path: Path, file: pyarrow.parquet.ParquetFile) -> Card:
    schema = file.schema_arrow
    # Tables of other programs may have large strings.
    texts = [field.name for field in schema if field.type in (pyarrow.string(), pyarrow.large_string())]
    filled: Counter[str] = Counter()
    values: dict[str, Counter[str]] = {column: Counter() for column in COUNTED if column in texts}
    lengths: dict[str, list[numpy.ndarray]] = {column: [] for column in MEASURED if column in texts}
    for batch in file.iter_batches(_ROWS_AT_ONCE):
        for column, data in zip(batch.schema.names, batch.columns, strict=True):
            filled[column] += len(data) - data.null_count
            # Beyond the limit nothing is counted, to save memory; the column is then left out below.
            if column in values and len(values[column]) <= MOST_VALUES:
                for counted in pyarrow.compute.value_counts(data).to_pylist():
                    values[column][counted["values"] or "none given"] += counted["counts"]
            if column in lengths:
                lengths[column].append(pyarrow.compute.utf8_length(data.drop_null()).to_numpy(zero_copy_only=False))
    characters = {column: numpy.concatenate(parts).astype(numpy.int64) for column, parts in lengths.items() if parts}
    ranked = {name: sorted(own.items(), key=lambda item: (-item[1], item[0])) for name, own in values.items()}
    return Card(
        name=name,
        stage=stage,
        purpose=purpose,
        rows=file.metadata.num_rows,
        size=_size(path.stat().st_size),
        md5=dvc_md5(path),
        columns=[Column(field.name, str(field.type), filled[field.name]) for field in schema],
        values=[
            (
                column,
                [(visible_text(value, _LETTERS), rows) for value, rows in own[:_MOST_LISTED]],
                len(own) - _MOST_LISTED,
            )
            for column, own in ranked.items()
            if 0 < len(own) <= MOST_VALUES
        ],
        charts=[_length_chart(name, column, own) for column, own in characters.items() if len(own)],
    )


def _length_chart(table: str, column: str, lengths: numpy.ndarray) -> Chart:
    """Returns a histogram of lengths in characters, with a logarithmic axis if few texts are far longer than most."""
    median, longest = float(numpy.median(lengths)), int(lengths.max())
    is_logarithmic = longest > _SPREAD * max(1.0, median)
    edges = length_bins(lengths, is_logarithmic)
    counts, _ = numpy.histogram(lengths, edges)

    def paint(axes: Axes) -> None:
        axes.bar(edges[:-1], counts, width=numpy.diff(edges), align="edge", color=SERIES[0], alpha=0.55)
        # A logarithmic axis starts at 1, but the median may be 0.
        axes.axvline(max(median, float(edges[0])), color=INK, linewidth=1, linestyle=":")
        axes.set_xscale("log" if is_logarithmic else "linear")
        if not is_logarithmic:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlim(float(edges[0]), float(edges[-1]))
        axes.set_xlabel("characters")
        axes.set_ylabel("rows")

    share = f"median {median:,.0f}, 95% up to {numpy.percentile(lengths, 95):,.0f}, longest {longest:,} characters"
    spoken = f"Lengths of {column} in {table}: {share}."
    return Chart(f"Length of {column}", share, draw(f"card-{table}-{column}", spoken, paint))


def length_bins(lengths: numpy.ndarray, is_logarithmic: bool) -> numpy.ndarray:
    """Returns edges of bins for all lengths, in whole characters; equal steps, or equal ratios from 1 on."""
    longest = max(1, int(lengths.max()))
    if is_logarithmic:
        # Several of the first edges may round up to the same whole number.
        return numpy.unique(numpy.ceil(numpy.geomspace(1, longest + 1, _BINS + 1)).astype(numpy.int64))
    # Rounded up, so that the bins reach the longest text.
    step = -(-(longest + 1) // _BINS)
    return numpy.arange(0, longest + step + 1, step)


def _size(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
