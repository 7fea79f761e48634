"""What stage `filter_web` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stages.engines.samplers.params import SamplerParams
from stages.engines.verifier.params import VerifierParams
from stages.filter_web.params import FilterWebParams
from stages.foundations.params import PromptParams
from stages.foundations.stage import About, FunnelStep, Sections, Stage

if TYPE_CHECKING:
    from stages.foundations.planned_work import Lengths, Work

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


REASONS = (
    "missing_field",
    "duplicate_id",
    "no_solution",
    "no_short_answer",
    "unfinished",
    "solution_disagrees_with_answer",
    "no_question",
    "multi_part",
    "refers_to_figure_or_other",
    "proof_or_opinion",
    "copy_is_correct",
    "wrong_language",
    "too_long",
    "conflicting_answers",
    "exact_duplicate",
    "near_duplicate",
    "contaminated",
    "not_sampled",
    "no_agreement",
)
"""In the order in which the stage asks; the row rules share one pass, the first that objects counts."""


def _runs_model(params: Mapping[str, Any]) -> bool:
    return params["filter_web"]["agreement"]["kind"] == "policy"


def _work(sections: Sections, address: str, lengths: Lengths) -> Work:
    """Responses to each candidate, as far as their number is known."""
    from stages.foundations.planned_work import ResponseLengths, Sampling, Work

    agreement = sections["filter_web"].agreement
    if agreement.kind == "none":
        return Work()
    if agreement.max_candidates is None:
        told = "responses to an unknown number of candidates (set filter_web.agreement.max_candidates)"
        return Work(not_counted=(told,))
    most = agreement.max_response_tokens
    drawn = ResponseLengths(lengths.response_share * most, most)
    return Work(sampling=(Sampling(1, agreement.max_candidates, agreement.samples, lengths.prompt, drawn),))


def _describe_agreement(params: Mapping[str, Any]) -> str:
    agreement = params.get("agreement") or {}
    if agreement.get("kind") != "policy":
        return "Answer agreement with a policy is switched off."
    samples = agreement.get("samples")
    responses = "response" if samples == 1 else "responses"
    return f"Answer agreement: one of {samples} sampled {responses} of the base policy must reach the answer."


ABOUT = About(
    description="The candidates that may be trusted.",
    headline=("rows/kept", "{:,.0f} candidates"),
    runs_model=_runs_model,
    work=_work,
    lane="Web solutions",
    has_funnel=True,
    way=FunnelStep(
        "From pages to trusted problems",
        "exercises",
        first="exercises found",
        last="trusted problems",
        reasons=REASONS,
        note=_describe_agreement,
    ),
    tables={"web/solutions": "Exercises whose solutions may be trusted."},
    contamination="web/contamination",
)
