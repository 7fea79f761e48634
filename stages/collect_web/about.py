"""What others may ask of stage `collect_web`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, FunnelStep


def _sections() -> dict[str, Any]:
    from stages.collect_web.params import CollectWebParams

    return {"collect_web": CollectWebParams}


ABOUT = About(
    headline=("rows/kept", "{:,.0f} pages"),
    sections=_sections,
    raw=lambda params: list((params.get("collect_web") or {}).get("sources", {}).values()),
    sources="collect_web.sources",
    file_kinds=("jsonl", "warc"),
    lane="Web solutions",
    has_funnel=True,
    way=FunnelStep("From pages to trusted problems", "pages", first="pages collected"),
    tables={"web/pages": "Pages as they came, with worked exercises somewhere in them."},
)
