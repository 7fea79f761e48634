"""Compares two versions of an output: identical bytes, equal within a tolerance, or different, and where."""

from __future__ import annotations

import filecmp
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

TOLD = 3
"""Number of differences that are named; the rest is counted."""


class Verdict(StrEnum):
    """From best to worst."""

    IDENTICAL = "identical"
    EQUAL = "equal within tolerance"
    DIFFERENT = "different"
    MISSING = "missing"

    @property
    def is_reproduced(self) -> bool:
        return self in (Verdict.IDENTICAL, Verdict.EQUAL)


@dataclass(frozen=True)
class Tolerance:
    """Largest difference of equal numbers: |a - b| <= absolute + relative max(|a|, |b|); for weights only `weights`."""

    relative: float
    absolute: float
    weights: float

    def allows(self, first: float, second: float) -> bool:
        if first == second or (math.isnan(first) and math.isnan(second)):
            return True
        # A tolerance relative to infinity would allow any difference.
        if math.isinf(first) or math.isinf(second):
            return False
        return abs(first - second) <= self.absolute + self.relative * max(abs(first), abs(second))


@dataclass(frozen=True)
class Comparison:
    """The result for one file or folder."""

    verdict: Verdict
    detail: str
    """Empty for identical bytes; otherwise the differences and their sizes."""


IDENTICAL = Comparison(Verdict.IDENTICAL, "")


def compare_files(first: Path, second: Path, tolerance: Tolerance, suffix: str = "") -> Comparison:
    """Compares two files by the kind of their suffix, or of `suffix` if their names have none (DVC's cache)."""
    if not second.is_file():
        return Comparison(Verdict.MISSING, "was not made")
    # Not shallow: equal size and time do not prove equal bytes.
    if filecmp.cmp(first, second, shallow=False):
        return IDENTICAL
    try:
        match suffix or first.suffix:
            case ".json":
                return _compare_values(json.loads(first.read_text()), json.loads(second.read_text()), tolerance)
            case ".csv":
                return _compare_tables(_csv(first), _csv(second), tolerance)
            case ".parquet":
                return _compare_tables(_parquet(first), _parquet(second), tolerance)
            case ".safetensors":
                return _compare_weights(first, second, tolerance)
    except (ValueError, OSError) as error:
        # A truncated file: the other one is complete, so they differ.
        return Comparison(Verdict.DIFFERENT, f"cannot be read: {error}")
    return Comparison(Verdict.DIFFERENT, _first_difference(first.read_bytes(), second.read_bytes()))


def compare_folders(first: Mapping[str, Path], second: Path, tolerance: Tolerance) -> Comparison:
    """Compares two folders; `first` has files by path in the folder. The worst file decides."""
    made = {path.relative_to(second).as_posix() for path in second.rglob("*") if path.is_file()}
    found = {name: compare_files(path, second / name, tolerance, Path(name).suffix) for name, path in first.items()}
    # A new file changes the input of a stage that depends on the folder.
    found |= {name: Comparison(Verdict.DIFFERENT, "is new") for name in made - set(first)}
    order = list(Verdict)
    worst = max((item.verdict for item in found.values()), key=order.index, default=Verdict.IDENTICAL)
    return Comparison(
        worst, _first_few([f"{name}: {item.detail}" for name, item in sorted(found.items()) if item.detail])
    )


def _csv(path: Path) -> pandas.DataFrame:
    # Imported here and below, because `retrace --help` imports this module and needs no tables.
    import pandas

    return pandas.read_csv(path)


def _parquet(path: Path) -> pandas.DataFrame:
    import pandas

    # Opened as a handle, because files in DVC's cache have no suffixes.
    with open(path, "rb") as file:
        return pandas.read_parquet(file)


def _compare_values(first: Any, second: Any, tolerance: Tolerance) -> Comparison:
    differences = list(_differences("", first, second, tolerance))
    if differences:
        return Comparison(Verdict.DIFFERENT, _first_few(differences))
    return Comparison(Verdict.EQUAL, "numbers within the tolerance, or in another notation")


def _differences(place: str, first: Any, second: Any, tolerance: Tolerance) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in sorted({*first, *second}):
            inner = f"{place}.{name}" if place else str(name)
            if name in first and name in second:
                yield from _differences(inner, first[name], second[name], tolerance)
            else:
                yield f"{inner} is {'gone' if name in first else 'new'}"
    elif _is_list(first) and _is_list(second) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _differences(f"{place}[{number}]", one, other, tolerance)
    elif _is_number(first) and _is_number(second):
        if not tolerance.allows(float(first), float(second)):
            yield f"{place} {first!r} became {second!r}"
    elif _is_list(first) or _is_list(second) or first != second:
        yield f"{place} {_short(first)} became {_short(second)}"


