"""What the reward did: a round's pictures beside those of its control, from the same noise.

    python -m stages.refl_control --params params.yaml --round refl_1 \\
        --pictures data/images/feedback/refl_1.parquet --control data/images/feedback/control_1.parquet \\
        --metrics data/metrics/refl_control/refl_1.json --headline data/headline/refl_control/refl_1.json

The same updates without a reward move a generator too: what is gained over the start alone proves nothing.
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.refl_control.stage import run_refl_control


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    run_refl_control(
        parse_paths(
            "refl_control",
            argv,
            __doc__,
            inputs=["pictures", "control"],
            outputs=["metrics", "headline"],
            options=["round"],
        )
    )


if __name__ == "__main__":
    run_stage(main)
