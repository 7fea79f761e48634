"""Parameters and paths of stage `filter_web`, and its description for other modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from stages.algorithms.decontamination import DecontaminationRules, NearDuplicateRule
from stages.engines.samplers.params import SamplerParams
from stages.engines.verifier.params import VerifierParams
from stages.foundations.params import PromptParams, StrictParams
from stages.foundations.stage import About, Stage


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
    """Drop exercises without a short final answer: no solution or response could be checked."""
    unfinished: bool
    """Drop solutions that state no final answer."""
    solution_disagrees_with_answer: bool
    """Drop exercises whose solution ends in another answer than the short answer beside it."""
    no_question: bool
    """Drop exercises of only formulas: the task was elsewhere on the page."""
    multi_part: bool
    """Drop exercises that ask several questions or offer choices in a list."""
    refers_to_figure_or_other: bool
    """Drop exercises that cannot be understood from their text alone."""
    proof_or_opinion: bool
    """Drop exercises that ask for a proof, an explanation, a drawing or an opinion."""
    copy_is_correct: bool
    """Drop exercises that a copy of their formula answers (simplify, factor, expand). The verifier checks only whether
    two expressions are equal, so a copy would earn a reward. Off where the rows are only demonstrations."""
    too_long: LengthLimits | None
    """Drop longer texts; null keeps all lengths."""
    wrong_language: bool
    """Drop texts that are not English, by their letters and most common words."""
    conflicting_answers: bool
    """Drop every exercise of one text with different answers: it depends on missing context."""
    exact_duplicate: bool
    """Drop exercises whose normalised problem was already kept."""
    near_duplicate: NearDuplicateRule | None
    """Drop exercises whose problem is similar to a kept one; null keeps them."""
    contaminated: DecontaminationRules | None
    """Drop exercises that are in a benchmark; null only for experiments without a benchmark."""


class NoAgreement(StrictParams):
    """Solutions are trusted without further checks after the rules."""

    kind: Literal["none"]


class PolicyAgreement(StrictParams):
    """Keep an exercise when a sampled response agrees with its answer ("Demystifying Long CoT")."""

    kind: Literal["policy"]
    samples: int = Field(ge=1)
    """Responses per exercise; one that agrees is enough."""
    temperature: float = Field(gt=0)
    max_response_tokens: int = Field(ge=1)
    max_candidates: int | None = Field(ge=1)
    """Exercises to sample for, selected by the seed; the others are dropped as `not_sampled`; null for all."""


class FilterWebParams(StrictParams):
    """Section `filter_web`."""

    rules: FilterRules
    agreement: Annotated[NoAgreement | PolicyAgreement, Field(discriminator="kind")]


STAGE = Stage(
    sections={
        "seed": int,
        "prompt": PromptParams,
        "sampler": SamplerParams,
        "verifier": VerifierParams,
        "filter_web": FilterWebParams,
    },
    inputs={
        "candidates": "data/web/candidates.parquet",
        "benchmarks": "data/problems/benchmarks.parquet",
        "policy": "data/policies/base",
    },
    outputs={
        "solutions": "data/web/solutions.parquet",
        "contamination": "data/web/contamination.parquet",
        "dropped": "data/dropped/filter_web.parquet",
        "metrics": "data/metrics/filter_web.json",
        "headline": "data/headline/filter_web.json",
    },
    is_launched=True,
)


def _runs_model(params: Mapping[str, Any]) -> bool:
    return params["filter_web"]["agreement"]["kind"] == "policy"


ABOUT = About(
    description="The extracted solutions that pass every quality rule.",
    headline=("rows/kept", "{:,.0f} candidates"),
    runs_model=_runs_model,
)
