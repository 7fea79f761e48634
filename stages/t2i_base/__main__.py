"""Trains the base generator, or takes it from a folder.

    python -m stages.t2i_base --params params.yaml --prompts data/t2i/prompts.parquet \\
        --out data/generators/base --curves data/curves/t2i_base.csv --metrics data/metrics/t2i_base.json \\
        --headline data/headline/t2i_base.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "t2i_base", argv, __doc__, inputs=["prompts"], outputs=["out", "curves", "metrics", "headline"]
    )
    with quick_imports():
        from stages.t2i_base.stage import run_t2i_base

    run_t2i_base(paths)


if __name__ == "__main__":
    run_stage(main)
