"""From one upstream row to a problem, its answer and its solution: the field map of a source.

Upstream files name and pack these differently. Each target is given by where it stands, in a handful of kinds
that cover the layouts met so far; a plain text is the name of a field. A name may be a path (`meta.answer`,
`final_answer.0`); a field whose own name holds dots is found first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from stages.algorithms.answers.extraction import extract_answer
from stages.foundations.params import StrictParams

# As many as curate knows.
LETTERS = "ABCDEFGHIJ"
# Not None, which is a value that a field may have.
_ABSENT = object()
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
"""Characters that no reader sees, and that no text needs."""


class MissingField(Exception):
    """The row has no such field, or nothing is in it."""


class UnusableField(Exception):
    """What stands in the field is not what the field map says."""


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


class JoinedFields(StrictParams):
    """Several fields, one after the other."""

    kind: Literal["joined"]
    fields: list[str] = Field(min_length=2)
    """Names of the fields, in order; each must be there."""
    separator: str
    """Text between them."""


class AfterMarker(StrictParams):
    """What stands behind the last marker: the `72` of `... #### 72`."""

    kind: Literal["after"]
    field: str
    """Name of the field."""
    marker: str = Field(min_length=1)
    """Text that must occur in it."""


class BeforeMarker(StrictParams):
    """What stands before the last marker, without the pieces that some patterns match."""

    kind: Literal["before"]
    field: str
    """Name of the field."""
    marker: str = Field(min_length=1)
    """Text that must occur in it."""
    strip: list[str]
    """Regular expressions whose matches are removed (GSM8K: `<<[^>]*>>`, the calculator annotations)."""

    @field_validator("strip")
    @classmethod
    def _compiles(cls, patterns: list[str]) -> list[str]:
        return [_regular_expression(pattern) for pattern in patterns]


class Matches(StrictParams):
    """All pieces that a pattern matches, in order: the equations of GSM8K's `... = <<48/2=24>>24 clips`."""

    kind: Literal["matches"]
    field: str
    """Name of the field."""
    pattern: str
    """Regular expression; where it has a group, its first group is the piece."""
    separator: str
    """Text between pieces."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        return _regular_expression(pattern)


class Boxed(StrictParams):
    """The content of the last `\\boxed{}` of a worked solution."""

    kind: Literal["boxed"]
    field: str
    """Name of the field."""


class Listed(StrictParams):
    """A list as text; a field that holds one value, or a list of one, is that value without brackets."""

    kind: Literal["listed"]
    field: str
    """Name of the field."""
    open: str
    """Text before a list; lists inside lists are written in the same way."""
    separator: str
    """Text between its values."""
    close: str
    """Text after it."""


class QuestionWithChoices(StrictParams):
    """A question and its choices, lettered from A, a line each."""

    kind: Literal["choices"]
    field: str
    """Name of the question's field."""
    choices: str
    """Name of the field that lists the choices, at most ten."""


class ChoiceLetter(StrictParams):
    """The letter of the choice whose index, from 0, stands in the field."""

    kind: Literal["choice_letter"]
    field: str
    """Name of the field."""


def _kind_of(value: Any) -> str | None:
    if isinstance(value, str):
        return "name"
    # Pydantic asks with what the parameters hold, and with a model where one is validated again.
    return value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)


FieldParams = Annotated[
    Annotated[str, Tag("name")]
    | Annotated[JoinedFields, Tag("joined")]
    | Annotated[AfterMarker, Tag("after")]
    | Annotated[BeforeMarker, Tag("before")]
    | Annotated[Matches, Tag("matches")]
    | Annotated[Boxed, Tag("boxed")]
    | Annotated[Listed, Tag("listed")]
    | Annotated[QuestionWithChoices, Tag("choices")]
    | Annotated[ChoiceLetter, Tag("choice_letter")],
    Discriminator(
        _kind_of,
        custom_error_type="field_kind",
        custom_error_message="give the name of a field, or a mapping whose kind is joined, after, before, matches, "
        "boxed, listed, choices or choice_letter",
    ),
]


