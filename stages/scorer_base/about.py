"""What others may ask of stage `scorer_base`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stages.foundations.about import About, Sections

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork


def _sections() -> dict[str, Any]:
    from stages.scorer_base.params import ScorerBaseParams

    return {"scorer_base": ScorerBaseParams}


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.image_scorers.costs import base_scorer_costs
    from stages.foundations.planned_work import NetworkWork

    own = sections["scorer_base"]
    costs = base_scorer_costs(own)
    if own.kind != "train":
        return NetworkWork(0, costs.parameters, 0)
    # A caption is read alone, with its picture, and as each false one.
    one = costs.picture_flops + (2 + own.false_captions) * costs.prompt_flops
    return NetworkWork(costs.parameters, 0, 0, own.steps * own.batch_captions * one)


ABOUT = About(
    headline=("loss/validation", "validation loss {:.3f}"),
    sections=_sections,
    networks=_networks,
    runs_model=lambda params: True,
    lane="Reward model",
    raw=lambda params: [params.get("scorer_base")],
)
