"""Parameters of the `reward_model` stage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stages.engines.image_scorers.config import RewardHeadSizes
from stages.engines.trainers.params import OptimizerParams
from stages.foundations.params import StrictParams


class RewardModelParams(StrictParams):
    """Section `reward_model`."""

    head: RewardHeadSizes
    head_initialisation: Literal["fan_in", "released", "matching"]
    """`matching` starts from the base scorer's matching head, for a head of one layer. `released` is ImageReward's,
    which does not learn at its learning rate of 1e-5 for hundreds of updates."""
    frozen_fraction: float = Field(ge=0, lt=1)
    """Share of both encoders' layers that do not learn, from the input on (ImageReward: 0.7)."""
    rating_weight: float = Field(ge=0)
    """Weight of the square error of the standardised ratings, learnt from the same state; 0 learns rankings alone."""
    groups_per_batch: int = Field(ge=1)
    """Prompts of one update, over all ranks, each with all its pictures and pairs."""
    micro_batch_images: int = Field(ge=2)
    """Pictures in one forward pass; a prompt that has more is a pass of its own."""
    epochs: int = Field(ge=1)
    """Each ends with a validation; the best one's weights are kept."""
    warmup_steps: int = Field(ge=0)
    """Linear warm-up from 0."""
    final_learning_rate_fraction: float = Field(ge=0, le=1)
    """Share of the peak learning rate that the cosine schedule ends at."""
    max_gradient_norm: float = Field(gt=0)
    checkpoint_every_steps: int = Field(ge=1)
    """A killed run goes on from the last checkpoint; one is made after every epoch too."""
    optimizer: OptimizerParams
