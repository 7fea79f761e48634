"""Parameters of the `reward_evaluation` stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class RewardEvaluationParams(StrictParams):
    """Section `reward_evaluation`."""

    device: Literal["auto", "cpu", "cuda"]
    threads: int = Field(ge=1)
    """CPU threads; part of the result, because the order of float additions depends on it."""
    images_per_batch: int = Field(ge=1)
    recall_at: list[Annotated[int, Field(ge=1)]]
    """The k of recall@k and filter@k (the paper: 1, 2, 4)."""
    bootstrap_draws: int = Field(ge=100)
    """Of intervals over prompts."""
