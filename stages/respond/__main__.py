"""Samples a policy's responses to the benchmark problems; grading them is another stage, which needs no GPU.

    python -m stages.respond --params params.yaml --name sft --policy data/policies/sft \\
        --validation data/problems/validation.parquet --benchmarks data/problems/benchmarks.parquet \\
        --responses data/responses/sft.parquet --metrics data/metrics/respond/sft.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "respond",
        argv,
        __doc__,
        inputs=["policy", "validation", "benchmarks"],
        outputs=["responses", "metrics"],
        options=["name"],
    )
    with quick_imports():
        from stages.respond.stage import run_respond

    run_respond(paths)


if __name__ == "__main__":
    run_stage(main)
