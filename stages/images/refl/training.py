"""Trains a round of reward feedback: feedback and pre-training loss, a moving average, the curve, and the choice by it.

Every batch depends only on the seed and the update, so a resumed run sees the same batches as an uninterrupted one.
The images of the pre-training loss come from elsewhere: the trained generator made none of them. `GradientNorms`
measures each part's gradient beside that of the sum, because Adam hides the weight of a loss: the ratio of the two
gradients decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Ranks, Trainer
from stages.engines.trainers.training_loop import Curve, Schedule, train
from stages.foundations.errors import UserError
from stages.foundations.params import chosen
from stages.foundations.seeds import derive_seed
from stages.images.engines.generators.denoising import DenoisingBatch, denoising_batch, denoising_errors
from stages.images.engines.generators.generator import Generator, images_of
from stages.images.refl.feedback import Feedback, FeedbackBatch, in_turn
from stages.images.refl.measurement import Validation
from stages.images.refl.stage import PretrainingParams, ReflParams, ReflRound, ShapeWorldImages, ShardImages
from stages.observe.tracking import Run

Weights = dict[str, Tensor]
NOTHING = FeedbackBatch((), {})
"""Keeps a rank in step with others that have one image more."""
HELD_OUT = "validation/held_out"


@dataclass
class Learner:
    """The trained generator, its sources of learning, and its measurement."""

    generator: Generator
    """Its U-Net is the trainer's."""
    average: Generator
    """With the moving average of the weights: it is measured and saved."""
    feedback: Feedback
    pretraining: Pretraining
    trainer: Trainer
    validation: Validation


def train_with_feedback(
    params: ReflParams, this_round: ReflRound, learner: Learner, checkpoints: Checkpoints, run: Run
) -> tuple[Curve, int, Weights]:
    """Trains for the round's updates; returns the curve, the chosen update and its weights of the U-Net.

    The curve has a row for each update, and one for update 0, the start. Resumes from the last checkpoint, if any.
    """
    kept = KeptWeights(learner, this_round.selection)
    norms = GradientNorms(learner.generator.unet)
    average = dict(learner.average.unet.named_parameters())

    @torch.no_grad()
    def follow(decay: float) -> None:
        # The trained weights in float32: in bfloat16 a small step would be rounded away before it is averaged.
        for name, weight in learner.trainer.learned_weights():
            followed = average[name.removeprefix("unet.")]
            followed.lerp_(weight.to(followed.device, torch.float32), 1 - decay)

    def update(number: int, scale: float) -> dict[str, float]:
        # A control has no feedback at all.
        if this_round.reward_weight:
            learner.feedback.prepare(number, learner.average, learner.trainer)
        row = _update(params, this_round, learner, norms, number, scale)
        follow(decay_of(params, number))
        return row

    def validate() -> dict[str, float]:
        # Generated and scored on rank 0 alone.
        trainer = learner.trainer
        return trainer.broadcast(learner.validation.row(learner.average) if trainer.rank == 0 else None)

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
        validate,
        kept,
        # The start is a point of the curve, and may be chosen.
        first_rows=lambda: [{"step": 0, **validate()}],
    )
    return curve, chosen_update(curve, this_round.selection), kept.best


def chosen_update(curve: Curve, selection: str) -> int:
    """Returns the update whose weights the round outputs: the first with the best held-out score, or the last.

    The reward does not influence the choice.
    """
    if selection == "last":
        return int(curve[-1]["step"])
    return int(max((row for row in curve if HELD_OUT in row), key=lambda row: row[HELD_OUT])["step"])


