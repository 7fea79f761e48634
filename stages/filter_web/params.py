"""Parameters of stage filter_web."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.algorithms.decontamination import DecontaminationRules, NearDuplicateRule
from stages.foundations.params import StrictParams


class LengthLimits(StrictParams):
    """Longest texts that are kept, in characters."""

    problem_characters: int = Field(ge=1)
    solution_characters: int = Field(ge=1)
    answer_characters: int = Field(ge=1)


class FilterRules(StrictParams):
    """Which rules apply; each dropped row carries the rule's name."""

    no_solution: bool
    """Drop exercises without a worked solution."""
    no_short_answer: bool
    """Drop exercises without a short final answer: nothing to check a solution or a response against."""
    unfinished: bool
    """Drop solutions that state no final answer."""
    solution_disagrees_with_answer: bool
    """Drop exercises whose solution ends in another answer than the short answer beside it."""
    no_question: bool
    """Drop exercises of formulas only: what to do with them stood elsewhere on the page."""
    multi_part: bool
    """Drop exercises that ask several questions or offer choices in a list."""
    refers_to_figure_or_other: bool
    """Drop exercises that cannot be understood from their own text."""
    proof_or_opinion: bool
    """Drop exercises that ask for a proof, an explanation, a drawing or an opinion."""
    copy_is_correct: bool
    """Drop exercises that a copy of their own formula answers (simplify, factor, expand): the verifier, which asks
    whether two expressions are equal, would pay for no work. Off where the rows are demonstrations only."""
    too_long: LengthLimits | None
    """Drop longer texts; null keeps all lengths."""
    wrong_language: bool
    """Drop texts that are not English, by their letters and commonest words."""
    conflicting_answers: bool
    """Drop every exercise of one text with different answers: it leans on a context that is not there."""
    exact_duplicate: bool
    """Drop exercises whose normalised problem was kept before."""
    near_duplicate: NearDuplicateRule | None
    """Drop exercises whose problem is similar to one kept before; null keeps them."""
    contaminated: DecontaminationRules | None
    """Drop exercises that stand in a benchmark; null only for experiments that measure no benchmark."""


class NoAgreement(StrictParams):
    """Solutions are trusted as they are after the rules."""

    kind: Literal["none"]


class PolicyAgreement(StrictParams):
    """Keep an exercise when a sampled response agrees with its answer ("Demystifying Long CoT")."""

    kind: Literal["policy"]
    samples: int = Field(ge=1)
    """Responses per exercise; one that agrees is enough."""
    temperature: float = Field(gt=0)
    max_response_tokens: int = Field(ge=1)
    max_candidates: int | None = Field(ge=1)
    """Exercises that are sampled for, drawn by the seed, the others are dropped as `not_sampled`; null for all."""


class FilterWebParams(StrictParams):
    """Section `filter_web`."""

    rules: FilterRules
    agreement: Annotated[NoAgreement | PolicyAgreement, Field(discriminator="kind")]
