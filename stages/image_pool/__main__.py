"""Takes in the images that a round ranks.

    python -m stages.image_pool --params params.yaml --round round_1 --generated data/images/generated/round_1 \\
        --prompts data/t2i/prompts.parquet --pool data/images/pool/round_1 \\
        --dropped data/dropped/image_pool__round_1.parquet --metrics data/metrics/image_pool/round_1.json \\
        --headline data/headline/image_pool/round_1.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "image_pool",
        argv,
        __doc__,
        inputs=["generated", "prompts"],
        outputs=["pool", "dropped", "metrics", "headline"],
        options=["round"],
    )
    from stages.image_pool.stage import run_image_pool

    run_image_pool(paths)


if __name__ == "__main__":
    run_stage(main)
