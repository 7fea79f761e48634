"""The worker's side of a user's function: loads the source, calls the function and checks its results.

The source is sent as text, so the sandbox need not allow access to the user's folder. A mistake in the file itself is a
UserError, which stops the caller. An error on one row is a fault of that row.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stages.foundations.errors import UserError

ROWS = "rows"
"""A function whose first parameter has this name takes all rows at once, as a list of mappings."""
PART_NAME = re.compile(r"\w[\w. -]*")
"""Name of a part of a reward. MLflow takes no other characters for a curve, except `:` and `/`."""
_LONGEST_FAULT = 200
_loaded: dict[tuple[str, str], Callable[..., Any]] = {}


def call_function(
    file: str, name: str, source: str, arguments: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns for each row {"value": number or {part: number}}, or {"fault": sentence}, with {"text": text} for a text.

    UserError when the file has a mistake: no such name, not a function, parameters that no row has.
    """
    function = load(file, name, source)
    wanted = _wanted(function, file, name, arguments, rows[0])
    if wanted == [ROWS]:
        try:
            values = function([dict(row) for row in rows], **arguments)
        except MemoryError:
            raise
        except Exception as error:
            return [{"fault": _described(error)}] * len(rows)
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(rows):
            returned = f"{len(values)} values" if isinstance(values, Sequence) else article(values)
            return [{"fault": f"it returned {returned} for {len(rows)} rows"}] * len(rows)
        return [_checked(value) for value in values]
    return [_of_row(function, {key: row[key] for key in wanted}, arguments) for row in rows]


def load(file: str, name: str, source: str) -> Callable[..., Any]:
    """Returns what `name` is in the file with this source: a function or a class. Any other thing is a UserError."""
    if (source, name) in _loaded:
        return _loaded[source, name]
    module = types.ModuleType("custom")
    module.__file__ = file
    # Dataclasses look their module up.
    sys.modules["custom"] = module
    namespace = vars(module)
    try:
        # Runs the file like an import would: it is the user's program, and this process is confined.
        exec(compile(source, file, "exec"), namespace)
    except MemoryError:
        raise
    except BaseException as error:
        raise UserError(f"{file} cannot be loaded: {_described(error)}") from None
    function = namespace.get(name)
    if function is None:
        own = [one for one in namespace.values() if getattr(one, "__module__", "") == "custom"]
        functions = ", ".join(one.__name__ for one in own if inspect.isfunction(one)) or "none"
        classes = ", ".join(one.__name__ for one in own if inspect.isclass(one)) or "none"
        raise UserError(f"{file} has no {name}: its functions are {functions}, its classes {classes}")
    if not callable(function):
        raise UserError(f"{name} in {file} is {article(function)}: it has to be a function or a class")
    _loaded[source, name] = function
    return function


def _wanted(
    function: Callable[..., Any], file: str, name: str, arguments: Mapping[str, Any], row: Mapping[str, Any]
) -> list[str]:
    """Returns the columns that the function takes, in the order of its parameters; [ROWS] if it takes all rows."""
    parameters = inspect.signature(function).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY)]
    known = {one.name for one in named}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    if unknown := [argument for argument in arguments if argument not in known and not takes_any]:
        raise UserError(f"{name} in {file} takes no {', '.join(unknown)}: correct `arguments`, or its parameters")
    if named and named[0].name == ROWS:
        return [ROWS]
    missing = [
        one.name for one in named if one.default is one.empty and one.name not in row and one.name not in arguments
    ]
    if missing:
        raise UserError(
            f"{name} in {file} wants {', '.join(missing)}, which no row has: a row has {', '.join(row)}. Give others "
            "under `arguments`"
        )
    return [one for one in row if one not in arguments and (one in known or takes_any)]


def _of_row(function: Callable[..., Any], row: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _checked(function(**row, **arguments))
    except MemoryError:
        raise
    except Exception as error:
        return {"fault": _described(error)}


def _checked(value: Any) -> dict[str, Any]:
    """Returns a finite number, or a mapping of names to finite numbers; any other result becomes a fault."""
    parts = value if isinstance(value, Mapping) else {"": value}
    for name, part in parts.items():
        try:
            is_number = not isinstance(part, str | bytes) and math.isfinite(float(part))
        except (TypeError, ValueError):
            is_number = False
        if not is_number or not isinstance(name, str):
            where = f" as {name!r}" if name else ""
            shown = repr(part) if isinstance(part, float | int) else article(part)
            fault = {"fault": f"it returned {shown}{where}, which is no finite number"}
            return fault | {"text": _short(value)} if isinstance(value, str) else fault
    if not parts:
        return {"fault": "it returned no part at all"}
    if value is parts and (wrong := [name for name in parts if not PART_NAME.fullmatch(name)]):
        return {"fault": f"it returned a part named {wrong[0]!r}: use letters, digits, _, -, . and spaces"}
    return {"value": {name: float(part) for name, part in parts.items()} if value is parts else float(value)}


def article(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _described(error: BaseException) -> str:
    return _short(f"{type(error).__name__}: {error}")


def _short(text: str) -> str:
    """Returns a line that Parquet can store: a surrogate half, which a response may contain, becomes "?"."""
    return text[:_LONGEST_FAULT].replace("\n", " ").encode("utf-8", "replace").decode("utf-8")
