"""What stage `reward_model` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.engines.trainers.params import TrainerParams
from stages.foundations.stage import About, Sections, Stage
from stages.reward_model.params import RewardModelParams

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork

STAGE = Stage(
    sections={"seed": int, "trainer": TrainerParams, "reward_model": RewardModelParams},
    inputs={
        "scorer": "data/image_scorers/base",
        "pairs": "data/preferences/${key}",
        "pool": "data/images/pool/${key}",
        "earlier_pool": "data/images/pool/${item.also}",  # the round's own where no earlier round counts
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


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.image_scorers.config import base_scorer_costs
    from stages.engines.images.params import pictures_of_a_prompt
    from stages.foundations.planned_work import NetworkWork

    own, costs = sections["reward_model"], base_scorer_costs(sections["scorer_base"])
    pictures, told = pictures_of_a_prompt(sections, address.partition("@")[2])
    each = own.epochs * pictures * costs.score_flops
    learns = 1 - own.frozen_fraction
    return NetworkWork(
        learns * costs.parameters,
        own.frozen_fraction * costs.parameters,
        (own.frozen_fraction * prompts["train"] + prompts["validation"]) * each,
        learns * prompts["train"] * each,
        told,
    )


ABOUT = About(
    description="The base scorer learns a round's preferences, and those of the earlier round that counts as well.",
    plot=("loss/train", "Reward model ${key}"),
    headline=("accuracy/validation_best", "validation accuracy {:.1%}"),
    networks=_networks,
    runs_model=lambda params: True,
    lane="Reward model",
    is_varied=True,
)
