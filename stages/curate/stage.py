"""Definition of stage `curate`: its inputs and outputs, and the data about it that other modules use."""

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
    """The form of a gold answer, which decides how it can be graded."""

    integer = "integer"
    """A whole number, in any exact notation: `1,234`, `\\$5`, `8/4`."""
    number = "number"
    """Another number: decimal, fraction, percentage."""
    choice = "choice"
    """A letter from A to J."""
    word = "word"
    """One word: True, yes, east."""
    expression = "expression"
    """Any answer that needs algebra: math-verify decides."""
    prose = "prose"
    """Two words or more: no verifier here can read them."""


class DeduplicationParams(StrictParams):
    """Deduplication: of several equal problems, the first in the order of the sources is kept."""

    exact: bool
    """Drop a problem whose normalised text occurred before; if answers to it differ, drop all of its rows."""
    near_duplicates: NearDuplicateRule | None
    """Drop a problem that is similar to an earlier one; null to keep them."""


class IntegerAnswers(StrictParams):
    """Replaces other answers by integers, as in DAPO's data (arXiv 2503.14476, section 3.5): their check cannot err.

    For a fraction, a root, a multiple of pi or a tuple, the problem then asks for the sum of its integers, if that is
    exact. Answers without an exact form are kept, and counted by reason; `answer_kinds: [integer]` drops them. In DAPO
    a language model rewrites the problem; here a rule does.
    """

    kind: Literal["integer"]


class KeepAnswers(StrictParams):
    """Keeps all answers unchanged."""

    kind: Literal["none"]


class NoDifficulty(StrictParams):
    """No pass rates are available."""

    kind: Literal["none"]


class PassRates(StrictParams):
    """Pass rates from another measurement, and the range of problems to keep. Problems without a rate are kept."""

    kind: Literal["pass_rates"]
    path: str
    """JSON Lines, also gzipped: one object per problem. Relative to the project's root, or absolute."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the file's bytes: nothing else would detect a change."""
    problem_field: str
    """Field with the problem's text, by which the problem is matched."""
    outcomes_field: str
    """Field with a list of booleans, one for each sampled response, or with the pass rate itself."""
    least_pass_rate: float = Field(ge=0, le=1)
    """Problems below it are dropped as `too_hard`."""
    most_pass_rate: float = Field(ge=0, le=1)
    """Problems above it are dropped as `too_easy`."""

    @model_validator(mode="after")
    def _is_a_range(self) -> PassRates:
        if self.least_pass_rate > self.most_pass_rate:
            raise ValueError("least_pass_rate must not exceed most_pass_rate: nothing measured would be kept")
        return self


class CurateParams(StrictParams):
    """The section `curate`."""

    max_problem_characters: int = Field(ge=1)
    """Longer problems are dropped: they leave too little room for a response."""
    answer_kinds: list[AnswerKind] = Field(min_length=1)
    """Kinds of gold answers that the verifier may grade; others are dropped as `ungradable_answer`."""
    transform: Annotated[KeepAnswers | IntegerAnswers, Field(discriminator="kind")]
    """Rewriting of answers, before `answer_kinds` is applied."""
    gradability_test: bool
    """Drop problems for which the verifier does not accept the gold answer, or does not reject a perturbed one."""
    difficulty: Annotated[NoDifficulty | PassRates, Field(discriminator="kind")]
    """Pass rates: how hard a problem is for some policy."""
    deduplication: DeduplicationParams
    """Within training problems, in and across sources; duplicates among benchmarks are only reported."""
    decontamination: DecontaminationRules
    """Rules that find training problems in a benchmark."""
    validation_rows: int = Field(ge=0)
    """Problems held out for monitoring training, drawn by the seed; never trained on."""
    max_train_rows: int | None = Field(ge=1)
    """Training problems to keep, drawn by the seed; null for all."""
    filter: CustomFunctionParams | None = Field(default=None, exclude_if=lambda value: value is None)
    """A function that selects the training problems to keep, called before deduplication; absent: all."""

    @model_validator(mode="after")
    def _looks_for_something(self) -> CurateParams:
        if not self.decontamination.is_used:
            raise ValueError("decontamination must use at least one rule, or scores mean nothing: set exact: true")
        return self


class SourceRole(BaseModel):
    """The part of an entry of `sources` that curate needs; collect owns and checks the rest."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["train", "benchmark", "chat"]
    """train: into train and validation; benchmark: into benchmarks; chat: into conversations."""
    origin: dict[str, Any] = Field(alias="from")
    """Origin of the source."""

    @property
    def revision(self) -> str:
        """Returns the version of the source that the recipe pins."""
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
)


def require_roles(sources: Mapping[str, SourceRole]) -> None:
    """Raises UserError when either role has no source."""
    for role in ("train", "benchmark"):
        if role not in {source.role for source in sources.values()}:
            raise UserError(f"no entry of `sources` has role: {role}; add one")
