"""Reads the rows of a data file: JSON lines, a JSON list, Parquet, CSV.

A row that cannot be read is passed on as `BrokenRow`, so that its drop is counted. A damaged file is a UserError.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet

from stages.foundations.errors import UserError
from stages.foundations.files import packed_bytes, packed_lines

SHOWN_CHARACTERS = 2000
"""Of a broken row, beside its drop."""
MAX_LINE_BYTES = 64 << 20
"""A longer line of JSON is a broken row, and a longer line of CSV an error."""
MAX_UNPACKED_BYTES = 2 << 30
"""Largest unpacked size of a gzipped JSON or Parquet file, which is read as a whole."""
MAX_NESTED = 100
"""A row nested deeper is broken: the functions that read its fields are recursive."""


@dataclass(frozen=True)
class BrokenRow:
    """A row that could not be read."""

    text: str
    """Beginning of the row."""
    reason: str


Row = dict[str, Any] | BrokenRow


def read_rows(path: Path, file_format: Literal["jsonl", "json", "parquet", "csv"], max_rows: int | None) -> list[Row]:
    """Returns the first `max_rows` rows, or all; UserError when the file is damaged or has another format.

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
                yield _mapping(read_json(line))
            except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are ValueErrors
                yield BrokenRow(_shown(line), f"not a JSON object: {error}")


def _json_list(path: Path) -> Iterator[Row]:
    try:
        rows = read_json(packed_bytes(path, MAX_UNPACKED_BYTES))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): correct `format` in its source") from None
    if not isinstance(rows, list):
        raise UserError(f"{path} holds a JSON {type(rows).__name__}, not a list of objects: `format: jsonl`?")
    yield from map(_mapping, rows)


def _parquet_rows(path: Path) -> Iterator[Row]:
    # Limited before Parquet's reader gets it: a small gzipped file may unpack to any size.
    content = packed_bytes(path, MAX_UNPACKED_BYTES)
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not Parquet ({error}): correct `format` in its source") from None
    _require_different(table.column_names, path)
    narrow = {field.name: field.type for field in table.schema if _holds_narrow_floats(field.type)}
    for row in table.to_pylist():
        yield row | {name: _shortest(row[name], kind) for name, kind in narrow.items()}


def _holds_narrow_floats(kind: pyarrow.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return pyarrow.types.is_float16(kind) or pyarrow.types.is_float32(kind) or any(map(_holds_narrow_floats, inner))


def _shortest(value: Any, kind: pyarrow.DataType) -> Any:
    """Returns a value of a column, each 32-bit float in it as the float of its shortest decimal.

    As a 64-bit float the 1234.56 of such a column is 1234.56005859375.
    """
    if pyarrow.types.is_float16(kind) or pyarrow.types.is_float32(kind):
        return value if value is None else float(str(kind.to_pandas_dtype()(value)))
    if isinstance(value, dict):
        return {name: _shortest(part, kind.field(name).type) for name, part in value.items()}
    if isinstance(value, list) and kind.num_fields == 1:
        return [_shortest(part, kind.field(0).type) for part in value]
    return value


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)  # Python's limit of 131,072 characters is too small for some files
    try:
        # Strict, because otherwise a missing end quote would swallow the rest of the file.
        lines = _csv_lines(path)
        header = next(lines, "")
        _require_commas(header, path)
        reader = csv.DictReader(chain([header], lines), strict=True)
        _require_different(reader.fieldnames or [], path)
        for row in reader:
            if None in row or None in row.values():
                yield BrokenRow(_shown(str(list(row.values())).encode()), "not as many values as the header has names")
            else:
                yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not CSV in UTF-8 ({error}): correct the file, or `format` in its source") from None


def _require_commas(header: str, path: Path) -> None:
    """UserError when another separator splits the header into columns and the comma does not."""

    def columns(separator: str) -> int:
        try:
            return len(next(csv.reader([header], delimiter=separator, strict=True), []))
        except csv.Error:  # a quote in the middle of a value, or a value that ends on a later line
            return 0

    other = max(";\t|", key=columns)
    if columns(",") < 2 <= columns(other):
        raise UserError(f"{path} separates its columns by {other!r}: write it with commas between them")


def _csv_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(packed_lines(path, MAX_LINE_BYTES), 1):
        if line is None:
            raise UserError(f"{path}: line {number} has more than {MAX_LINE_BYTES >> 20} MiB: split the file")
        # Spreadsheets start a file with a byte order mark.
        yield line.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"


def _require_different(names: Sequence[str], path: Path) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{path} has several columns {twice[0]!r}: rename all but one")


class _RepeatedKey(dict[str, Any]):
    """A JSON object with a repeated key, for which the intended value is unknown."""


def read_json(text: bytes) -> Any:
    """Returns a JSON value; ValueError for other text. An object that has a key twice is marked as such."""
    # An integer of more than 4,300 digits stays a text: Python does not convert it.
    return json.loads(text, object_pairs_hook=_object, parse_int=lambda one: int(one) if len(one) < 4_000 else one)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    return content if len(content) == len(pairs) else _RepeatedKey(content)


def _mapping(value: Any) -> Row:
    if not isinstance(value, dict):
        return BrokenRow(_shown(repr(value).encode("utf-8", "replace")), f"not an object but a {type(value).__name__}")
    if fault := _fault(value):
        return BrokenRow(_shown(str(list(value)).encode("utf-8", "replace")), fault)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return BrokenRow(_shown(json.dumps(value).encode()), "holds half a surrogate pair, which is no character")
    return value


def _fault(row: dict[str, Any]) -> str:
    # Level by level, not recursively: the rows that this function rejects would exceed the recursion limit.
    level: list[Any] = [row]
    for _ in range(MAX_NESTED):
        if any(isinstance(value, _RepeatedKey) for value in level):
            return "an object has a key twice"
        inner = [value for value in level if isinstance(value, dict | list)]
        if not inner:
            return ""
        level = [part for value in inner for part in (value.values() if isinstance(value, dict) else value)]
    return f"nested more than {MAX_NESTED} deep"


def _shown(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")[:SHOWN_CHARACTERS]
