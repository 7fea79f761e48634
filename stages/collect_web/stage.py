"""What stage `collect_web` runs with, and what others may ask of it."""

from __future__ import annotations

from stages.collect_web.params import CollectWebParams
from stages.foundations.stage import About, FunnelStep, Stage

STAGE = Stage(
    sections={"seed": int, "collect_web": CollectWebParams},
    outputs={
        "pages": "data/web/pages.parquet",
        "dropped": "data/dropped/collect_web.parquet",
        "metrics": "data/metrics/collect_web.json",
        "headline": "data/headline/collect_web.json",
    },
)


ABOUT = About(
    description="Web pages and documents that hold worked solutions.",
    headline=("rows/kept", "{:,.0f} pages"),
    raw=lambda params: list((params.get("collect_web") or {}).get("sources", {}).values()),
    sources="collect_web.sources",
    file_kinds=("jsonl", "warc"),
    lane="Web solutions",
    has_funnel=True,
    way=FunnelStep("From pages to trusted problems", "pages", first="pages collected"),
    tables={"web/pages": "Pages as they came, with worked exercises somewhere in them."},
)
