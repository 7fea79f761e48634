"""Curates the collected problems.

    python -m stages.curate --params params.yaml --collected data/problems/collected \\
        --train data/problems/train.parquet --validation data/problems/validation.parquet \\
        --benchmarks data/problems/benchmarks.parquet --contamination data/problems/contamination.parquet \\
        --duplicates data/problems/duplicates.parquet --transforms data/problems/transforms.parquet \\
        --difficulty data/problems/difficulty.parquet \\
        --dropped data/dropped/curate.parquet --metrics data/metrics/curate.json \\
        --headline data/headline/curate.json
"""

from __future__ import annotations

from stages.curate.stage import run_curate
from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    tables = ["train", "validation", "benchmarks", "contamination", "duplicates", "transforms", "difficulty"]
    run_curate(
        parse_paths(
            "curate", argv, __doc__, inputs=["collected"], outputs=[*tables, "dropped", "metrics", "headline"]
        )
    )


if __name__ == "__main__":
    run_stage(main)
