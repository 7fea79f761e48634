"""Makes supervised data out of trusted web solutions, given solutions and rejection-sampled responses.

    python -m stages.demonstrate --params params.yaml --problems data/problems/train.parquet \\
        --web data/web --policy data/policies/base \\
        --train data/demonstrations/train.parquet --validation data/demonstrations/validation.parquet \\
        --dropped data/dropped/demonstrate.parquet --metrics data/metrics/demonstrate.json \\
        --headline data/headline/demonstrate.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "demonstrate",
        argv,
        __doc__,
        inputs=["problems", "web", "policy"],
        outputs=["train", "validation", "dropped", "metrics", "headline"],
    )
    from stages.demonstrate.stage import run_demonstrate

    run_demonstrate(paths)


if __name__ == "__main__":
    run_stage(main)
