"""Definition of stage `collect`: its inputs and outputs, and the data about it that other modules use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from stages.algorithms.arithmetic_tasks import Kind
from stages.algorithms.calculator_tasks import MOST_ROWS
from stages.foundations.errors import UserError
from stages.foundations.params import ReasoningGymSource, StrictParams
from stages.foundations.stage import About, Stage


class GeneratedProblems(StrictParams):
    """Parameters common to generators of problems."""

    rows: int = Field(ge=1)
    """Different problems."""
    seed: int
    """Seed of the generator; another seed gives other problems, some of which coincide."""


class ArithmeticSource(GeneratedProblems):
    """Generated: chains of small sums, with worked solutions (stages/algorithms/arithmetic_tasks.py)."""

    kind: Literal["arithmetic"]
    weights: dict[Kind, Annotated[float, Field(gt=0)]] = Field(min_length=1)
    """Relative frequency of each kind of problem."""
    operand_max: int = Field(ge=1)
    """Largest operand."""
    value_max: int = Field(ge=2)
    """Largest intermediate value; the smallest is 0."""
    steps: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)
    """Numbers of operations, all equally likely."""


class DigitSource(GeneratedProblems):
    """Generated: two of several digits must satisfy an equation (stages/algorithms/digit_tasks.py)."""

    kind: Literal["digits"]
    sizes: dict[Annotated[int, Field(ge=2, le=9)], Annotated[float, Field(gt=0)]] = Field(min_length=1)
    """Number of digits -> relative frequency."""
    coefficients: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)
    """Factors of A and B, all equally likely."""
    is_held_out: bool
    """True generates held-out problems: a tenth of all, by a hash that ignores the order of the digits."""


class CalculatorSource(GeneratedProblems):
    """Generated: sums too hard for the head of a small policy (stages/algorithms/calculator_tasks.py)."""

    kind: Literal["calculator"]
    rows: int = Field(ge=1, le=MOST_ROWS)
    """Different problems."""
    is_held_out: bool
    """True generates held-out problems: a tenth of all, by a hash that ignores the order of the factors."""


class CalculatorConversations(StrictParams):
    """Generated: conversations in which an author uses the calculator, badly or not at all, for role chat."""

    kind: Literal["calculator_conversations"]
    rows: int = Field(ge=1, le=MOST_ROWS)
    """Conversations, each about another problem that is not held out."""
    seed: int
    """Seed of the problems and of the authors."""
    called: float = Field(ge=0, le=1)
    """Share of conversations with both calls."""
    miscalled: float = Field(ge=0, le=1)
    """Share that begins with a call that the calculator rejects. All others answer at once."""
    busy: float = Field(ge=0, lt=1)
    """Share of calls that meet a busy calculator."""

    @model_validator(mode="after")
    def _has_shares_of_a_whole(self) -> CalculatorConversations:
        if self.called + self.miscalled > 1:
            raise ValueError("called and miscalled are shares of all conversations: together they are at most 1")
        return self


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]


class JoinedFields(StrictParams):
    """Several fields, one after the other."""

    kind: Literal["joined"]
    fields: list[str] = Field(min_length=2)
    """Names of the fields, in order; all are required."""
    separator: str
    """Text between them."""


class OneField(StrictParams):
    """Parameters common to what is read from one field."""

    field: str
    """Name of the field."""


class AtMarker(OneField):
    """Parameters common to the two sides of a marker."""

    marker: str = Field(min_length=1)
    """Text that must occur in the field; its last occurrence counts."""


class AfterMarker(AtMarker):
    """The text after the last marker: the `72` of `... #### 72`."""

    kind: Literal["after"]


class BeforeMarker(AtMarker):
    """The text before the last marker, without the matches of some patterns."""

    kind: Literal["before"]
    strip: list[Pattern]
    """Regular expressions whose matches are removed (GSM8K: `<<[^>]*>>`, the calculator annotations)."""


class Matches(OneField):
    """All pieces that a pattern matches, in order: the equations of GSM8K's `... = <<48/2=24>>24 clips`."""

    kind: Literal["matches"]
    pattern: Pattern
    """Regular expression; if it has groups, the first one is the piece."""
    separator: str
    """Text between pieces."""


class Boxed(OneField):
    """The content of the last `\\boxed{}` of a worked solution."""

    kind: Literal["boxed"]


class Listed(OneField):
    """A list as text; a single value, or a list of one, becomes that value without brackets."""

    kind: Literal["listed"]
    open: str
    """Text before a list; lists inside lists are written in the same way."""
    separator: str
    """Text between its values."""
    close: str
    """Text after it."""


class QuestionWithChoices(StrictParams):
    """A question and its choices, lettered from A, one per line."""

    kind: Literal["choices"]
    field: str
    """Name of the question's field."""
    choices: str
    """Name of the field that lists the choices, at most ten."""


