"""Runs one round of reinforcement learning: a policy in, the next policy and every rollout out.

    python -m stages.rl_round --params params.yaml --round rl_1 --policy data/policies/sft \\
        --problems data/problems/train.parquet --out data/policies/rl_1 --rollouts data/rollouts/rl_1.parquet \\
        --schedule data/schedules/rl_1 --curves data/curves/rl_round/rl_1.csv \\
        --metrics data/metrics/rl_round/rl_1.json --headline data/headline/rl_round/rl_1.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "rl_round",
        argv,
        __doc__,
        inputs=["policy", "problems"],
        outputs=["out", "rollouts", "schedule", "metrics", "headline", "curves"],
        options=["round"],
    )
    with quick_imports():
        from stages.rl_round.stage import run_rl_round

    run_rl_round(paths)


if __name__ == "__main__":
    run_stage(main)
