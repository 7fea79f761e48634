"""Makes the scorer that reward models start from: taught captions of the shape world, released weights, or a folder.

    python -m stages.scorer_base --params params.yaml --prompts data/t2i/prompts.parquet \\
        --out data/image_scorers/base --curves data/curves/scorer_base.csv --metrics data/metrics/scorer_base.json \\
        --headline data/headline/scorer_base.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "scorer_base", argv, __doc__, inputs=["prompts"], outputs=["out", "curves", "metrics", "headline"]
    )
    with quick_imports():
        from stages.scorer_base.stage import run_scorer_base

    run_scorer_base(paths)


if __name__ == "__main__":
    run_stage(main)
