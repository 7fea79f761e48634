"""The updates of a round: feedback and pre-training loss together, a moving average, the curve, the choice by it.

Every batch is a function of the seed and the update alone, so a run that goes on from a checkpoint sees what an
uninterrupted one sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stages.engines.generators.denoising import DenoisingBatch, denoising_errors
from stages.engines.generators.generator import Generator
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer
from stages.engines.trainers.training_loop import Curve, Schedule, train
from stages.observe.tracking import Run
from stages.refl.feedback import Feedback, FeedbackBatch
from stages.refl.gradient_norms import GradientNorms
from stages.refl.measurement import Validation
from stages.refl.params import ReflParams, ReflRound
from stages.refl.pretraining import Pretraining

Weights = dict[str, Tensor]
NOTHING = FeedbackBatch((), torch.zeros(0), {})
"""Keeps a rank in step with others that have an image more."""
HELD_OUT = "validation/held_out"


@dataclass
class Learner:
    """Who learns, from what, and how it is seen."""

    generator: Generator
    """Its U-Net is the trainer's."""
    average: Generator
    """With the moving average of the weights: what is measured and saved."""
    feedback: Feedback
    pretraining: Pretraining
    trainer: Trainer
    validation: Validation


class KeptWeights:
    """See `stages.engines.trainers.training_loop.Kept`: the moving average, and the weights that the curve chooses.

    The latter lie in CPU memory, because an average that was measured is gone with the next update.
    """

    def __init__(self, learner: Learner, selection: str) -> None:
        self.learner, self.selection = learner, selection
        self.best = _weights_of(learner.average)

    def save(self, folder: Path, curve: Curve, before: Path | None) -> None:
        """See `Kept`."""
        if chosen_update(curve, self.selection) == curve[-1]["step"]:
            self.best = _weights_of(self.learner.average)
        if self.learner.trainer.rank == 0:
            save_file(_weights_of(self.learner.average), folder / "average.safetensors")
            save_file(self.best, folder / "best.safetensors")

    def load(self, folder: Path) -> None:
        """See `Kept`."""
        use_weights(self.learner.average, load_file(folder / "average.safetensors"))
        self.best = load_file(folder / "best.safetensors")


def climb(
    params: ReflParams, this_round: ReflRound, learner: Learner, checkpoints: Checkpoints, run: Run
) -> tuple[Curve, int, Weights]:
    """Learns for the round's updates; returns the curve, and the chosen update with its weights of the U-Net.

    The curve has a row for each update, and one for update 0, the start. Goes on from the last checkpoint if any.
    """
    kept = KeptWeights(learner, this_round.selection)
    norms = GradientNorms(learner.generator.unet)

    def update(number: int, scale: float) -> dict[str, float]:
        row = _update(params, this_round, learner, norms, number, scale)
        _follow(learner, params.ema_decay)
        return row

    schedule = Schedule(
        steps=this_round.updates,
        warmup_steps=params.warmup_updates,
        final_learning_rate_fraction=params.final_learning_rate_fraction,
        validate_every_steps=params.evaluate_every_updates,
        checkpoint_every_steps=params.checkpoint_every_updates,
    )
    curve = train(
        "refl",
        schedule,
        learner.trainer,
        checkpoints,
        run,
        update,
        validate=lambda: _measured(learner),
        kept=kept,
        first_rows=lambda: [{"step": 0, **_measured(learner)}],
    )
    return curve, chosen_update(curve, this_round.selection), kept.best


def chosen_update(curve: Curve, selection: str) -> int:
    """The update whose weights the round gives: the best held-out score of the curve, the first of equals, or the last.

    The reward has no say in it.
    """
    if selection == "last":
        return int(curve[-1]["step"])
    return int(max((row for row in curve if HELD_OUT in row), key=lambda row: row[HELD_OUT])["step"])


def _update(
    params: ReflParams,
    this_round: ReflRound,
    learner: Learner,
    norms: GradientNorms,
    update: int,
    scale: float,
) -> dict[str, float]:
    pretraining = params.pretraining
    parts: list[Any] = []
    if this_round.reward_weight:
        parts += _parts(learner.feedback, params.batch_images, params, learner.trainer, update)
    parts += _parts(learner.pretraining, pretraining.batch_images, params, learner.trainer, update)

    def loss(outputs: Any, batch: DenoisingBatch | FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        if isinstance(batch, DenoisingBatch):
            norms.listen_for("pretraining")  # the trainer goes back through this part before the next loss
            errors = denoising_errors(learner.generator, outputs, batch, pretraining.weight_cap)
            share = errors.sum() / pretraining.batch_images
            return pretraining.weight * share, {"loss/pretraining": share.detach()}
        norms.listen_for("feedback")
        losses, shown = learner.feedback.losses(outputs, batch)
        share = losses.sum() / params.batch_images
        means = {name: values.sum() / params.batch_images for name, values in shown.items()}
        # The weight is no part of what is shown: curves of rounds with different weights are to be compared.
        return this_round.reward_weight * share, {"loss/feedback": share.detach(), **means}

    done = learner.trainer.update(parts, loss, scale)
    return {
        "loss/total": done.loss,
        "optim/gradient_norm": done.gradient_norm,
        **norms.take(learner.trainer),
        **done.diagnostics,
    }


def _parts(
    source: Feedback | Pretraining, count: int, params: ReflParams, trainer: Trainer, update: int
) -> list[Any]:
    """This rank's micro-batches of the `count` images of an update; as many on every rank, some may be empty."""
    ranks = trainer.world_size
    parts = -(-count // (params.micro_batch_images * ranks)) * ranks  # as many passes on every rank
    places = [list(range(count))[number::parts] for number in range(trainer.rank, parts, ranks)]
    return [source.batch(update, mine) if mine else NOTHING for mine in places]


def _measured(learner: Learner) -> dict[str, float]:
    """A point of the curve, drawn and scored on rank 0."""
    trainer = learner.trainer
    return trainer.broadcast(learner.validation.row(learner.average) if trainer.rank == 0 else None)


@torch.no_grad()
def _follow(learner: Learner, decay: float) -> None:
    average = dict(learner.average.unet.named_parameters())
    # Those that are learned: of the network's own bfloat16 a small step would be rounded away before it is averaged.
    for name, weight in learner.trainer.learned_weights():
        own = average[name.removeprefix("unet.")]
        own.lerp_(weight.to(own.device, torch.float32), 1 - decay)


def _weights_of(generator: Generator) -> Weights:
    return {name: weight.detach().cpu().clone() for name, weight in generator.unet.named_parameters()}


def use_weights(generator: Generator, weights: Mapping[str, Tensor]) -> Generator:
    """`generator` with these weights of the U-Net, in place."""
    with torch.no_grad():
        for name, weight in generator.unet.named_parameters():
            weight.copy_(weights[name])
    return generator
