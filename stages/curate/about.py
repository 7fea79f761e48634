"""What others may ask of stage `curate`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, Sections


def _sections() -> dict[str, Any]:
    from stages.curate.params import CurateParams

    return {"curate": CurateParams}


def _contradictions(sections: Sections) -> list[str]:
    sources = sections.get("sources", {}).values()
    if any(source.role == "benchmark" for source in sources):
        return []
    return ["sources: none has role `benchmark`, so nothing could be measured"]


ABOUT = About(
    headline=("rows/kept", "{:,.0f} problems"),
    sections=_sections,
    contradictions=_contradictions,
    lane="Problems",
    has_funnel=True,
    tables={
        "problems/train": "Problems to learn from: gradable, no duplicates, none of a benchmark.",
        "problems/validation": "Problems set aside to watch training with.",
        "problems/benchmarks": "Problems that policies are measured on, never trained on.",
        "problems/transforms": "Questions rewritten so that their answer is an integer, with the way back.",
        "problems/difficulty": "Pass rates that were measured elsewhere.",
    },
    contamination="problems/contamination",
)