def _update(
    params: ReflParams, this_round: ReflRound, learner: Learner, norms: GradientNorms, update: int, scale: float
) -> dict[str, float]:
    pretraining = params.pretraining
    parts: list[Any] = []
    # A control has no feedback at all, instead of one of weight 0: that would cost as much and show a gradient.
    if this_round.reward_weight:
        parts += _parts(learner.feedback, params.batch_images, params, learner.trainer, update)
    parts += _parts(learner.pretraining, pretraining.batch_images, params, learner.trainer, update)

    def loss(outputs: Any, batch: DenoisingBatch | FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        if isinstance(batch, DenoisingBatch):
            # The trainer runs the backward pass of this part before it requests the next loss.
            norms.part = "pretraining"
            errors = denoising_errors(learner.generator, outputs, batch, pretraining.weight_cap)
            share = errors.sum() / pretraining.batch_images
            return pretraining.weight * share, {"loss/pretraining": share.detach()}
        norms.part = "feedback"
        losses, shown = learner.feedback.losses(outputs, batch)
        share = losses.sum() / params.batch_images
        means = {name: values.sum() / params.batch_images for name, values in shown.items()}
        # The shown value excludes the weight: curves of rounds with different weights should be comparable.
        return this_round.reward_weight * share, {"loss/feedback": share.detach(), **means}

    done = learner.trainer.update(parts, loss, scale)
    return {
        "loss/total": done.loss,
        "optim/gradient_norm": done.gradient_norm,
        **norms.take(learner.trainer),
        **done.diagnostics,
    }


def _parts(source: Feedback | Pretraining, count: int, params: ReflParams, trainer: Trainer, update: int) -> list[Any]:
    """This rank's micro-batches of the `count` images of an update; every rank has as many, some may be empty."""
    ranks = trainer.world_size
    # Rounded up to a multiple of the ranks, so that all take part in the same number of passes.
    parts = -(-count // (params.micro_batch_images * ranks)) * ranks
    # Assigned in turn, so that parts differ by one image at most.
    places = [list(range(count))[number::parts] for number in range(trainer.rank, parts, ranks)]
    return [source.batch(update, mine) if mine else NOTHING for mine in places]


class KeptWeights:
    """Additional contents of checkpoints: the moving average, and the weights that the curve chooses.

    The latter are in CPU memory, because the next update overwrites a measured average.
    """

    def __init__(self, learner: Learner, selection: str) -> None:
        self.learner, self.selection = learner, selection
        self.best = _weights_of(learner.average)

    def save(self, folder: Path, curve: Curve, before: Path | None) -> None:
        # Saved at every validation: the last row is the choice whenever it is the best so far.
        if chosen_update(curve, self.selection) == curve[-1]["step"]:
            self.best = _weights_of(self.learner.average)
        if self.learner.trainer.rank == 0:
            save_file(_weights_of(self.learner.average), folder / "average.safetensors")
            save_file(self.best, folder / "best.safetensors")
            self.learner.feedback.save(folder)

    def load(self, folder: Path) -> None:
        self.learner.average.unet.load_state_dict(load_file(folder / "average.safetensors"))
        self.best = load_file(folder / "best.safetensors")
        self.learner.feedback.load(folder)


def decay_of(params: ReflParams, update: int) -> float:
    """Returns the decay of the moving average after update `update` (from 0)."""
    if not params.ema_ramp:
        return params.ema_decay
    # diffusers' `EMAModel` takes the first weights as they are.
    return min(params.ema_decay, (1 + update) / (10 + update)) if update else 0.0


def _weights_of(generator: Generator) -> Weights:
    return {name: weight.detach().cpu().clone() for name, weight in generator.unet.named_parameters()}


class GradientNorms:
    """Observes the gradients of a network. Holds a copy of them for each part, until `take`."""

    def __init__(self, network: nn.Module) -> None:
        self.part = ""
        """The part to which gradients from now on belong."""
        self._sums: dict[str, dict[str, Tensor]] = {}
        learnt = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        self._names = list(learnt)
        for name, weight in learnt.items():
            weight.register_hook(self._listener(name))

    def _listener(self, name: str) -> Callable[[Tensor], None]:
        def listen(gradient: Tensor) -> None:
            held = self._sums.setdefault(self.part, {})
            held[name] = held[name] + gradient if name in held else gradient.detach().clone()

        return listen

    def take(self, ranks: Ranks) -> dict[str, float]:
        """`optim/gradient_norm_<part>` of all ranks' batch since the last call, before clipping; collective."""
        # A rank with one image less has zeros for a part or none: it still has to take part in every sum.
        parts = sorted({part for heard in ranks.gather([*self._sums]) for part in heard if part})
        norms = {f"optim/gradient_norm_{part}": self._norm(part, ranks) for part in parts}
        self._sums = {}
        return norms

    def _norm(self, part: str, ranks: Ranks) -> float:
        squares = []
        for name in self._names:
            heard = [sums[name] for sums in self._sums.values() if name in sums]
            if not heard:
                # No part has a gradient for it, on any rank.
                continue
            mine = self._sums.get(part, {}).get(name, torch.zeros_like(heard[0]))
            # The backward pass of each of several ranks uses its share of the loss times their number.
            whole = ranks.sum_over_ranks(mine.float() / ranks.world_size)
            squares.append(whole.square().sum())
        return float(torch.stack(squares).sum().sqrt())


class Pretraining:
    """The batches of the pre-training loss, each depending only on the stream and the update."""

    def __init__(
        self, params: PretrainingParams, generator: Generator, prompts: Sequence[str], *stream: int | str
    ) -> None:
        self.params, self.generator, self.stream = params, generator, stream
        match chosen("refl.pretraining.images", params.images):
            case ShapeWorldImages():
                self.image_at = _rendered_scenes(prompts, *stream)
            case ShardImages(path=path):
                self.image_at = _stored_images(Path(path), generator.image_side, *stream)

    def batch(self, update: int, positions: Sequence[int]) -> DenoisingBatch:
        """Returns the images of these positions of update `update` (from 0), some without their prompt."""
        first = update * self.params.batch_images
        images, prompts = zip(*(self.image_at(first + one) for one in positions), strict=True)
        drawn = [random.Random(derive_seed(*self.stream, "empty", update, one)).random() for one in positions]
        shown = [
            "" if one < self.params.empty_prompt_fraction else prompt
            for one, prompt in zip(drawn, prompts, strict=True)
        ]
        seeds = [derive_seed(*self.stream, "pretraining", update, one) for one in positions]
        return denoising_batch(self.generator, torch.cat(images), shown, seeds)


ImageAt = Callable[[int], tuple[Tensor, str]]
"""For each place of an endless sequence: the image, float[1, 3, side, side] in 0..1, and its prompt."""


def _rendered_scenes(prompts: Sequence[str], *stream: int | str) -> ImageAt:
    """Renders of the training prompts, another picture each time a prompt is repeated."""
    from stages.images.algorithms.shape_world import render, scene_of

    scenes = {prompt: scene_of(prompt) for prompt in prompts}
    if foreign := [prompt for prompt, scene in scenes.items() if scene is None]:
        raise UserError(
            f"refl.pretraining.images.kind is shape_world, but that world has no prompt {foreign[0]!r}: set "
            "kind shards and a folder of images"
        )

    def image_at(place: int) -> tuple[Tensor, str]:
        prompt = in_turn(prompts, place, *stream, "rendered")
        return images_of(render(scenes[prompt], derive_seed(*stream, "render", place))[None]), prompt

    return image_at


def _stored_images(folder: Path, side: int, *stream: int | str) -> ImageAt:
    """The images of a folder of shards, resized to the generator's size."""
    from stages.images.engines.image_scorers.scorer import fit_to_square
    from stages.images.engines.pictures.shards import pixels_of, read_shards

    rows = [(row.prompt, row.png) for shard in read_shards(folder) for row in shard.itertuples()]
    if not rows:
        raise UserError(f"refl.pretraining.images.path {folder} has no images: give a folder that has some")

    def image_at(place: int) -> tuple[Tensor, str]:
        prompt, png = in_turn(rows, place, *stream, "stored")
        return fit_to_square(images_of(pixels_of(png)[None]), side), prompt

    return image_at
