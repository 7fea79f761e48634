"""Draws a generator's pictures of the prompts.

    python -m stages.generate --params params.yaml --name main --generator data/generators/base \\
        --prompts data/t2i/prompts.parquet --images data/images/generated/round_1/main \\
        --metrics data/metrics/generate/main.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "generate",
        argv,
        __doc__,
        inputs=["generator", "prompts"],
        outputs=["images", "metrics"],
        options=["name"],
    )
    with quick_imports():
        from stages.generate.stage import run_generate

    run_generate(paths)


if __name__ == "__main__":
    run_stage(main)
