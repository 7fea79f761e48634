"""Parameters and paths of stage `image_pool`, and its description for other modules."""

from __future__ import annotations

from stages.foundations.stage import About, Stage
from stages.images.engines.pictures.params import ImageParams, RankingRoundParams

STAGE = Stage(
    sections={"images": ImageParams, "ranking_rounds": dict[str, RankingRoundParams]},
    inputs={
        # A folder, into which every generator of the round writes.
        "generated": "data/images/generated/${key}",
        "prompts": "data/t2i/prompts.parquet",
    },
    outputs={
        "pool": "data/images/pool/${key}",
        "dropped": "data/dropped/image_pool__${key}.parquet",
        "metrics": "data/metrics/image_pool/${key}.json",
        "headline": "data/headline/image_pool/${key}.json",
    },
    foreach="ranking_rounds",
)


ABOUT = About(
    description="The images of a ranking round, decoded in confined processes, without duplicates.",
    headline=("rows/kept", "{:,.0f} pictures"),
)
