"""What others may ask of stage `collect`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About


def _sections() -> dict[str, Any]:
    from stages.collect.params import SourceParams

    return {"sources": dict[str, SourceParams]}


ABOUT = About(
    headline=("rows/kept", "{:,.0f} problems"),
    sections=_sections,
    raw=lambda params: [own.get("from") for name, own in params.items() if name.startswith("sources.")],
    sources="sources",
    lane="Problems",
    has_funnel=True,
    tables={"problems/collected/*": "Problems of one source, as upstream has them."},
)
