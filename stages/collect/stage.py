"""What stage `collect` runs with, and what others may ask of it."""

from __future__ import annotations

from stages.collect.params import SourceParams
from stages.foundations.stage import About, Stage

STAGE = Stage(
    sections={"sources": dict[str, SourceParams]},
    outputs={
        "problems": "data/problems/collected/${key}.parquet",
        "dropped": "data/dropped/collect__${key}.parquet",
        "metrics": "data/metrics/collect/${key}.json",
        "headline": "data/headline/collect/${key}.json",
    },
    foreach="sources",
)


ABOUT = About(
    description="One source of problems.",
    headline=("rows/kept", "{:,.0f} problems"),
    raw=lambda params: [own.get("from") for name, own in params.items() if name.startswith("sources.")],
    sources="sources",
    lane="Problems",
    has_funnel=True,
    tables={"problems/collected/*": "Problems of one source, as upstream has them."},
)
