"""The base generator: trained on pictures of the shape world, rendered anew for every update, or taken from a folder.

Every batch depends only on the seed and the step, so a resumed run sees the same batches as an uninterrupted one.
"""

from __future__ import annotations

import math
import os
import random
import shutil
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from torch import Tensor

from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.engines.trainers.training_loop import VALIDATION, Curve, Schedule, best_row, train_and_keep_best
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, write_curves, write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.seeds import derive_seed, endless_order
from stages.foundations.tables import PROMPT, read_table
from stages.images.algorithms.shape_world import SIDE, Scene, render, scene_of
from stages.images.engines.generators.denoising import (
    DenoisingBatch,
    denoising_batch,
    denoising_errors,
    denoising_loss,
    trained_denoiser,
)
from stages.images.engines.generators.generator import (
    Generator,
    images_of,
    load_generator,
    new_generator,
    save_generator,
)
from stages.images.t2i_base.stage import FolderGenerator, T2iBaseParams, TrainedGenerator
from stages.observe.tracking import Run, track


def main(job: Job) -> None:
    """Trains the generator or takes it from a folder, and writes the outputs, metrics last."""
    paths = job.paths
    params: T2iBaseParams = job.sections["t2i_base"]
    trainer_params: TrainerParams = job.sections["trainer"]
    attempt = job.attempt(policy=paths.out.name)
    with track(attempt) as run:
        match chosen("t2i_base", params):
            case FolderGenerator():
                # torchrun starts several processes, and one is enough to copy.
                if os.environ.get("RANK", "0") == "0":
                    generator = load_generator(Path(params.path), torch.device("cpu"))
                    with replace_folder(paths.out) as folder:
                        save_generator(generator, folder)
                    _write(paths, generator, [], run)
            case TrainedGenerator():
                frame = read_table(paths.prompts, PROMPT)
                train, validation = (
                    frame["prompt"][frame["split"] == split].tolist() for split in ("train", "validation")
                )
                generator = new_generator(params.sizes, train, derive_seed(job.seed, "t2i_base", "weights"))
                model = trained_denoiser(generator)
                trainer = build_trainer(trainer_params, params.optimizer, params.max_gradient_norm, model)
                checkpoints = Checkpoints(attempt.scratch)
                curve, best = train_generator(params, job.seed, train, validation, generator, trainer, checkpoints, run)
                # A copy instead of a move: until the metrics are written, a killed run has only the checkpoint.
                with replace_folder_together(trainer, paths.out) as folder:
                    if trainer.rank == 0:
                        shutil.copytree(best, folder, dirs_exist_ok=True)
                if trainer.rank == 0:
                    _write(paths, generator, curve, run)
                    checkpoints.clear()
                trainer.close()


def _write(paths: Namespace, generator: Generator, curve: Curve, run: Run) -> None:
    parts = {"unet": generator.unet, "text_encoder": generator.text_encoder}
    counts = {name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()}
    metrics: dict[str, float] = {f"parameters/{name}": count for name, count in counts.items()}
    metrics["image/side"] = generator.image_side
    if curve:
        metrics |= {
            "loss/train_last": curve[-1]["loss/train"],
            "loss/validation_last": curve[-1][VALIDATION],
            "loss/validation_best": best_row(curve)[VALIDATION],
            "progress/steps": len(curve),
        }
    run.summary(metrics)
    write_curves(paths.curves, curve)
    write_metrics(paths.metrics, metrics, {paths.headline: {"loss": "loss/validation_last"}})


Example = tuple[str, int]
"""A prompt and the seed of its picture, its noise and its timestep."""


