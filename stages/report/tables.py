"""Reads what a dataset card says of a table: a batch of rows at a time, so that size does not matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from stages.foundations.hashing import dvc_md5
from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage
from stages.foundations.tables.table import parquet_errors_told

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
    stage: str
    """DVC's name of the stage that makes it."""
    purpose: str
    rows: int
    bytes: int
    md5: str
    """Hash of the file, as it stands in dvc.lock."""
    columns: list[Column]
    values: dict[str, list[tuple[str, int]]]
    """Rows by value of each counted column, most rows first; rows without a value under `none given`."""
    characters: dict[str, numpy.ndarray]
    """Lengths of the texts of each measured column that has some, int64 [rows with a text]."""


def read_tables(folders: Sequence[Path], stages: Iterable[GraphStage]) -> list[TableFacts]:
    """Facts of the tables that the stages tell of, in the order of the graph; a folder is named as in `data/`.

    A table that is not there is left out. UserError for a file that is no table.
    """
    places = {folder.name: folder for folder in folders}
    found = []
    for stage in stages:
        for pattern, purpose in about(stage.name).tables.items():
            name = pattern.replace("*", stage.item)
            top, _, rest = name.partition("/")
            path = places[top] / f"{rest}.parquet"
            if path.exists():
                with parquet_errors_told(path), pyarrow.parquet.ParquetFile(path) as file:
                    found.append(_read_columns(name, stage.address, purpose, path, file))
    return found


def _read_columns(
    name: str, stage: str, purpose: str, path: Path, file: pyarrow.parquet.ParquetFile
) -> TableFacts:
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
        stage=stage,
        purpose=purpose,
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
