"""What stage `generate` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.foundations.stage import About, Sections, Stage
from stages.generate.params import GenerateParams, GeneratorsParams

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork

STAGE = Stage(
    sections={"seed": int, "generate": GenerateParams, "generators": GeneratorsParams},
    inputs={"generator": "data/generators/${item.generator}", "prompts": "data/t2i/prompts.parquet"},
    outputs={
        "images": "data/images/generated/${item.ranking_round}/${key}",
        "metrics": "data/metrics/generate/${key}.json",
    },
    foreach="generators",
    quick_imports=True,
)


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.generators.costs import generator_costs
    from stages.foundations.planned_work import NetworkWork

    own, costs = sections["generators"][address.partition("@")[2]], generator_costs(sections["t2i_base"])
    images = sum(prompts[split] for split in own.splits) * own.images_per_prompt
    held = costs.unet_parameters + costs.other_parameters
    return NetworkWork(0, held, images * costs.draw_flops(own.steps, own.guidance))


ABOUT = About(
    description="A generator's pictures of the prompts, each from a seed of its own. Needs the GPU.",
    headline=("images/kept", "{:,.0f} pictures"),
    networks=_networks,
    runs_model=lambda params: True,
    named_after=("policy",),
    lane="Text to image",
)
