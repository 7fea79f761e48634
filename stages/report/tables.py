"""Reads what a dataset card says of a table: a batch of rows at a time, so that size does not matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from stages.foundations.hashing import dvc_md5
from stages.foundations.tables.table import parquet_errors_told

PURPOSES = {
    "web/pages": ("collect_web", "Pages as they came, with worked exercises somewhere in them."),
    "web/candidates": ("extract_web", "Exercises found on the pages; nothing is checked yet."),
    "web/solutions": ("filter_web", "Exercises whose solutions may be trusted."),
    "problems/collected/*": ("collect", "Problems of one source, as upstream has them."),
    "problems/train": ("curate", "Problems to learn from: gradable, no duplicates, none of a benchmark."),
    "problems/validation": ("curate", "Problems set aside to watch training with."),
    "problems/benchmarks": ("curate", "Problems that policies are measured on, never trained on."),
    "problems/transforms": (
        "curate",
        "Questions rewritten so that their answer is an integer, with the way back.",
    ),
    "problems/difficulty": ("curate", "Pass rates that were measured elsewhere."),
    "demonstrations/train": ("demonstrate", "What supervised fine-tuning learns from."),
    "demonstrations/validation": ("demonstrate", "Demonstrations set aside for the validation loss."),
}
"""Tables that get a card, in the order of the graph: who makes them and what for."""
MEASURED = ("content", "problem", "solution", "response", "answer")
"""Text columns whose lengths are shown, in this order."""
COUNTED = ("source", "licence", "kind", "format", "rule", "scope", "band", "benchmark")
"""Columns whose values are counted."""
_ROWS_AT_ONCE = 4_096
MOST_VALUES = 1_000
"""Different values of a counted column that are told apart; a table whose every row has its own is no card's matter."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: str
    filled: int
    """Rows in which it is not empty."""


@dataclass(frozen=True)
class TableFacts:
    """What is known of a table without knowing what it is for."""

    name: str
    """Its path under data/, without the ending: `problems/train`."""
    rows: int
    bytes: int
    md5: str
    """Hash of the file, as it stands in dvc.lock."""
    columns: list[Column]
    values: dict[str, list[tuple[str, int]]]
    """Rows by value of each counted column, most rows first; rows without a value under `none given`."""
    characters: dict[str, numpy.ndarray]
    """Lengths of the texts of each measured column that has some, int64 [rows with a text]."""


def read_tables(folders: Sequence[Path], sources: Sequence[str]) -> list[TableFacts]:
    """Facts of those tables of `PURPOSES` that are there, in that order; a folder is named as in `data/`.

    `problems/collected/*` stands for one table of each source. UserError for a file that is no table.
    """
    places = {folder.name: folder for folder in folders}
    found = []
    for pattern in PURPOSES:
        for name in [pattern.replace("*", source) for source in sources] if "*" in pattern else [pattern]:
            top, _, rest = name.partition("/")
            path = places[top] / f"{rest}.parquet"
            found += [(name, path)] if path.exists() else []
    return [_read_table(name, path) for name, path in found]


def _read_table(name: str, path: Path) -> TableFacts:
    with parquet_errors_told(path), pyarrow.parquet.ParquetFile(path) as file:
        return _read_columns(name, path, file)


def _read_columns(name: str, path: Path, file: pyarrow.parquet.ParquetFile) -> TableFacts:
    schema = file.schema_arrow
    texts = [field.name for field in schema if field.type in (pyarrow.string(), pyarrow.large_string())]
    filled: Counter[str] = Counter()
    values: dict[str, Counter[str]] = {column: Counter() for column in COUNTED if column in texts}
    lengths: dict[str, list[numpy.ndarray]] = {column: [] for column in MEASURED if column in texts}
    for batch in file.iter_batches(_ROWS_AT_ONCE):
        for column, data in zip(batch.schema.names, batch.columns, strict=True):
            filled[column] += len(data) - data.null_count
            if column in values and len(values[column]) <= MOST_VALUES:
                for counted in pyarrow.compute.value_counts(data).to_pylist():
                    values[column][counted["values"] or "none given"] += counted["counts"]
            if column in lengths:
                lengths[column].append(
                    pyarrow.compute.utf8_length(data.drop_null()).to_numpy(zero_copy_only=False)
                )
    characters = {
        column: numpy.concatenate(parts).astype(numpy.int64) for column, parts in lengths.items() if parts
    }
    return TableFacts(
        name=name,
        rows=file.metadata.num_rows,
        bytes=path.stat().st_size,
        md5=dvc_md5(path),
        columns=[Column(field.name, str(field.type), filled[field.name]) for field in schema],
        values={
            column: sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            for column, counts in values.items()
        },
        characters={column: own for column, own in characters.items() if len(own)},
    )
