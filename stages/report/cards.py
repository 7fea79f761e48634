"""The section with a card for each table of the data stages: rows, fields, licences, sources, hash, text lengths.

Tables are read in batches of rows, so memory does not grow with their size.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from markupsafe import Markup

from stages.foundations.files import dvc_md5
from stages.foundations.tables import open_table
from stages.pages.drawing import Chart, histogram
from stages.pages.page import Cell, Part, charts, count, details, html, paragraph, table, visible_text
from stages.pages.shown_stages import shown
from stages.report.inputs import ReportRun

_BINS = 30
_MOST_LISTED = 12
_LETTERS = 80
"""Longest name of a source or licence that is shown."""
_SPREAD = 40
"""Longest text over median length from which the axis of lengths is logarithmic."""
MEASURED = ("content", "problem", "solution", "response", "answer")
"""Text columns whose lengths are shown, in this order."""
COUNTED = ("source", "licence", "kind", "format", "rule", "scope", "band", "benchmark")
"""Columns whose values are counted."""
_ROWS_AT_ONCE = 4_096
MOST_VALUES = 1_000
"""Most different values of a counted column; a column with more is left out."""


def data(run: ReportRun) -> Part:
    """A card for each table of the stages, in the order of the graph; a missing table is left out.

    UserError for a file that is not a table.
    """
    cards = []
    for stage in run.stages:
        for pattern, purpose in shown(stage.name).tables.items():
            name = pattern.replace("*", stage.item)
            top, _, rest = name.partition("/")
            path = getattr(run.paths, top) / f"{rest}.parquet"
            if path.exists():
                with open_table(path) as file:
                    cards.append(_card(name, f"{purpose} Made by", stage.address, path, file))
    told = "A card for each table: rows, fields, licences, sources, lengths. Hashes are those of <code>dvc.lock</code>."
    if not cards:
        return paragraph("No data stage has written a table yet.", kind="absent")
    return paragraph(told, kind="quiet") + Markup("").join(cards)


def _card(name: str, purpose: str, stage: str, path: Path, file: pyarrow.parquet.ParquetFile) -> Markup:
    schema = file.schema_arrow
    # Tables of other programs may have large strings.
    texts = [field.name for field in schema if field.type in (pyarrow.string(), pyarrow.large_string())]
    filled: Counter[str] = Counter()
    values: dict[str, Counter[str]] = {column: Counter() for column in COUNTED if column in texts}
    lengths: dict[str, list[numpy.ndarray]] = {column: [] for column in MEASURED if column in texts}
    for batch in file.iter_batches(_ROWS_AT_ONCE):
        for column, cells in zip(batch.schema.names, batch.columns, strict=True):
            filled[column] += len(cells) - cells.null_count
            # Beyond the limit nothing is counted, to save memory; the column is then left out below.
            if column in values and len(values[column]) <= MOST_VALUES:
                for counted in pyarrow.compute.value_counts(cells).to_pylist():
                    values[column][counted["values"] or "none given"] += counted["counts"]
            if column in lengths:
                lengths[column].append(pyarrow.compute.utf8_length(cells.drop_null()).to_numpy(zero_copy_only=False))
    characters = {column: numpy.concatenate(parts).astype(numpy.int64) for column, parts in lengths.items() if parts}
    fields = [(field.name, str(field.type), count(filled[field.name])) for field in schema]
    size = html('<span class="quiet">{} rows, {}</span>', count(file.metadata.num_rows), _size(path.stat().st_size))
    return details(
        html("{} {}", name, size),
        paragraph("{} <code>{}</code>.", purpose, stage),
        paragraph("MD5 <code>{}</code>", dvc_md5(path), kind="quiet"),
        table(f"Fields of {name}", ["Field", "type", "rows with a value"], fields),
        [_values(name, column, own) for column, own in values.items() if 0 < len(own) <= MOST_VALUES],
        charts(_length_chart(name, column, own) for column, own in characters.items() if len(own)),
    )


def _values(name: str, column: str, counts: Counter[str]) -> Markup:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(visible_text(value, _LETTERS), count(number)) for value, number in ranked[:_MOST_LISTED]]
    others = len(ranked) - _MOST_LISTED
    more = [(Cell(f"{count(others)} more", "quiet"), "")] if others > 0 else []
    return table(f"Rows of {name} by {column}", [column.capitalize(), "rows"], [*rows, *more])


def _length_chart(table_name: str, column: str, lengths: numpy.ndarray) -> Chart:
    """Returns a histogram of lengths in characters, with a logarithmic axis if few texts are far longer than most."""
    median, longest = float(numpy.median(lengths)), int(lengths.max())
    is_logarithmic = longest > _SPREAD * max(1.0, median)
    edges = length_bins(lengths, is_logarithmic)
    told = f"median {median:,.0f}, 95% up to {numpy.percentile(lengths, 95):,.0f}, longest {longest:,} characters"
    return histogram(
        f"card-{table_name}-{column}",
        f"Length of {column}",
        edges.tolist(),
        numpy.histogram(lengths, edges)[0].tolist(),
        spoken=f"Lengths of {column} in {table_name}: {told}.",
        summary=told,
        rule=median,
        is_logarithmic=is_logarithmic,
    )


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
