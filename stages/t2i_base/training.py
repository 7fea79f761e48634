"""Trains a generator on pictures of the shape world, drawn afresh for every update.

Every batch is a function of the seed and the step alone, so a run that goes on from a checkpoint sees what an
uninterrupted one sees.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence

import numpy
from torch import Tensor

from stages.algorithms.shape_world.renderer import render
from stages.algorithms.shape_world.scenes import SIDE, Scene, scene_of
from stages.engines.generators.denoising import (
    DenoisingBatch,
    denoising_batch,
    denoising_errors,
    denoising_loss,
)
from stages.engines.generators.generator import Generator, images_of
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.engines.trainers.schedules import warmup_then_cosine
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.foundations.seeds import derive_seed, endless_order
from stages.observe.progress import progress, say
from stages.observe.tracking import Run
from stages.t2i_base.params import TrainedGenerator

Curve = list[dict[str, float]]
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
) -> Curve:
    """Trains for `params.steps` updates and returns a row a step; goes on from the last checkpoint if there is one."""
    _require_world(params, [*train, *validation])
    if trainer.world_size > params.batch_images:
        raise UserError(
            f"t2i_base.batch_images {params.batch_images} must be at least the number of ranks, {trainer.world_size}"
        )
    start, curve = _resume(trainer, checkpoints)
    count = params.batch_images
    loss = denoising_loss(generator, count, params.weight_cap)
    held_out = [
        (prompt, derive_seed(seed, "t2i_base", "validation", number))
        for number, prompt in enumerate((validation * params.validation_images)[: params.validation_images])
    ]
    steps = range(start, params.steps)
    for step in progress(steps, total=len(steps), label="t2i_base", unit="steps"):
        chosen = endless_order(step * count, (step + 1) * count, len(train), seed, "t2i_base")
        examples = [
            (train[index], derive_seed(seed, "t2i_base", step, place)) for place, index in enumerate(chosen)
        ]
        with run.phase("render"):
            batches = [
                _batch(part, params.empty_prompt_fraction, generator)
                for part in _parts(examples, params.micro_batch_images, trainer)
            ]
        with run.phase("train"):
            scale = warmup_then_cosine(
                step, params.steps, params.warmup_steps, params.final_learning_rate_fraction
            )
            update = trainer.update(batches, loss, scale)
        done = step + 1
        row = {"step": done, "loss/train": update.loss, "optim/gradient_norm": update.gradient_norm}
        if done % params.validate_every_steps == 0 or done == params.steps:
            with run.phase("validate"):
                row["loss/validation"] = _mean_error(held_out, params, generator, trainer)
        curve.append(row)
        run.log({name: value for name, value in row.items() if name != "step"}, step=done)
        if done % params.checkpoint_every_steps == 0 and done < params.steps:
            with run.phase("checkpoint"):
                _save(trainer, checkpoints, done, curve)
    return curve


def _require_world(params: TrainedGenerator, prompts: Sequence[str]) -> None:
    if foreign := [prompt for prompt in prompts if scene_of(prompt) is None]:
        raise UserError(
            f"t2i_base.kind train draws pictures of the shape world, which has no {foreign[0]!r}: set "
            "t2i_prompts.kind: shapes, or t2i_base.kind: folder"
        )
    if params.sizes.image_side != SIDE:
        raise UserError(f"t2i_base.sizes.image_side must be {SIDE}, the side of the shape world's pictures")


def _batch(examples: Sequence[Example], empty_fraction: float, generator: Generator) -> DenoisingBatch:
    """The examples with pictures, noise and timesteps, each from its own seed; a share of them without its prompt."""
    scenes: list[Scene] = [scene for prompt, _ in examples if (scene := scene_of(prompt))]
    pictures = numpy.stack(
        [
            render(scene, derive_seed(seed, "picture"))
            for scene, (_, seed) in zip(scenes, examples, strict=True)
        ]
    )
    shown = ["" if random.Random(seed).random() < empty_fraction else prompt for prompt, seed in examples]
    return denoising_batch(generator, images_of(pictures), shown, [seed for _, seed in examples])


def _parts(examples: Sequence[Example], micro_batch_images: int, trainer: Trainer) -> list[Sequence[Example]]:
    """This rank's micro-batches: as many on every rank, none of them empty."""
    ranks = trainer.world_size
    most = math.ceil(len(examples) / micro_batch_images)
    parts = min(math.ceil(most / ranks) * ranks, len(examples) // ranks * ranks)
    return [examples[number::parts] for number in range(trainer.rank, parts, ranks)]


def _mean_error(
    examples: Sequence[Example], params: TrainedGenerator, generator: Generator, trainer: Trainer
) -> float:
    """Mean weighted error of the examples, all of them on each rank: every rank must ask as often."""
    total = 0.0
    for first in range(0, len(examples), params.micro_batch_images):
        part = examples[first : first + params.micro_batch_images]
        batch = _batch(part, 0.0, generator).to(trainer.device)
        predicted = trainer.evaluate(batch)
        total += float(denoising_errors(generator, predicted, batch, params.weight_cap).sum())
    return total / len(examples)


def _save(trainer: Trainer, checkpoints: Checkpoints, step: int, curve: Curve) -> None:
    with replace_folder_together(trainer, checkpoints.folder(step)) as folder:
        trainer.save_checkpoint(folder)
        if trainer.rank == 0:
            write_json(folder / "curve.json", curve)
    if trainer.rank == 0:
        checkpoints.keep_last()


def _resume(trainer: Trainer, checkpoints: Checkpoints) -> tuple[int, Curve]:
    found = checkpoints.latest()
    if found is None:
        return 0, []
    step, folder = found
    say(f"t2i_base: going on from step {step}")
    trainer.load_checkpoint(folder)
    return step, json.loads((folder / "curve.json").read_text(encoding="utf-8"))
