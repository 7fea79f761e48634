"""What others may ask of stage `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stages.foundations.about import About, Sections

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork


def _sections() -> dict[str, Any]:
    from stages.generate.params import GenerateParams, GeneratorsParams

    return {"generate": GenerateParams, "generators": GeneratorsParams}


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.generators.costs import generator_costs
    from stages.foundations.planned_work import NetworkWork

    own, costs = sections["generators"][address.partition("@")[2]], generator_costs(sections["t2i_base"])
    images = sum(prompts[split] for split in own.splits) * own.images_per_prompt
    held = costs.unet_parameters + costs.other_parameters
    return NetworkWork(0, held, images * costs.draw_flops(own.steps, own.guidance))


ABOUT = About(
    headline=("images/kept", "{:,.0f} pictures"),
    sections=_sections,
    networks=_networks,
    runs_model=lambda params: True,
    named_after=("policy",),
    lane="Text to image",
)
