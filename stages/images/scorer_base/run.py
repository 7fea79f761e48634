"""Connects the `scorer_base` stage: prompts in, a scorer folder, metrics and a curve out."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.training_loop import Curve, best_row
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, require_sha256, write_curves, write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.tables import PROMPT, read_table
from stages.images.engines.image_scorers.scorer import load_scorer, save_scorer
from stages.images.scorer_base.stage import FolderScorer, ReleasedScorer, ScorerBaseParams, TaughtScorer
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Makes the scorer and writes it, metrics last."""
    paths = job.paths
    params: ScorerBaseParams = job.sections["scorer_base"]
    trainer_params: TrainerParams = job.sections["trainer"]
    attempt = job.attempt()
    checkpoints = Checkpoints(attempt.scratch)
    with track(attempt) as run:
        curve: Curve = []
        match chosen("scorer_base", params):
            case TaughtScorer():
                from stages.images.scorer_base.teaching import teach

                curve, best = teach(params, trainer_params, *_prompts(paths, params), job.seed, checkpoints, run)
                scorer = load_scorer(best, "cpu")
            case ReleasedScorer():
                from stages.images.engines.image_scorers.released_weights import released_scorer

                file = Path(params.path)
                # `released_scorer` raises where there is no file.
                if params.sha256 and file.exists():
                    require_sha256(file, params.sha256, "as scorer_base.sha256 has it: take the published file")
                scorer = released_scorer(file, Path(params.tokenizer))
            case FolderScorer():
                scorer = load_scorer(Path(params.path), "cpu")
        # Saved again, not copied: an invalid folder has stopped above, and no other files are included.
        with replace_folder(paths.out) as folder:
            save_scorer(scorer, folder)
        metrics: dict[str, float] = {"scorer/parameters": sum(weight.numel() for weight in scorer.parameters())}
        if curve:
            best_step = best_row(curve)
            metrics |= {name: value for name, value in best_step.items() if name.startswith(("loss/", "caption_"))}
            metrics |= {"progress/steps": len(curve), "progress/best_step": best_step["step"]}
        run.summary(metrics)
        write_curves(paths.curves, curve)
        write_metrics(paths.metrics, metrics, {paths.headline: {"loss": "loss/validation"}})
        checkpoints.clear()


def _prompts(paths: Namespace, params: TaughtScorer) -> tuple[list[str], list[str]]:
    """Returns the captions to learn and those to validate with."""
    prompts = read_table(paths.prompts, PROMPT)
    of_split = {split: rows["prompt"].tolist() for split, rows in prompts.groupby("split")}
    for split in ("train", "validation"):
        if split not in of_split:
            raise UserError(f"{paths.prompts} has no prompts of split {split}: raise their number in t2i_prompts")
    if len(of_split["train"]) < params.batch_captions:
        raise UserError(
            f"scorer_base.batch_captions is {params.batch_captions}, but there are {len(of_split['train'])} prompts "
            "to train on: lower it"
        )
    return of_split["train"], of_split["validation"]
