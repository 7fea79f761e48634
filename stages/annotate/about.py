"""What others may ask of stage `annotate`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, FunnelStep, Sections

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


def _sections() -> dict[str, Any]:
    from stages.annotate.params import AnnotateParams

    return {"annotate": AnnotateParams}


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
    headline=("rows/kept", "{:,.0f} annotations"),
    sections=_sections,
    contradictions=_contradictions,
    lane="Annotations",
    has_funnel=True,
    way=FunnelStep("From annotations to preferences", "rankings", first="annotations given", reasons=REASONS),
)
