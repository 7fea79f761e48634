"""What others may ask of stage `extract_web`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, FunnelStep


def _sections() -> dict[str, Any]:
    from stages.extract_web.params import ExtractWebParams

    return {"extract_web": ExtractWebParams}


ABOUT = About(
    sections=_sections,
    lane="Web solutions",
    has_funnel=True,
    way=FunnelStep("From pages to trusted problems", "pages"),
    tables={"web/candidates": "Exercises found on the pages; nothing is checked yet."},
)
