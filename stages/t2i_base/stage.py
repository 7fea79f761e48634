"""What stage `t2i_base` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.engines.trainers.params import TrainerParams
from stages.foundations.stage import About, Sections, Stage
from stages.t2i_base.params import T2iBaseParams

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork

STAGE = Stage(
    sections={"seed": int, "trainer": TrainerParams, "t2i_base": T2iBaseParams},
    inputs={"prompts": "data/t2i/prompts.parquet"},
    outputs={
        "out": "data/generators/base",
        "curves": "data/curves/t2i_base.csv",
        "metrics": "data/metrics/t2i_base.json",
        "headline": "data/headline/t2i_base.json",
    },
    foreach="t2i",
    is_launched=True,
    depends_on_ranks=True,
    quick_imports=True,
)


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.generators.costs import generator_costs, told
    from stages.foundations.planned_work import NetworkWork

    own = sections["t2i_base"]
    costs = generator_costs(own)
    parameters = costs.unet_parameters + costs.other_parameters
    if own.kind != "train":
        return NetworkWork(0, parameters, 0, taken_for_granted=told(costs))
    seen = own.steps // own.validate_every_steps * own.validation_images
    return NetworkWork(parameters, 0, seen * costs.step_flops, own.steps * own.batch_images * costs.step_flops)


ABOUT = About(
    description="The generator that everything starts from.",
    plot=("loss/train", "Base generator"),
    headline=("loss/validation_last", "validation loss {:.3f}"),
    networks=_networks,
    runs_model=lambda params: True,
    raw=lambda params: [params.get("t2i_base")],
    named_after=("policy",),
    lane="Text to image",
)
