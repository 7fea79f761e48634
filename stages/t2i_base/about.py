"""What others may ask of stage `t2i_base`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stages.foundations.about import About, Sections

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork


def _sections() -> dict[str, Any]:
    from stages.t2i_base.params import T2iBaseParams

    return {"t2i_base": T2iBaseParams}


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.generators.costs import generator_costs, told
    from stages.foundations.planned_work import NetworkWork

    own = sections["t2i_base"]
    costs = generator_costs(own)
    parameters = costs.unet_parameters + costs.other_parameters
    if own.kind != "train":
        return NetworkWork(0, parameters, 0, taken_for_granted=told(costs))
    seen = own.steps // own.validate_every_steps * own.validation_images
    return NetworkWork(
        parameters, 0, seen * costs.step_flops, own.steps * own.batch_images * costs.step_flops
    )


ABOUT = About(
    headline=("loss/validation_last", "validation loss {:.3f}"),
    sections=_sections,
    networks=_networks,
    runs_model=lambda params: True,
    raw=lambda params: [params.get("t2i_base")],
    named_after=("policy",),
    lane="Text to image",
)
