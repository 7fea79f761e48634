"""Fine-tunes the base policy on demonstrations.

    python -m stages.sft --params params.yaml --policy data/policies/base \\
        --train data/demonstrations/train.parquet --validation data/demonstrations/validation.parquet \\
        --out data/policies/sft --metrics data/metrics/sft.json --curves data/curves/sft.csv \\
        --dropped data/dropped/sft.parquet --headline data/headline/sft.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "sft",
        argv,
        __doc__,
        inputs=["policy", "train", "validation"],
        outputs=["out", "metrics", "headline", "curves", "dropped"],
    )
    with quick_imports():
        from stages.sft.stage import run_sft

    run_sft(paths)


if __name__ == "__main__":
    run_stage(main)
