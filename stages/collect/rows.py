"""One source as a table of problems, with every row that was dropped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stages.collect.fields import FieldParams, MissingField, UnusableField, field_value, read_field
from stages.collect.files import locate_file
from stages.collect.formats import BrokenRow, Row, read_rows
from stages.collect.generators import arithmetic_rows, digit_rows, reasoning_gym_rows
from stages.collect.params import ArithmeticSource, DigitSource, FieldMap, ReasoningGymSource, SourceParams
from stages.foundations.errors import UserError
from stages.foundations.funnel import Funnel

GENERATED = FieldMap(problem="problem", answer="answer", solution="solution")

Problem = dict[str, str | None]


def collect_source(name: str, source: SourceParams) -> tuple[list[Problem], Funnel]:
    """The source's problems, in upstream's order, and the drops; UserError when no row is usable.

    `problem_id` is `<source>/<number of the row, from 0>`, so that each problem is found again upstream.
    """
    rows, fields, only = _upstream(name, source)
    funnel, problems = Funnel("collect", len(rows)), []
    for number, row in enumerate(rows):
        row_id = f"{name}/{number}"
        problem = _read_row(row, row_id, fields, only, funnel)
        if problem:
            problems.append({**problem, "source": name, "licence": source.licence})
    _require_usable(name, fields, problems, funnel)
    return problems, funnel


def _upstream(name: str, source: SourceParams) -> tuple[list[Row], FieldMap, Mapping[str, list[Any]]]:
    match source.origin:
        case ArithmeticSource() as origin:
            return list(arithmetic_rows(name, origin)), GENERATED, {}
        case DigitSource() as origin:
            return list(digit_rows(name, origin)), GENERATED, {}
        case ReasoningGymSource() as origin:
            return list(reasoning_gym_rows(name, origin)), GENERATED, {}
        case origin:
            path = locate_file(name, origin)
            return read_rows(path, origin.format, origin.max_rows), origin.fields, origin.only


def _read_row(
    row: Row, row_id: str, fields: FieldMap, only: Mapping[str, list[Any]], funnel: Funnel
) -> Problem | None:
    if isinstance(row, BrokenRow):
        funnel.drop({"text": row.text}, "malformed_row", row.reason, row_id)
        return None
    for field, allowed in only.items():
        if field_value(field, row) not in allowed:
            funnel.drop(row, "not_selected", f"`{field}` is {field_value(field, row)!r}"[:200], row_id)
            return None
    found: Problem = {"problem_id": row_id}
    for target in ("problem", "answer"):
        try:
            found[target] = read_field(getattr(fields, target), row)
        except MissingField as error:
            funnel.drop(row, f"missing_{target}", str(error), row_id)
            return None
        except UnusableField as error:
            funnel.drop(row, f"unusable_{target}", str(error), row_id)
            return None
    found["solution"] = _solution(fields.solution, row)
    return found


def _solution(field: FieldParams | None, row: Mapping[str, Any]) -> str | None:
    """None for a row without a usable solution: its problem is still worth having."""
    if field is None:
        return None
    try:
        return read_field(field, row)
    except (MissingField, UnusableField):
        return None


def _require_usable(name: str, fields: FieldMap, problems: Sequence[Problem], funnel: Funnel) -> None:
    if not problems:
        dropped = funnel.dropped_frame()
        counts = ", ".join(
            f"{reason} {count}" for reason, count in sorted(Counter(dropped["reason"]).items())
        )
        first = f"; the first: {dropped['detail'].iloc[0]}" if len(dropped) else ""
        raise UserError(
            f"source `{name}` gives no usable row out of {funnel.rows_in} ({counts or 'the file is empty'}{first}): "
            f"correct sources.{name}.from"
        )
    is_promised = fields is not GENERATED and fields.solution is not None
    if is_promised and all(problem["solution"] is None for problem in problems):
        raise UserError(
            f"source `{name}`: no row has a solution where sources.{name}.from.fields.solution says; "
            "correct it, or set it to null"
        )
