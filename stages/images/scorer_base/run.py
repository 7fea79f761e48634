"""Connects the `scorer_base` stage: prompts in, a scorer folder, metrics and a curve out."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path

from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.training_loop import Curve, best_row
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, sha256_of, write_curves, write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.tables import PROMPT, read_table
from stages.images.engines.image_scorers.scorer import load_scorer, save_scorer
from stages.images.scorer_base.stage import FolderScorer, ReleasedScorer, ScorerBaseParams, TaughtScorer
from stages.observe.tracking import Run, track


def main(job: Job) -> None:
    """Makes the scorer and writes it, metrics last."""
    paths = job.paths
    params: ScorerBaseParams = job.sections["scorer_base"]
    trainer_params: TrainerParams = job.sections["trainer"]
    seed = job.seed
    attempt = job.attempt()
    checkpoints = Checkpoints(attempt.scratch)
    with track(attempt) as run:
        match chosen("scorer_base", params):
            case TaughtScorer():
                from stages.images.scorer_base.teaching import teach

                prompts = _prompts(paths, params)
                curve, best = teach(params, trainer_params, *prompts, seed, checkpoints, run)
                # A copy instead of a move: until the metrics are written, a killed run has only the checkpoint.
                with replace_folder(paths.out) as folder:
                    shutil.copytree(best, folder, dirs_exist_ok=True)
            case ReleasedScorer():
                from stages.images.engines.image_scorers.released_weights import released_scorer

                curve = []
                file = Path(params.path)
                # `released_scorer` raises where there is no file.
                if params.sha256 and file.exists() and (sha256 := sha256_of(file)) != params.sha256:
                    raise UserError(
                        f"{file} has sha256 {sha256}, scorer_base.sha256 is {params.sha256}: take the file that was "
                        "published, or correct the hash"
                    )
                with replace_folder(paths.out) as folder:
                    save_scorer(released_scorer(file, Path(params.tokenizer)), folder)
            # Loaded and saved again, not copied: an invalid folder stops here, and no other files are included.
            case FolderScorer():
                curve = []
                scorer = load_scorer(Path(params.path), "cpu")
                with replace_folder(paths.out) as folder:
                    save_scorer(scorer, folder)
        _write(paths, curve, run)
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


def _write(paths: Namespace, curve: Curve, run: Run) -> None:
    scorer = load_scorer(paths.out, "cpu")
    metrics: dict[str, float] = {"scorer/parameters": sum(weight.numel() for weight in scorer.parameters())}
    if curve:
        best = best_row(curve)
        metrics |= {name: value for name, value in best.items() if name.startswith(("loss/", "caption_"))}
        metrics |= {"progress/steps": len(curve), "progress/best_step": best["step"]}
    run.summary(metrics)
    write_curves(paths.curves, curve)
    write_metrics(paths.metrics, metrics, {paths.headline: {"loss": "loss/validation"}})