def train_generator(
    params: TrainedGenerator,
    seed: int,
    train: Sequence[str],
    validation: Sequence[str],
    generator: Generator,
    trainer: Trainer[DenoisingBatch, Tensor],
    checkpoints: Checkpoints,
    run: Run,
) -> tuple[Curve, Path]:
    """Trains for `params.steps` updates; returns rows, and the folder of the generator with the lowest validation loss.

    Resumes from the last checkpoint if there is one; the folder is valid until the checkpoints are cleared.
    """
    if foreign := [prompt for prompt in (*train, *validation) if scene_of(prompt) is None]:
        raise UserError(
            f"t2i_base.kind train draws pictures of the shape world, which has no {foreign[0]!r}: set "
            "t2i_prompts.kind: shapes, or t2i_base.kind: folder"
        )
    # Checked here and not in the section, which does not import the shape world.
    if params.sizes.image_side != SIDE:
        raise UserError(f"t2i_base.sizes.image_side must be {SIDE}, the side of the shape world's pictures")
    # A rank without a picture cannot take part, and every rank must take part in every update.
    if trainer.world_size > params.batch_images:
        raise UserError(
            f"t2i_base.batch_images {params.batch_images} must be at least the number of ranks, {trainer.world_size}"
        )
    count = params.batch_images
    loss = denoising_loss(generator, count, params.weight_cap)
    held_out = [
        (prompt, derive_seed(seed, "t2i_base", "validation", number))
        # Prompts in turn, repeatedly: a repeated prompt has another picture and noise.
        for number, prompt in enumerate((validation * params.validation_images)[: params.validation_images])
    ]

    def update(step: int, scale: float) -> dict[str, float]:
        order = endless_order(step * count, (step + 1) * count, len(train), seed, "t2i_base")
        examples = [(train[index], derive_seed(seed, "t2i_base", step, place)) for place, index in enumerate(order)]
        parts = _parts(examples, params.micro_batch_images, trainer)
        batches = [_batch(part, params.empty_prompt_fraction, generator) for part in parts]
        done = trainer.update(batches, loss, scale)
        return {"loss/train": done.loss, "optim/gradient_norm": done.gradient_norm}

    def validate() -> dict[str, float]:
        return {VALIDATION: _mean_error(held_out, params, generator, trainer)}

    return train_and_keep_best("t2i_base", Schedule.of(params), trainer, checkpoints, run, update, validate)


def _batch(examples: Sequence[Example], empty_fraction: float, generator: Generator) -> DenoisingBatch:
    """The examples with pictures, noise and timesteps, each from its seed; a share of them without its prompt."""
    scenes: list[Scene] = [scene for prompt, _ in examples if (scene := scene_of(prompt))]
    pictures = numpy.stack(
        [render(scene, derive_seed(seed, "picture")) for scene, (_, seed) in zip(scenes, examples, strict=True)]
    )
    # Without its prompt, so that the generator learns the empty prompt, which guidance moves away from.
    shown = ["" if random.Random(seed).random() < empty_fraction else prompt for prompt, seed in examples]
    return denoising_batch(generator, images_of(pictures), shown, [seed for _, seed in examples])


def _parts(examples: Sequence[Example], micro_batch_images: int, trainer: Trainer) -> list[Sequence[Example]]:
    """Returns this rank's micro-batches: as many on every rank, none of them empty."""
    ranks = trainer.world_size
    most = math.ceil(len(examples) / micro_batch_images)
    # A multiple of the ranks, so that all take part in the same number of passes; and few enough that none is empty.
    parts = min(math.ceil(most / ranks) * ranks, len(examples) // ranks * ranks)
    # Assigned in turn, so that no two parts differ by more than one picture.
    return [examples[number::parts] for number in range(trainer.rank, parts, ranks)]


def _mean_error(examples: Sequence[Example], params: TrainedGenerator, generator: Generator, trainer: Trainer) -> float:
    """Mean weighted error of the examples, all of them on each rank: every rank must evaluate as often."""
    total = 0.0
    for first in range(0, len(examples), params.micro_batch_images):
        part = examples[first : first + params.micro_batch_images]
        # All with their prompts: validation measures generation from prompts.
        batch = _batch(part, 0.0, generator).to(trainer.device)
        predicted = trainer.evaluate(batch)
        total += float(denoising_errors(generator, predicted, batch, params.weight_cap).sum())
    return total / len(examples)
