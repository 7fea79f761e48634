"""Reads the rows of a file as mappings. A broken row is handed on as one, for its drop to be counted."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet

from stages.foundations.errors import UserError
from stages.foundations.files import packed_bytes, packed_lines

SHOWN_CHARACTERS = 2000
MAX_LINE_BYTES = 64 << 20
"""A longer line of JSON is a broken row, and a longer line of CSV an error."""
MAX_UNPACKED_BYTES = 2 << 30
"""What a gzipped file of JSON or Parquet, which is read as a whole, may unpack to."""
MAX_NESTED = 100
"""A row nested deeper is a broken one: what reads its fields calls itself for each level."""

_LONG_INTEGER = 4_000


@dataclass(frozen=True)
class BrokenRow:
    """A row that could not be read."""

    text: str
    """How it begins."""
    reason: str


Row = dict[str, Any] | BrokenRow


def read_rows(path: Path, file_format: Literal["jsonl", "json", "parquet", "csv"], max_rows: int | None) -> list[Row]:
    """The first `max_rows` rows, or all; UserError when the file is damaged or not of the format.

    JSON lines and CSV are read only as far as `max_rows` needs.
    """
    reader = {"jsonl": _json_lines, "json": _json_list, "parquet": _parquet_rows, "csv": _csv_rows}[file_format]
    return list(islice(reader(path), max_rows))


def _json_lines(path: Path) -> Iterator[Row]:
    for line in packed_lines(path, MAX_LINE_BYTES):
        if line is None:
            yield BrokenRow("", f"its line has more than {MAX_LINE_BYTES >> 20} MiB")
        elif line.strip():
            try:
                yield _mapping(_loads(line))
            except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are ValueErrors
                yield BrokenRow(_shown(line), f"not a JSON object: {error}")


def _json_list(path: Path) -> Iterator[Row]:
    try:
        rows = _loads(packed_bytes(path, MAX_UNPACKED_BYTES))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): correct `format` in its source") from None
    if not isinstance(rows, list):
        raise UserError(f"{path} holds a JSON {type(rows).__name__}, not a list of objects: `format: jsonl`?")
    yield from map(_mapping, rows)


def _parquet_rows(path: Path) -> Iterator[Row]:
    content = packed_bytes(path, MAX_UNPACKED_BYTES)
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not Parquet ({error}): correct `format` in its source") from None
    _require_different(table.column_names, path)
    yield from table.to_pylist()


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)  # Python's limit of 131,072 characters is no limit of CSV
    try:
        reader = csv.DictReader(_csv_lines(path), strict=True)
        _require_different(reader.fieldnames or [], path)
        for row in reader:
            if None in row or None in row.values():
                yield BrokenRow(_shown(str(list(row.values())).encode()), "not as many values as the header has names")
            else:
                yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not CSV in UTF-8 ({error}): correct the file, or `format` in its source") from None


def _csv_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(packed_lines(path, MAX_LINE_BYTES), 1):
        if line is None:
            raise UserError(f"{path}: line {number} has more than {MAX_LINE_BYTES >> 20} MiB: split the file")
        yield line.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"


def _require_different(names: Sequence[str], path: Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{path} has several columns {twice[0]!r}: rename all but one")


class _RepeatedKey(dict[str, Any]):
    """A JSON object that has a key twice: the file does not say which value is meant."""


def _loads(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_int=_integer)


def _integer(digits: str) -> int | str:
    """Python converts no integer of more than 4,300 digits: such a one stays text."""
    return int(digits) if len(digits) < _LONG_INTEGER else digits


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    return content if len(content) == len(pairs) else _RepeatedKey(content)


def _mapping(value: Any) -> Row:
    if not isinstance(value, dict):
        return BrokenRow(_shown(repr(value).encode("utf-8", "replace")), f"not an object but a {type(value).__name__}")
    if fault := _fault(value):
        return BrokenRow(_shown(str(list(value)).encode("utf-8", "replace")), fault)
    escaped = json.dumps(value)
    if "\\ud" in escaped and not _is_unicode(value):
        return BrokenRow(_shown(escaped.encode()), "holds half a surrogate pair, which is no character")
    return value


def _fault(row: dict[str, Any]) -> str:
    level: list[Any] = [row]
    for _ in range(MAX_NESTED):
        if any(isinstance(value, _RepeatedKey) for value in level):
            return "an object has a key twice"
        inner = [value for value in level if isinstance(value, dict | list)]
        if not inner:
            return ""
        level = [part for value in inner for part in (value.values() if isinstance(value, dict) else value)]
    return f"nested more than {MAX_NESTED} deep"


def _is_unicode(value: dict[str, Any]) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _shown(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")[:SHOWN_CHARACTERS]
