"""Parameters of the `respond` stage."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import PromptParams, StrictParams


class CandidatePrompt(StrictParams):
    """A prompt that the baseline may answer, and how long its responses may be with it."""

    prompt: PromptParams
    max_response_tokens: int = Field(ge=1)


class BaselinePrompts(StrictParams):
    """Gives one policy the best of some prompts, so that a gain over it is not the gain of a better prompt."""

    policy: str
    """The policy; all others answer the section `prompt`."""
    max_problems: int = Field(ge=1)
    """First validation problems, on which each prompt is scored with `respond.samples` sampled responses a problem."""
    candidates: list[CandidatePrompt] = Field(min_length=2)
    """The one with the highest accuracy is taken, of equal ones the first."""


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
    """Problems of one piece of work; a killed run goes on after the last finished piece."""
    baseline_prompts: BaselinePrompts | None
    """null: all policies answer the section `prompt`."""
