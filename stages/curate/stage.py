"""What stage `curate` runs with, and what others may ask of it."""

from __future__ import annotations

from stages.curate.params import CurateParams, SourceRole
from stages.engines.verifier.params import VerifierParams
from stages.foundations.stage import About, Sections, Stage

STAGE = Stage(
    sections={"seed": int, "verifier": VerifierParams, "sources": dict[str, SourceRole], "curate": CurateParams},
    inputs={"collected": "data/problems/collected"},
    outputs={
        "train": "data/problems/train.parquet",
        "validation": "data/problems/validation.parquet",
        "benchmarks": "data/problems/benchmarks.parquet",
        "contamination": "data/problems/contamination.parquet",
        "duplicates": "data/problems/duplicates.parquet",
        "transforms": "data/problems/transforms.parquet",
        "difficulty": "data/problems/difficulty.parquet",
        "dropped": "data/dropped/curate.parquet",
        "metrics": "data/metrics/curate.json",
        "headline": "data/headline/curate.json",
    },
)


def _contradictions(sections: Sections) -> list[str]:
    sources = sections.get("sources", {}).values()
    if any(source.role == "benchmark" for source in sources):
        return []
    return ["sources: none has role `benchmark`, so nothing could be measured"]


ABOUT = About(
    description="Gradable, deduplicated, decontaminated problems, split into train, validation and benchmarks.",
    headline=("rows/kept", "{:,.0f} problems"),
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
