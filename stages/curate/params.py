"""Parameters of curate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stages.algorithms.decontamination import DecontaminationRules, NearDuplicateRule
from stages.curate.answers import AnswerKind
from stages.foundations.errors import UserError
from stages.foundations.params import StrictParams, load_section


class KeepAnswers(StrictParams):
    """Answers as they are."""

    kind: Literal["none"]


class IntegerAnswers(StrictParams):
    """Every answer an integer, as in DAPO's data (arXiv 2503.14476, section 3.5), for a check that cannot err.

    A fraction, a root or a multiple of pi becomes the question for the sum of its integers; what has no such
    exact form is dropped as `no_integer_form`. DAPO has a language model rewrite the problem; this is a rule.
    """

    kind: Literal["integer"]


class DeduplicationParams(StrictParams):
    """Which of several equal problems to keep: the first, in the order of the sources."""

    exact: bool
    """Drop a problem whose normalised text was there before; where two answers to it differ, drop all of them."""
    near_duplicates: NearDuplicateRule | None
    """Drop a problem that is similar to one before; null to keep them."""


class CurateParams(StrictParams):
    """The section `curate`."""

    max_problem_characters: int = Field(ge=1)
    """Longer problems are dropped: they do not fit beside a response."""
    answer_kinds: list[AnswerKind] = Field(min_length=1)
    """Kinds of gold answers that the verifier is trusted with; others are dropped as `ungradable_answer`."""
    transform: Annotated[KeepAnswers | IntegerAnswers, Field(discriminator="kind")]
    """Rewriting of answers, before their kind is looked at."""
    deduplication: DeduplicationParams
    """Within the training problems."""
    decontamination: DecontaminationRules
    """Which training problems stand in a benchmark."""
    validation_rows: int = Field(ge=0)
    """Problems set aside to watch training with, drawn by the seed; never trained on."""
    max_train_rows: int | None = Field(ge=1)
    """Training problems to keep, drawn by the seed; null for all."""

    @model_validator(mode="after")
    def _looks_for_something(self) -> CurateParams:
        rules = self.decontamination
        if not (rules.exact or rules.ngrams or rules.near_duplicates):
            raise ValueError(
                "decontamination must use at least one rule, or scores mean nothing: set exact: true"
            )
        return self


class SourceRole(BaseModel):
    """What curate has to know of an entry of `sources`; collect owns and checks the rest."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["train", "benchmark"]
    """train: into train and validation; benchmark: into benchmarks."""


def load_roles(path: Path) -> dict[str, str]:
    """Each source's role, in the order of `sources`; UserError when either role has no source."""
    sources = load_section(path, "sources", dict[str, SourceRole])
    roles = {name: source.role for name, source in sources.items()}
    for role in ("train", "benchmark"):
        if role not in roles.values():
            raise UserError(f"{path}: no entry of `sources` has role: {role}; add one")
    return roles