class ChoiceLetter(OneField):
    """The letter of the choice whose index, from 0, is in the field."""

    kind: Literal["choice_letter"]


def _kind_of(value: Any) -> str | None:
    if isinstance(value, str):
        return "name"
    # Pydantic passes the raw parameters, or a model when one is validated again.
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


class FieldMap(StrictParams):
    """The fields with a row's problem, answer and solution.

    Upstream files name and arrange them differently, in the few layouts above. A plain text is the name of a field or
    a path (`meta.answer`, `final_answer.0`).
    """

    problem: FieldParams
    """The question."""
    answer: FieldParams
    """The final answer."""
    solution: FieldParams | None
    """The worked solution; null if the source has none. A row without a solution keeps its problem."""


class DrawnRows(StrictParams):
    """A uniform sample of a file's rows, such as 1,000 of MMLU-Pro's 12,032: files are often sorted by subject."""

    rows: int = Field(ge=1)
    """Rows to draw; the others are dropped as `not_drawn`. A file with fewer rows is used whole."""
    seed: int
    """Seed of the sample."""


class FileContent(StrictParams):
    """Content of a file, for any origin."""

    format: Literal["jsonl", "json", "parquet", "csv"]
    """jsonl: an object per line; json: one list of objects; csv: with a header. Gzip is recognised."""
    fields: Annotated[
        Annotated[FieldMap, Tag("map")] | Annotated[str, Tag("messages")],
        Discriminator(lambda value: "messages" if isinstance(value, str) else "map"),
    ]
    """Maps upstream's fields to ours; for conversations, the name of the field that lists the turns."""
    only: dict[str, list[Any]]
    """Rows to take: each named field must have one of the values; {} for all rows."""
    max_rows: int | None = Field(ge=1)
    """Rows to read from the beginning of the file; null for all."""
    draw: DrawnRows | None = Field(default=None, exclude_if=lambda value: value is None)
    """A sample of the rows that are read; absent: all."""


class HubSource(FileContent):
    """A file of a data set on the Hugging Face hub."""

    kind: Literal["hub"]
    repository: str = Field(pattern=r"^[^/\s]+/[^/\s]+$")
    """owner/name of the data set."""
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    """Commit of the data set: a branch could change without a change of the recipe."""
    file: str
    """Path of the file in the data set."""


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class LocalSource(FileContent):
    """A file on this machine. Its hash is required because nothing else would detect a change."""

    kind: Literal["local"]
    path: str
    """Path from the project's root, or absolute."""
    sha256: Sha256
    """Hash of the file's bytes."""


class UrlSource(FileContent):
    """A file at a URL, pinned by its hash."""

    kind: Literal["url"]
    url: str = Field(pattern=r"^https?://")
    """Address, preferably with a commit in it."""
    sha256: Sha256
    """Hash of the file's bytes."""


Origin = Annotated[
    UrlSource
    | LocalSource
    | HubSource
    | ArithmeticSource
    | DigitSource
    | CalculatorSource
    | CalculatorConversations
    | ReasoningGymSource,
    Field(discriminator="kind"),
]


class SourceParams(StrictParams):
    """One entry of the section `sources`."""

    role: Literal["train", "benchmark", "chat"]
    """train: problems to train on; benchmark: problems for evaluation, never trained on; chat: conversations."""
    licence: str = Field(min_length=1)
    """Licence of the problems; written into every row."""
    # A recipe says `from`, which is a keyword in Python.
    origin: Origin = Field(alias="from")
    """Origin of the problems."""

    @model_validator(mode="after")
    def _has_fields_of_its_role(self) -> SourceParams:
        has_turns = isinstance(getattr(self.origin, "fields", None), str)
        if (self.role == "chat") != (has_turns or isinstance(self.origin, CalculatorConversations)):
            raise ValueError(
                "role chat takes a file whose `fields` is one name, as `messages`, or kind calculator_conversations; "
                "other roles take a map"
            )
        return self


STAGE = Stage(
    sections={"sources": dict[str, SourceParams]},
    outputs={
        "problems": "data/problems/collected/${key}.parquet",
        "dropped": "data/dropped/collect__${key}.parquet",
        "metrics": "data/metrics/collect/${key}.json",
        "headline": "data/headline/collect/${key}.json",
    },
    foreach="sources",
)
ABOUT = About(
    description="The problems of one source.",
    headline=("rows/kept", "{:,.0f} problems"),
    raw=lambda params: [own.get("from") for name, own in params.items() if name.startswith("sources.")],
    sources="sources",
)
# A source's name becomes part of file names, of ids and of a stage's name in DVC.
Name = re.compile(r"[a-z0-9][a-z0-9_]*")


def require_word(source: str) -> None:
    """Raises UserError for a source name that is not a snake_case word."""
    if not Name.fullmatch(source):
        raise UserError(f"a source's name is made of lower case letters, digits and _, not {source!r}")
