"""Parameters of the `respond` stage."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams


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
