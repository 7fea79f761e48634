"""Stage `reward_model`: its section, its paths, and its description for other modules."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stages.engines.trainers.params import OptimizationParams, TrainerParams
from stages.foundations.stage import About, Stage
from stages.images.engines.image_scorers.config import RewardHeadSizes


class RewardModelParams(OptimizationParams):
    """Section `reward_model`."""

    head: RewardHeadSizes
    head_initialisation: Literal["fan_in", "released", "matching"]
    """`matching` starts from the base scorer's matching head, for a head of one layer. `released` is ImageReward's,
    which does not learn at its learning rate of 1e-5 for hundreds of updates."""
    frozen_fraction: float = Field(ge=0, lt=1)
    """Share of both encoders' layers that are frozen, from the input on (ImageReward: 0.7)."""
    rating_weight: float = Field(ge=0)
    """Weight of the square error of the standardised ratings, learnt from the same state; 0 learns only rankings."""
    groups_per_batch: int = Field(ge=1)
    """Prompts of one update, over all ranks, each with all its pictures and pairs."""
    micro_batch_images: int = Field(ge=2)
    """Pictures in one forward pass; a prompt with more gets a separate pass."""
    epochs: int = Field(ge=1)
    """Each ends with a validation; the best one's weights are kept."""
    warmup_steps: int = Field(ge=0)
    """Linear warm-up from 0."""
    checkpoint_every_steps: int = Field(ge=1)
    """A killed run resumes from the last checkpoint; there is one after every epoch too."""


STAGE = Stage(
    sections={"seed": int, "trainer": TrainerParams, "reward_model": RewardModelParams},
    inputs={
        "scorer": "data/image_scorers/base",
        "pairs": "data/preferences/${key}",
        "pool": "data/images/pool/${key}",
        # The round itself where no earlier round counts.
        "earlier_pool": "data/images/pool/${item.also}",
    },
    outputs={
        "out": "data/image_scorers/${key}",
        "curves": "data/curves/reward_model/${key}.csv",
        "metrics": "data/metrics/reward_model/${key}.json",
        "headline": "data/headline/reward_model/${key}.json",
    },
    foreach="ranking_rounds",
    is_launched=True,
    depends_on_ranks=True,
    quick_imports=True,
)


ABOUT = About(
    description="Trains the base scorer on a round's preferences, and on those of an earlier round if one is named.",
    plot=("loss/train", "Reward model ${key}"),
    headline=("accuracy/validation_best", "validation accuracy {:.1%}"),
    runs_model=lambda params: True,
    is_varied=True,
)
