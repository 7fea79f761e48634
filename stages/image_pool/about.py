"""What others may ask of stage `image_pool`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, FunnelStep

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
"""In the order in which the stage asks."""


def _sections() -> dict[str, Any]:
    from stages.engines.images.params import ImageParams, RankingRoundParams

    return {"images": ImageParams, "ranking_rounds": dict[str, RankingRoundParams]}


ABOUT = About(
    headline=("rows/kept", "{:,.0f} pictures"),
    sections=_sections,
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
