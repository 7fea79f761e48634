"""What others may ask of stage `reward_model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stages.foundations.about import About, Sections

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork


def _sections() -> dict[str, Any]:
    from stages.reward_model.params import RewardModelParams

    return {"reward_model": RewardModelParams}


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.image_scorers.costs import base_scorer_costs
    from stages.engines.images.counting import pictures_of_a_prompt
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
    headline=("accuracy/validation_best", "validation accuracy {:.1%}"),
    sections=_sections,
    networks=_networks,
    runs_model=lambda params: True,
    lane="Reward model",
    is_varied=True,
)
