"""What stage `preferences` runs with, and what others may ask of it."""

from __future__ import annotations

from stages.engines.images.params import RankingRoundParams
from stages.foundations.stage import About, FunnelStep, Stage
from stages.preferences.params import PreferencesParams

STAGE = Stage(
    sections={"seed": int, "preferences": PreferencesParams, "ranking_rounds": dict[str, RankingRoundParams]},
    inputs={
        "annotations": "data/annotations/${key}",
        "earlier": "data/annotations/${item.also}",  # the round's own where no earlier round counts
        "prompts": "data/t2i/prompts.parquet",
    },
    outputs={
        "out": "data/preferences/${key}",
        "dropped": "data/dropped/preferences__${key}.parquet",
        "metrics": "data/metrics/preferences/${key}.json",
        "headline": "data/headline/preferences/${key}.json",
    },
    foreach="ranking_rounds",
)


REASONS = ("gold_task", "unknown_prompt", "annotator_dropped", "rank_contradicts_rating", "all_tied")
"""In the order in which the stage asks."""


ABOUT = About(
    description="Annotators judged, and pairs of images of what the kept ones say, split by prompt.",
    headline=("rows/kept", "{:,.0f} pairs"),
    lane="Annotations",
    has_funnel=True,
    way=FunnelStep(
        "From rankings to preferences",
        "rankings",
        first="rankings accepted",
        last="rankings that give pairs",
        reasons=REASONS,
    ),
)