def read_field(params: FieldParams, row: Mapping[str, Any]) -> str:
    """The text that `params` describes; MissingField or UnusableField says what is wrong with the row."""
    match params:
        case str():
            return _text(params, row)
        case JoinedFields():
            return params.separator.join(_text(name, row) for name in params.fields)
        case AfterMarker():
            return _filled(_around_marker(params, row)[1], params.field)
        case BeforeMarker():
            text = _around_marker(params, row)[0]
            for pattern in params.strip:
                text = re.sub(pattern, "", text)
            return _filled(text, params.field)
        case Matches():
            return _filled(params.separator.join(_pieces(params, row)), params.field)
        case Boxed():
            extraction = extract_answer(_text(params.field, row))
            # The other rules read answers from prose, which is no promise of the file.
            if extraction.rule not in ("box", "boxes") or not extraction.text:
                raise UnusableField(f"`{params.field}` holds no \\boxed{{}} answer")
            return extraction.text
        case Listed():
            return _filled(_listed(_value(params.field, row), params), params.field)
        case QuestionWithChoices():
            choices = _choices(params.choices, row)
            lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
            return "\n".join([_text(params.field, row), *lines])
        case ChoiceLetter():
            return _letter(params.field, row)


def field_value(name: str, row: Mapping[str, Any]) -> Any:
    """What stands at a name or path, None where there is nothing."""
    value = _walk(name, row)
    return None if value is _ABSENT else value


def _walk(name: str, row: Mapping[str, Any]) -> Any:
    # The whole name first: some files have dots in the names of their columns.
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _ABSENT
    return value


def _value(name: str, row: Mapping[str, Any]) -> Any:
    value = _walk(name, row)
    if value is _ABSENT:
        raise MissingField(f"no field `{name}`; the row has: {', '.join(map(str, row))}")
    if value is None or value == "" or value == []:
        raise MissingField(f"`{name}` is empty")
    return value


def _text(name: str, row: Mapping[str, Any]) -> str:
    return _filled(_scalar(_value(name, row), name), name)


def _filled(text: str, name: str) -> str:
    text = _CONTROL.sub("", text).strip()
    if not text:
        raise MissingField(f"`{name}` is empty")
    return text


def _scalar(value: Any, name: str) -> str:
    """A text or number as text; a whole float loses its `.0`, for 27.0 is how some files write 27."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise UnusableField(f"`{name}` is {value}, not a finite number")
        # From 2**53 on not every integer is a float: such a value may not be what the file meant.
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, Decimal) and value.is_finite():  # of Parquet: 2.00 is 2
        # `:f` writes no exponent, because no answer is given as 1E+3.
        return str(int(value)) if value == value.to_integral_value() else f"{value.normalize():f}"
    if isinstance(value, bytes):  # of Parquet: some writers do not mark texts as texts
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise UnusableField(f"`{name}` holds bytes that are not UTF-8") from None
    raise UnusableField(f"`{name}` holds a {type(value).__name__}, not a text or number")


def _listed(value: Any, params: Listed) -> str:
    if not isinstance(value, list):
        return _scalar(value, params.field)
    if len(value) == 1:
        # One value in a list is how some files write every answer.
        return _listed(value[0], params)
    parts = (_listed(part, params) for part in value)
    return f"{params.open}{params.separator.join(parts)}{params.close}"


def _around_marker(params: AfterMarker | BeforeMarker, row: Mapping[str, Any]) -> tuple[str, str]:
    before, marker, after = _text(params.field, row).rpartition(params.marker)
    if not marker:
        raise UnusableField(f"`{params.field}` has no marker {params.marker!r}")
    return before, after


def _pieces(params: Matches, row: Mapping[str, Any]) -> list[str]:
    found = re.finditer(params.pattern, _text(params.field, row))
    # Group 1 where the pattern has one, else all that it matches. A group that took no part is empty.
    pieces = [match.group(min(1, match.re.groups)) or "" for match in found]
    if not pieces:
        raise UnusableField(f"`{params.field}` has nothing that {params.pattern!r} matches")
    return pieces


def _choices(name: str, row: Mapping[str, Any]) -> list[str]:
    choices = _value(name, row)
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        raise UnusableField(f"`{name}` is not a list of 2 to {len(LETTERS)} choices")
    return [_scalar(choice, name) for choice in choices]


def _letter(name: str, row: Mapping[str, Any]) -> str:
    index = _scalar(_value(name, row), name)
    if not index.isdigit() or int(index) >= len(LETTERS):
        raise UnusableField(f"`{name}` is {index!r}, not the index of a choice")
    return LETTERS[int(index)]
