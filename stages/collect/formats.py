"""Reads the rows of a file as mappings. A broken row is handed on as one, for its drop to be counted."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet

from stages.foundations.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"
SHOWN_CHARACTERS = 2000


@dataclass(frozen=True)
class BrokenRow:
    """A row that could not be read."""

    text: str
    """How it begins."""
    reason: str


Row = dict[str, Any] | BrokenRow


def read_rows(
    path: Path, file_format: Literal["jsonl", "json", "parquet", "csv"], max_rows: int | None
) -> list[Row]:
    """The first `max_rows` rows, or all; UserError when the file as a whole is not of the format."""
    content = path.read_bytes()
    if content.startswith(GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise UserError(f"{path} is a damaged gzip file ({error}): get it again") from None
    reader = {"jsonl": _json_lines, "json": _json_list, "parquet": _parquet_rows, "csv": _csv_rows}[
        file_format
    ]
    rows: list[Row] = []
    for row in reader(content, path):
        if len(rows) == max_rows:
            break
        rows.append(row)
    return rows


def _json_lines(content: bytes, path: Path) -> Iterator[Row]:
    for line in content.split(b"\n"):
        if line.strip():
            try:
                yield _mapping(json.loads(line))
            except ValueError as error:  # JSON and UTF-8 errors are ValueErrors
                yield BrokenRow(_shown(line), f"not a JSON object: {error}")


def _json_list(content: bytes, path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(content)
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): correct `format` in its source") from None
    if not isinstance(rows, list):
        raise UserError(f"{path} holds a JSON {type(rows).__name__}, not a list of objects: `format: jsonl`?")
    yield from map(_mapping, rows)


def _parquet_rows(content: bytes, path: Path) -> Iterator[Row]:
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not Parquet ({error}): correct `format` in its source") from None
    yield from table.to_pylist()


def _csv_rows(content: bytes, path: Path) -> Iterator[Row]:
    try:
        text = content.decode("utf-8-sig")
        for row in csv.DictReader(io.StringIO(text), strict=True):
            if None in row or None in row.values():
                yield BrokenRow(
                    _shown(str(list(row.values())).encode()), "not as many values as the header has names"
                )
            else:
                yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not CSV in UTF-8 ({error}): correct `format` in its source") from None


def _mapping(value: Any) -> Row:
    escaped = json.dumps(value)
    if not isinstance(value, dict):
        return BrokenRow(_shown(escaped.encode()), f"not an object but a {type(value).__name__}")
    if "\\ud" in escaped and not _is_unicode(value):
        return BrokenRow(_shown(escaped.encode()), "holds half a surrogate pair, which is no character")
    return value


def _is_unicode(value: dict[str, Any]) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _shown(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")[:SHOWN_CHARACTERS]
