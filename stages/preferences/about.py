"""What others may ask of stage `preferences`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, FunnelStep

REASONS = ("gold_task", "unknown_prompt", "annotator_dropped", "rank_contradicts_rating", "all_tied")
"""In the order in which the stage asks."""


def _sections() -> dict[str, Any]:
    from stages.preferences.params import PreferencesParams

    return {"preferences": PreferencesParams}


ABOUT = About(
    headline=("rows/kept", "{:,.0f} pairs"),
    sections=_sections,
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
