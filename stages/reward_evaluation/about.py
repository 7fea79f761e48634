"""What others may ask of stage `reward_evaluation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stages.foundations.about import About, Sections

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork


def _sections() -> dict[str, Any]:
    from stages.reward_evaluation.params import RewardEvaluationParams

    return {"reward_evaluation": RewardEvaluationParams}


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.image_scorers.costs import base_scorer_costs
    from stages.engines.images.counting import pictures_of_a_prompt
    from stages.foundations.planned_work import NetworkWork

    costs = base_scorer_costs(sections["scorer_base"])
    pictures, told = pictures_of_a_prompt(sections, address.partition("@")[2])
    flops = 2 * prompts["test"] * pictures * costs.score_flops
    return NetworkWork(0, 2 * costs.parameters, flops, taken_for_granted=told)


ABOUT = About(
    headline=("accuracy", "accuracy {:.1%}"),
    sections=_sections,
    networks=_networks,
    runs_model=lambda params: True,
    lane="Reward model",
    is_varied=True,
)
