"""The tables that cross from stage to stage: their columns, and reading and writing them as Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet

from stages.foundations.errors import UserError
from stages.foundations.files import write_bytes_atomically

TEXT = pyarrow.string()


@dataclass(frozen=True)
class TableSchema:
    """Name and columns of a kind of table."""

    name: str
    columns: Mapping[str, pyarrow.DataType]

    @property
    def arrow(self) -> pyarrow.Schema:
        """The columns as Arrow has them."""
        return pyarrow.schema(self.columns)

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return list(self.columns)


@contextmanager
def parquet_errors_told(path: Path) -> Iterator[None]:
    """Turns what pyarrow and the file system raise about the file at `path` into a UserError with the remedy."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: run `dvc repro`, which makes the tables a stage reads"
        ) from None
    except PermissionError as error:
        raise UserError(f"{path} may not be read ({error}): give this user the right to read it") from None
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, OSError) as error:
        raise UserError(
            f"{path} is not a readable Parquet file ({error}): delete it and run `dvc repro`"
        ) from None


def read_table(path: Path, schema: TableSchema) -> pandas.DataFrame:
    """The table at `path`; UserError when it is missing, is not Parquet, or lacks a column of the schema."""
    with parquet_errors_told(path):
        table = pyarrow.parquet.read_table(path)
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise UserError(
            f"{path} lacks the columns {missing} of a {schema.name} table; it has {table.column_names}"
        )
    try:
        return table.select(schema.names).cast(schema.arrow).to_pandas()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise UserError(f"{path} has a column of the wrong type for a {schema.name} table: {error}") from None


def write_table(
    rows: pandas.DataFrame | Sequence[Mapping[str, Any]], path: Path, schema: TableSchema
) -> None:
    """Writes Parquet atomically; equal rows give equal bytes. Columns outside the schema raise ValueError."""
    frame = rows if isinstance(rows, pandas.DataFrame) else pandas.DataFrame(list(rows), columns=None)
    unknown = [str(name) for name in frame.columns if name not in schema.names]
    if unknown:
        raise ValueError(f"a {schema.name} table has no columns {unknown}")
    frame = frame.reindex(columns=schema.names)
    if frame.empty:
        table = schema.arrow.empty_table()
    else:
        table = pyarrow.Table.from_pandas(frame, schema=schema.arrow, preserve_index=False)
    table = table.replace_schema_metadata(None)
    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content, compression="zstd")
    write_bytes_atomically(path, content.getvalue())


def require_rows(frame: pandas.DataFrame, path: Path, remedy: str) -> pandas.DataFrame:
    """`frame` itself; UserError with the remedy when it has no rows."""
    if frame.empty:
        raise UserError(f"{path} has no rows: {remedy}")
    return frame
