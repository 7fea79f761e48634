"""What stage `curate` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.algorithms.decontamination import DecontaminationRules, NearDuplicateRule, source_revision
from stages.engines.verifier.params import VerifierParams
from stages.foundations.errors import UserError
from stages.foundations.params import CustomFunctionParams, StrictParams
from stages.foundations.stage import About, Sections, Stage


class AnswerKind(StrEnum):
    """How a gold answer is written, which decides who can grade it."""

    integer = "integer"
    """A whole number, in any notation that is exact: `1,234`, `\\$5`, `8/4`."""
    number = "number"
    """Another number: decimal, fraction, percentage."""
    choice = "choice"
    """A letter from A to J."""
    word = "word"
    """One word: True, yes, east."""
    expression = "expression"
    """Anything that takes algebra: math-verify decides."""
    prose = "prose"
    """Two words or more: no verifier here reads them."""


class DeduplicationParams(StrictParams):
    """Which of several equal problems to keep: the first, in the order of the sources."""

    exact: bool
    """Drop a problem whose normalised text was there before; where two answers to it differ, drop all of them."""
    near_duplicates: NearDuplicateRule | None
    """Drop a problem that is similar to one before; null to keep them."""


class IntegerAnswers(StrictParams):
    """Integers in place of other answers, as in DAPO's data (arXiv 2503.14476, section 3.5): a check that cannot err.

    A fraction, a root, a multiple of pi or a tuple becomes the question for the sum of its integers, where that is
    exact; what has no exact form is left alone, and counted with its reason. `answer_kinds: [integer]` drops those.
    DAPO has a language model rewrite the problem; this is a rule.
    """

    kind: Literal["integer"]


class KeepAnswers(StrictParams):
    """Answers as they are."""

    kind: Literal["none"]


class NoDifficulty(StrictParams):
    """No pass rates are at hand."""

    kind: Literal["none"]


class PassRates(StrictParams):
    """Pass rates that were measured elsewhere, and which problems to keep by them. Unmeasured problems are kept."""

    kind: Literal["pass_rates"]
    path: str
    """JSON Lines, also gzipped: an object per problem. From the project's root, or absolute."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the file's bytes: nothing else notices that it has changed."""
    problem_field: str
    """Field that holds the problem's text, by which it is found."""
    outcomes_field: str
    """Field that holds a list of booleans, one for each sampled response, or the pass rate itself."""
    least_pass_rate: float = Field(ge=0, le=1)
    """Problems under it are dropped as `too_hard`."""
    most_pass_rate: float = Field(ge=0, le=1)
    """Problems over it are dropped as `too_easy`."""

    @model_validator(mode="after")
    def _is_a_range(self) -> PassRates:
        if self.least_pass_rate > self.most_pass_rate:
            raise ValueError("least_pass_rate must not exceed most_pass_rate: nothing measured would be kept")
        return self


class CurateParams(StrictParams):
    """The section `curate`."""

    max_problem_characters: int = Field(ge=1)
    """Longer problems are dropped: they do not fit beside a response."""
    answer_kinds: list[AnswerKind] = Field(min_length=1)
    """Kinds of gold answers that the verifier is trusted with; others are dropped as `ungradable_answer`."""
    transform: Annotated[KeepAnswers | IntegerAnswers, Field(discriminator="kind")]
    """Rewriting of answers, before their kind is looked at."""
    gradability_test: bool
    """Drop problems whose gold answer the verifier does not call correct, or a perturbed one wrong."""
    difficulty: Annotated[NoDifficulty | PassRates, Field(discriminator="kind")]
    """Pass rates, which say how hard a problem is for some policy."""
    deduplication: DeduplicationParams
    """Within the training problems, of one source and of all; what benchmarks share is only reported."""
    decontamination: DecontaminationRules
    """Which training problems stand in a benchmark."""
    validation_rows: int = Field(ge=0)
    """Problems set aside to watch training with, drawn by the seed; never trained on."""
    max_train_rows: int | None = Field(ge=1)
    """Training problems to keep, drawn by the seed; null for all."""
    filter: CustomFunctionParams | None = Field(default=None, exclude_if=lambda value: value is None)
    """A function that says which training problems to keep, asked before duplicates are looked for; absent: all."""

    @model_validator(mode="after")
    def _looks_for_something(self) -> CurateParams:
        if not self.decontamination.is_used:
            raise ValueError("decontamination must use at least one rule, or scores mean nothing: set exact: true")
        return self


class SourceRole(BaseModel):
    """What curate has to know of an entry of `sources`; collect owns and checks the rest."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["train", "benchmark", "chat"]
    """train: into train and validation; benchmark: into benchmarks; chat: into conversations."""
    origin: dict[str, Any] = Field(alias="from")
    """Where it comes from."""

    @property
    def revision(self) -> str:
        """Which version of the source the recipe pins."""
        return source_revision(self.origin)


STAGE = Stage(
    sections={"seed": int, "verifier": VerifierParams, "sources": dict[str, SourceRole], "curate": CurateParams},
    inputs={"collected": "data/problems/collected"},
    outputs={
        "train": "data/problems/train.parquet",
        "validation": "data/problems/validation.parquet",
        "benchmarks": "data/problems/benchmarks.parquet",
        "conversations": "data/problems/conversations.parquet",
        "contamination": "data/problems/contamination.parquet",
        "duplicates": "data/problems/duplicates.parquet",
        "transforms": "data/problems/transforms.parquet",
        "difficulty": "data/problems/difficulty.parquet",
        "dropped": "data/dropped/curate.parquet",
        "metrics": "data/metrics/curate.json",
        "headline": "data/headline/curate.json",
    },
)


def _contradictions(sections: Sections) -> list[str]:
    sources = sections.get("sources", {}).values()
    if any(source.role == "benchmark" for source in sources):
        return []
    return ["sources: none has role `benchmark`, so nothing could be measured"]


ABOUT = About(
    description="Gradable, deduplicated, decontaminated problems, split into train, validation and benchmarks.",
    headline=("rows/kept", "{:,.0f} problems"),
    contradictions=_contradictions,
    lane="Problems",
    has_funnel=True,
    tables={
        "problems/train": "Problems to learn from: gradable, no duplicates, none of a benchmark.",
        "problems/validation": "Problems set aside to watch training with.",
        "problems/benchmarks": "Problems that policies are measured on, never trained on.",
        "problems/transforms": "Questions rewritten so that their answer is an integer, with the way back.",
        "problems/difficulty": "Pass rates that were measured elsewhere.",
    },
    contamination="problems/contamination",
)


def require_roles(sources: Mapping[str, SourceRole]) -> None:
    """UserError when either role has no source."""
    for role in ("train", "benchmark"):
        if role not in {source.role for source in sources.values()}:
            raise UserError(f"no entry of `sources` has role: {role}; add one")
