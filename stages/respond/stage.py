"""Definition of stage `respond`: its inputs and outputs, and the data about it that other modules use."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from stages.engines.samplers.params import SamplerParams
from stages.engines.turns import turn_contradictions
from stages.engines.verifier.params import VerifierParams
from stages.foundations.params import PromptParams, StrictParams
from stages.foundations.stage import About, Sections, Stage


class CandidatePrompt(StrictParams):
    """A prompt for the baseline, and the limit of its responses."""

    prompt: PromptParams
    max_response_tokens: int = Field(ge=1)


class BaselinePrompts(StrictParams):
    """Gives one policy the best of several prompts, so that a gain over it is not only due to a better prompt."""

    policy: str
    """The policy; all others use the section `prompt`."""
    max_problems: int = Field(ge=1)
    """First validation problems; each prompt is scored on them with `respond.samples` responses per problem."""
    candidates: list[CandidatePrompt] = Field(min_length=2)
    """The candidate with the highest accuracy is used, of equal ones the first."""


class RespondParams(StrictParams):
    """Section `respond`."""

    samples: int = Field(ge=1)
    """Sampled responses per problem: the k of avg@k."""
    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0)
    """0 keeps the whole vocabulary."""
    max_response_tokens: int = Field(ge=1)
    is_greedy_included: bool
    """True adds one greedy response per problem."""
    max_problems: int | None = Field(ge=1)
    """First problems of each benchmark; null for all."""
    problems_at_once: int = Field(ge=1)
    """Problems of one piece of work; a killed run resumes after the last finished piece."""
    baseline_prompts: BaselinePrompts | None
    """null: all policies use the section `prompt`."""


STAGE = Stage(
    sections={
        "seed": int,
        "prompt": PromptParams,
        "sampler": SamplerParams,
        "verifier": VerifierParams,
        "respond": RespondParams,
    },
    inputs={
        "policy": "data/policies/${item}",
        "validation": "data/problems/validation.parquet",  # for respond.baseline_prompts
        "benchmarks": "data/problems/benchmarks.parquet",
    },
    outputs={"responses": "data/responses/${item}.parquet", "metrics": "data/metrics/respond/${item}.json"},
    foreach="policies",
    items=list[str],
    is_launched=True,
    quick_imports=True,
)


def _contradictions(sections: Sections) -> list[str]:
    respond, policies = sections["respond"], sections["policies"]
    choice, limits = respond.baseline_prompts, {"respond.max_response_tokens": respond.max_response_tokens}
    of_turns = turn_contradictions(sections["prompt"], sections["sampler"], limits)
    if choice is None or choice.policy in policies:
        return of_turns
    return [
        *of_turns,
        f"respond.baseline_prompts.policy {choice.policy!r} is not measured: choose one of {', '.join(policies)}",
    ]


def _warnings(name: str, metrics: Mapping[str, float]) -> list[str]:
    """Returns a warning if prompts left no room for a response."""
    count = metrics.get("prompts/too_long", 0)
    return [
        f"{count:,.0f} benchmark problems count as wrong for {name}: prompt and response do not fit the model. Lower "
        "respond.max_response_tokens, or leave long problems out of the benchmark"
    ][: count > 0]


ABOUT = About(
    description="A policy's responses to every benchmark problem. Uses the GPU.",
    headline=("rows/kept", "{:,.0f} responses"),
    contradictions=_contradictions,
    runs_model=lambda params: True,
    named_after=("policy",),
    warnings=_warnings,
    is_varied=True,
)
