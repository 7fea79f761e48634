"""What stage `scorer_base` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.engines.trainers.params import TrainerParams
from stages.foundations.stage import About, Sections, Stage
from stages.scorer_base.params import ScorerBaseParams

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork

STAGE = Stage(
    sections={"seed": int, "trainer": TrainerParams, "scorer_base": ScorerBaseParams},
    inputs={"prompts": "data/t2i/prompts.parquet"},
    outputs={
        "out": "data/image_scorers/base",
        "curves": "data/curves/scorer_base.csv",
        "metrics": "data/metrics/scorer_base.json",
        "headline": "data/headline/scorer_base.json",
    },
    foreach="t2i",
    quick_imports=True,
)


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.image_scorers.config import base_scorer_costs
    from stages.foundations.planned_work import NetworkWork

    own = sections["scorer_base"]
    costs = base_scorer_costs(own)
    if own.kind != "train":
        return NetworkWork(0, costs.parameters, 0)
    # A caption is read alone, with its picture, and as each false one.
    one = costs.picture_flops + (2 + own.false_captions) * costs.prompt_flops
    return NetworkWork(costs.parameters, 0, 0, own.steps * own.batch_captions * one)


ABOUT = About(
    description="The scorer of pictures that reward models start from and are compared with.",
    plot=("loss/train", "Base scorer"),
    headline=("loss/validation", "validation loss {:.3f}"),
    networks=_networks,
    runs_model=lambda params: True,
    lane="Reward model",
    raw=lambda params: [params.get("scorer_base")],
)
