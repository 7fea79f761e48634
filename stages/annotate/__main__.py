"""Takes in what is said of a round's images: by people, or by a simulated panel.

    python -m stages.annotate --params params.yaml --round round_1 --pool data/images/pool/round_1 \\
        --prompts data/t2i/prompts.parquet --out data/annotations/round_1 \\
        --dropped data/dropped/annotate__round_1.parquet --metrics data/metrics/annotate/round_1.json \\
        --headline data/headline/annotate/round_1.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "annotate",
        argv,
        __doc__,
        inputs=["pool", "prompts"],
        outputs=["out", "dropped", "metrics", "headline"],
        options=["round"],
    )
    from stages.annotate.stage import run_annotate

    run_annotate(paths)


if __name__ == "__main__":
    run_stage(main)
