"""Wires the `t2i_base` stage: prompts in, generator, metrics and curve out."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch

from stages.engines.generators.generator import Generator, load_generator, new_generator, save_generator
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.training_loop import VALIDATION, best_row
from stages.foundations.files import replace_folder
from stages.foundations.job import Job
from stages.foundations.metrics import write_curves, write_metrics
from stages.foundations.params import chosen
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import PROMPT, read_table
from stages.observe.tracking import Run, track
from stages.t2i_base.stage import FolderGenerator, T2iBaseParams, TrainedGenerator


def main(job: Job) -> None:
    """Trains the generator or takes it from a folder, and writes the outputs, metrics last."""
    paths = job.paths
    params: T2iBaseParams = job.sections["t2i_base"]
    trainer_params: TrainerParams = job.sections["trainer"]
    seed = job.seed
    attempt = job.attempt(policy=paths.out.name)
    with track(attempt) as run:
        match chosen("t2i_base", params):
            case FolderGenerator():
                if os.environ.get("RANK", "0") == "0":  # torchrun starts several of us, and one can copy
                    generator = load_generator(Path(params.path), torch.device("cpu"))
                    with replace_folder(paths.out) as folder:
                        save_generator(generator, folder)
                    _write(paths, [], _sizes(generator), run)
            case TrainedGenerator():
                from stages.engines.generators.denoising import trained_denoiser
                from stages.engines.trainers.build import build_trainer
                from stages.engines.trainers.checkpoints import Checkpoints
                from stages.engines.trainers.protocol import replace_folder_together
                from stages.t2i_base.training import train_generator

                frame = read_table(paths.prompts, PROMPT)
                train, validation = (
                    frame["prompt"][frame["split"] == split].tolist() for split in ("train", "validation")
                )
                generator = new_generator(params.sizes, train, derive_seed(seed, "t2i_base", "weights"))
                model = trained_denoiser(generator)
                trainer = build_trainer(trainer_params, params.optimizer, params.max_gradient_norm, model)
                checkpoints = Checkpoints(attempt.scratch)
                curve, best = train_generator(params, seed, train, validation, generator, trainer, checkpoints, run)
                # A copy and no move: until the metrics are written, the checkpoint is all that a killed run has.
                with replace_folder_together(trainer, paths.out) as folder:
                    if trainer.rank == 0:
                        shutil.copytree(best, folder, dirs_exist_ok=True)
                if trainer.rank == 0:
                    _write(paths, curve, {**_sizes(generator), **_losses(curve)}, run)
                    checkpoints.clear()
                trainer.close()


def _sizes(generator: Generator) -> dict[str, float]:
    parts = {"unet": generator.unet, "text_encoder": generator.text_encoder}
    counts = {name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()}
    return {**{f"parameters/{name}": count for name, count in counts.items()}, "image/side": generator.image_side}


def _losses(curve: Sequence[dict[str, float]]) -> dict[str, float]:
    return {
        "loss/train_last": curve[-1]["loss/train"],
        "loss/validation_last": curve[-1][VALIDATION],
        "loss/validation_best": best_row(curve)[VALIDATION],
        "progress/steps": len(curve),
    }


def _write(paths: Namespace, curve: Sequence[dict[str, float]], metrics: dict[str, float], run: Run) -> None:
    run.summary(metrics)
    write_curves(paths.curves, curve)
    write_metrics(paths.metrics, metrics, {paths.headline: {"loss": "loss/validation_last"}})
