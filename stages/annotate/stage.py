"""What stage `annotate` runs with, and what others may ask of it."""

from __future__ import annotations

from stages.annotate.params import AnnotateParams
from stages.engines.images.params import RankingRoundParams
from stages.foundations.stage import About, FunnelStep, Sections, Stage

STAGE = Stage(
    sections={"seed": int, "annotate": AnnotateParams, "ranking_rounds": dict[str, RankingRoundParams]},
    inputs={"pool": "data/images/pool/${key}", "prompts": "data/t2i/prompts.parquet"},
    outputs={
        "out": "data/annotations/${key}",
        "dropped": "data/dropped/annotate__${key}.parquet",
        "metrics": "data/metrics/annotate/${key}.json",
        "headline": "data/headline/annotate/${key}.json",
    },
    foreach="ranking_rounds",
)


REASONS = (
    "malformed_row",
    "draft",
    "cancelled",
    "unknown_prompt",
    "unknown_annotator",
    "unknown_image",
    "one_image_only",
    "image_in_two_slots",
    "rank_missing",
    "rank_out_of_range",
    "rating_not_a_number",
    "rating_out_of_range",
    "unknown_issue",
    "weight_out_of_range",
    "seconds_out_of_range",
    "duplicate_annotation",
)
"""In the order in which the stage asks."""


def _contradictions(sections: Sections) -> list[str]:
    is_panel = sections["annotate"].kind == "panel"
    return [
        f"ranking_rounds.{name}.annotations must be null with annotate.kind panel"
        if is_panel
        else f"ranking_rounds.{name}.annotations is null, annotate.kind {sections['annotate'].kind} needs a file"
        for name, own in sections["ranking_rounds"].items()
        if (own.annotations is None) != is_panel
    ]


ABOUT = About(
    description="What people, or a simulated panel, say of a round's images, checked.",
    headline=("rows/kept", "{:,.0f} annotations"),
    contradictions=_contradictions,
    lane="Annotations",
    has_funnel=True,
    way=FunnelStep("From annotations to preferences", "rankings", first="annotations given", reasons=REASONS),
)
