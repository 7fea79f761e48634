"""Scores the pictures of held-out prompts by every scorer, and compares each with people's preferences.

    python -m stages.reward_evaluation --params params.yaml --round round_1 \\
        --start data/image_scorers/base --before data/image_scorers/round_1 --scorer data/image_scorers/round_1 \\
        --pairs data/preferences/round_1 --pool data/images/pool/round_1 \\
        --earlier-pool data/images/pool/round_1 --scores data/image_scores/round_1.parquet \\
        --metrics data/metrics/reward_evaluation/round_1.json --headline data/headline/reward_evaluation/round_1.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "reward_evaluation",
        argv,
        __doc__,
        inputs=["start", "before", "scorer", "pairs", "pool", "earlier_pool"],
        outputs=["scores", "metrics", "headline"],
        options=["round"],
    )
    # without `quick_imports`, which hides scipy: the truth and the comparisons need it
    from stages.reward_evaluation.stage import run_reward_evaluation

    run_reward_evaluation(paths)


if __name__ == "__main__":
    run_stage(main)
