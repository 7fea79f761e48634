"""The tables that cross from stage to stage: their columns, and reading and writing them as Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet

from stages.foundations.errors import UserError
from stages.foundations.files import write_bytes_atomically

TEXT = pyarrow.string()
_PROBLEM = {
    "problem_id": TEXT,
    "source": TEXT,
    "problem": TEXT,
    "answer": TEXT,
    "solution": TEXT,
    "licence": TEXT,
}
_SAMPLED = {"problem_id": TEXT, "benchmark": TEXT, "mode": TEXT, "sample_index": pyarrow.int32()}

SCHEMAS: dict[str, pyarrow.Schema] = {
    name: pyarrow.schema(columns)
    for name, columns in {
        "problem": _PROBLEM,
        "benchmark": {**_PROBLEM, "benchmark": TEXT},
        "page": {"page_id": TEXT, "url": TEXT, "format": TEXT, "content": TEXT, "licence": TEXT},
        "candidate": {
            **{
                name: TEXT
                for name in ("candidate_id", "page_id", "url", "problem", "solution", "answer", "licence")
            }
        },
        "demonstration": {
            **{
                name: TEXT
                for name in ("demonstration_id", "problem_id", "source", "kind", "problem", "response")
            },
            "licence": TEXT,
        },
        "dropped": {name: TEXT for name in ("row_id", "stage", "reason", "detail", "row")},
        "response": {
            **_SAMPLED,
            "problem": TEXT,
            "answer": TEXT,
            "response": TEXT,
            "response_tokens": pyarrow.int32(),
            "is_truncated": pyarrow.bool_(),
        },
        "verdict": {**_SAMPLED, "verdict": TEXT, "extracted": TEXT, "path": TEXT, "reason": TEXT},
        "contamination": {
            name: TEXT
            for name in (
                "problem_id",
                "source",
                "problem",
                "benchmark",
                "benchmark_problem_id",
                "benchmark_problem",
                "rule",
            )
        }
        | {"overlap": pyarrow.float64(), "benchmark_revision": TEXT},
        "duplicate": {
            **{
                name: TEXT
                for name in ("problem_id", "source", "problem", "other_id", "other_source", "other_problem")
            },
            "scope": TEXT,
            "rule": TEXT,
            "similarity": pyarrow.float64(),
        },
        "transform": {
            name: TEXT
            for name in (
                "problem_id",
                "source",
                "original_problem",
                "original_answer",
                "problem",
                "answer",
                "form",
                "parts",
                "inverse",
            )
        },
        "difficulty": {
            "problem_id": TEXT,
            "source": TEXT,
            "pass_rate": pyarrow.float64(),
            "samples": pyarrow.int32(),
            "band": TEXT,
        },
        "rollout": {
            "problem_id": TEXT,
            "step": pyarrow.int32(),
            "policy_version": pyarrow.int32(),
            "sample_index": pyarrow.int32(),
            "response": TEXT,
            "response_tokens": pyarrow.int32(),
            "token_ids": pyarrow.list_(pyarrow.int32()),
            "rollout_logprobs": pyarrow.list_(pyarrow.float32()),
            "reward": pyarrow.float32(),
            "verdict": TEXT,
            "is_truncated": pyarrow.bool_(),
            "is_trained": pyarrow.bool_(),
        },
    }.items()
}


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


def read_table(path: Path, schema_name: str) -> pandas.DataFrame:
    """The table at `path`; UserError when it is missing, is not Parquet, or lacks a column of the schema."""
    schema = SCHEMAS[schema_name]
    with parquet_errors_told(path):
        table = pyarrow.parquet.read_table(path)
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise UserError(
            f"{path} lacks the columns {missing} of a {schema_name} table; it has {table.column_names}"
        )
    try:
        return table.select(schema.names).cast(schema).to_pandas()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise UserError(f"{path} has a column of the wrong type for a {schema_name} table: {error}") from None


def write_table(rows: pandas.DataFrame | Sequence[Mapping[str, Any]], path: Path, schema_name: str) -> None:
    """Writes Parquet atomically; equal rows give equal bytes. Columns outside the schema raise ValueError."""
    schema = SCHEMAS[schema_name]
    frame = rows if isinstance(rows, pandas.DataFrame) else pandas.DataFrame(list(rows), columns=None)
    unknown = [str(name) for name in frame.columns if name not in schema.names]
    if unknown:
        raise ValueError(f"a {schema_name} table has no columns {unknown}")
    frame = frame.reindex(columns=schema.names)
    if frame.empty:
        table = schema.empty_table()
    else:
        table = pyarrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
    table = table.replace_schema_metadata(None)
    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content, compression="zstd")
    write_bytes_atomically(path, content.getvalue())


def require_rows(frame: pandas.DataFrame, path: Path, remedy: str) -> pandas.DataFrame:
    """`frame` itself; UserError with the remedy when it has no rows."""
    if frame.empty:
        raise UserError(f"{path} has no rows: {remedy}")
    return frame
