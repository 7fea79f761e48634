"""The effect of the reward: a round's pictures minus those of an equally long control without it, paired by noise."""

from __future__ import annotations

from stages.algorithms.estimators import paired_bootstrap
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.tables import FEEDBACK_IMAGE, QUANTITIES, read_table
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Writes `gain_over_control/<quantity>/mean` with its 95% interval; UserError without pictures of equal noise."""
    paths = job.paths
    with track(job.attempt(round=job.item)) as run:
        pictures, control = (
            read_table(path, FEEDBACK_IMAGE).drop(columns=["png_before", "png_after"])
            for path in (paths.pictures, paths.control)
        )
        # Prompt and seed are what two pictures from the same noise share.
        both = pictures.merge(control, on=["prompt_id", "seed"], suffixes=("", "_control"), validate="one_to_one")
        if not len(both) == len(pictures) == len(control):
            raise UserError(
                f"of {len(pictures)} pictures of the round and {len(control)} of its control, {len(both)} are from the "
                "same noise: give both rounds the same refl.measurement and prompts"
            )
        metrics: dict[str, float] = {"rows/pairs": len(both), "rows/prompts": both["prompt_id"].nunique()}
        for name in QUANTITIES:
            of_control, of_round = both[f"{name}_after_control"], both[f"{name}_after"]
            # The truth of these prompts is not known.
            if of_round.isna().any():
                continue
            # Whole prompts are resampled: pictures of one prompt are not independent.
            gained = paired_bootstrap(of_control, of_round, both["prompt_id"])
            told = zip(("mean", "low", "high"), gained, strict=True)
            metrics |= {f"gain_over_control/{name}/{quantity}": value for quantity, value in told}
        run.summary(metrics)
        judge = "truth" if "gain_over_control/truth/mean" in metrics else "held_out"
        shown = {"score": "mean", "low": "low", "high": "high"}
        headline = {word: f"gain_over_control/{judge}/{name}" for word, name in shown.items()}
        write_metrics(paths.metrics, metrics, {paths.headline: headline})
