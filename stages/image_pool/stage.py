"""Parameters and paths of stage `image_pool`, and its description for other modules."""

from __future__ import annotations

from stages.engines.images.params import ImageParams, RankingRoundParams
from stages.foundations.stage import About, FunnelStep, Stage

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


REASONS = (
    "malformed_row",
    "unknown_prompt",
    "image_missing",
    "image_changed",
    "image_not_allowed",
    "image_too_large",
    "image_too_small",
    "image_animated",
    "image_truncated",
    "image_broken",
    "duplicate_image",
)
"""In the order in which the stage checks."""


ABOUT = About(
    description="The images of a ranking round, decoded in confined processes, without duplicates.",
    headline=("rows/kept", "{:,.0f} pictures"),
    lane="Images",
    has_funnel=True,
    way=FunnelStep(
        "From images to the pool",
        "images",
        first="images generated and taken in",
        last="different, sound images",
        reasons=REASONS,
    ),
)
