"""Judges the annotators of a round and makes pairs of images of what the kept ones say.

    python -m stages.preferences --params params.yaml --annotations data/annotations/round_1 \\
        --earlier data/annotations/round_1 --prompts data/t2i/prompts.parquet --out data/preferences/round_1 \\
        --dropped data/dropped/preferences__round_1.parquet --metrics data/metrics/preferences/round_1.json \\
        --headline data/headline/preferences/round_1.json

`--earlier` are the annotations of an earlier round that count as well; the round's own where there are none.
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "preferences",
        argv,
        __doc__,
        inputs=["annotations", "earlier", "prompts"],
        outputs=["out", "dropped", "metrics", "headline"],
    )
    from stages.preferences.stage import run_preferences

    run_preferences(paths)


if __name__ == "__main__":
    run_stage(main)
