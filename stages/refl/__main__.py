"""Trains a generator by a reward model, or by preferred images, and measures it by what it did not climb.

    python -m stages.refl --params params.yaml --round refl_1 --generator data/generators/base \\
        --prompts data/t2i/prompts.parquet --scorer data/image_scorers/round_1 \\
        --held-out data/image_scorers/base --pairs data/preferences/round_1 --pool data/images/pool/round_1 \\
        --out data/generators/refl_1 --pictures data/images/feedback/refl_1.parquet \\
        --metrics data/metrics/refl/refl_1.json --curves data/curves/refl/refl_1.csv \\
        --headline data/headline/refl/refl_1.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "refl",
        argv,
        __doc__,
        inputs=["generator", "prompts", "scorer", "held_out", "pairs", "pool"],
        outputs=["out", "pictures", "metrics", "headline", "curves"],
        options=["round"],
    )
    with quick_imports():
        from stages.refl.stage import run_refl

    run_refl(paths)


if __name__ == "__main__":
    run_stage(main)