def _is_list(value: Any) -> bool:
    # Imported here and below, because `retrace --help` imports this module and must not wait for numpy.
    import numpy

    return isinstance(value, (list, tuple, numpy.ndarray))


def _is_number(value: Any) -> bool:
    import numpy

    # In Python a bool is an int, but True must not count as close to 1.
    return isinstance(value, (int, float, numpy.number)) and not isinstance(value, (bool, numpy.bool_))


def _compare_tables(first: pandas.DataFrame, second: pandas.DataFrame, tolerance: Tolerance) -> Comparison:
    if list(first.columns) != list(second.columns):
        names = sorted(set(first.columns) ^ set(second.columns))
        return Comparison(Verdict.DIFFERENT, f"columns: {', '.join(names) or 'in another order'}")
    if len(first) != len(second):
        return Comparison(Verdict.DIFFERENT, f"{len(first)} rows became {len(second)}")
    differences = [
        text for name in first.columns if (text := _column_difference(name, first[name], second[name], tolerance))
    ]
    if differences:
        return Comparison(Verdict.DIFFERENT, f"of {len(first)} rows, {_first_few(differences)}")
    return Comparison(Verdict.EQUAL, f"{len(first)} rows, numbers within the tolerance")


def _column_difference(name: str, first: pandas.Series, second: pandas.Series, tolerance: Tolerance) -> str:
    """Describes how many rows differ, the first of them, and for numbers the largest difference; empty if none does."""
    import numpy
    import pandas

    if pandas.api.types.is_numeric_dtype(first) and pandas.api.types.is_numeric_dtype(second):
        # Whole columns at once, because a table of rollouts has millions of numbers.
        one, other = (column.to_numpy(dtype=float, na_value=numpy.nan) for column in (first, second))
        apart = numpy.abs(one - other)
        allowed = tolerance.absolute + tolerance.relative * numpy.maximum(numpy.abs(one), numpy.abs(other))
        is_same = (one == other) | (numpy.isnan(one) & numpy.isnan(other))
        is_finite = numpy.isfinite(one) & numpy.isfinite(other)
        rows = numpy.flatnonzero(~(is_same | (is_finite & (apart <= allowed))))
        return f"{name}: {len(rows)} differ, by up to {numpy.max(apart[rows]):.3g}" if len(rows) else ""
    rows = [
        row
        for row, (one, other) in enumerate(zip(first, second, strict=True))
        if next(_differences("", one, other, tolerance), None) is not None
        and not (_is_missing(one) and _is_missing(other))
    ]
    return f"{name}: {len(rows)} differ, the first is row {rows[0]}" if rows else ""


def _is_missing(value: Any) -> bool:
    import pandas

    return value is None or value is pandas.NA or (isinstance(value, float) and math.isnan(value))


def _compare_weights(first: Path, second: Path, tolerance: Tolerance) -> Comparison:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        one, other = load_file(first), load_file(second)
    except SafetensorError as error:
        return Comparison(Verdict.DIFFERENT, f"cannot be read: {error}")
    if one.keys() != other.keys():
        return Comparison(Verdict.DIFFERENT, f"tensors: {', '.join(sorted(one.keys() ^ other.keys())[:TOLD])}")
    shapes = [name for name in one if one[name].shape != other[name].shape]
    if shapes:
        return Comparison(Verdict.DIFFERENT, f"shapes of {', '.join(shapes[:TOLD])}")
    # In float64, because the difference of two bfloat16 numbers would be rounded again.
    apart = {name: _largest(one[name].double(), other[name].double()) for name in one if one[name].numel()}
    largest = max(apart, key=apart.__getitem__)
    is_close = apart[largest] <= tolerance.weights
    detail = f"weights differ by up to {apart[largest]:.3g} ({largest})"
    return Comparison(Verdict.EQUAL if is_close else Verdict.DIFFERENT, detail)


def _largest(first: Any, second: Any) -> float:
    """Returns the largest difference of two tensors; infinite where only one is a number."""
    apart = (first - second).abs().nan_to_num(nan=math.inf)
    return float(apart.masked_fill((first == second) | (first.isnan() & second.isnan()), 0.0).max())


def _first_difference(first: bytes, second: bytes) -> str:
    # Like git, treats a file with a zero byte among the first 8,000 as binary.
    if b"\0" in first[:8000] or b"\0" in second[:8000]:
        return f"{len(first)} bytes became {len(second)}"
    lines, others = first.decode(errors="replace").splitlines(), second.decode(errors="replace").splitlines()
    pairs = enumerate(zip(lines, others, strict=False), start=1)
    number = next((number for number, (one, other) in pairs if one != other), min(len(lines), len(others)) + 1)
    return f"the first different line is {number}"


def _first_few(differences: list[str]) -> str:
    more = f"; {len(differences) - TOLD} more" if len(differences) > TOLD else ""
    return "; ".join(differences[:TOLD]) + more


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
