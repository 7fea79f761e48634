"""Trains the reward model of one ranking round: the base scorer learns the round's preferences.

    python -m stages.reward_model --params params.yaml --round round_1 --scorer data/image_scorers/base \\
        --pairs data/preferences/round_1 --pool data/images/pool/round_1 \\
        --earlier-pool data/images/pool/round_1 --out data/image_scorers/round_1 \\
        --curves data/curves/reward_model/round_1.csv --metrics data/metrics/reward_model/round_1.json \\
        --headline data/headline/reward_model/round_1.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "reward_model",
        argv,
        __doc__,
        inputs=["scorer", "pairs", "pool", "earlier_pool"],
        outputs=["out", "curves", "metrics", "headline"],
        options=["round"],
    )
    with quick_imports():
        from stages.reward_model.stage import run_reward_model

    run_reward_model(paths)


if __name__ == "__main__":
    run_stage(main)
