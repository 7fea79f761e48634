"""Feedback by a reward model's gradient, and by preferred images. Each kind makes micro-batches and a loss.

`RewardGradient` generates pictures, scores them, and lets the gradient flow back into the denoiser. `PreferredImages`
is Diffusion-DPO on the pairs that the reward model learns from. Both images of a pair get the same noise and the same
timestep, as in the released code.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from stages.engines.trainers.protocol import Ranks
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed, endless_order
from stages.foundations.tables import PAIR, read_table
from stages.images.algorithms.text_to_image_losses import (
    diffusion_preference_loss,
    drawn_with_gradient,
    feedback_loss,
    guess_at,
)
from stages.images.engines.generators.denoising import DenoisingBatch, denoising_batch, denoising_errors, predict
from stages.images.engines.generators.generator import Generator, images_of
from stages.images.engines.image_scorers.scorer import ImageScorer, fit_to_square
from stages.images.engines.pictures.shards import pixels_of, read_images
from stages.images.refl.stage import DraftFeedback, PreferenceFeedback, ReflFeedback, ReflParams

Item = TypeVar("Item")


def in_turn(items: Sequence[Item], place: int, *stream: int | str) -> Item:
    """Returns the item at a place of an endless sequence: all items in a new order after each pass."""
    return items[endless_order(place, place + 1, len(items), *stream)[0]]


@dataclass(frozen=True)
class FeedbackBatch:
    """Images, or pairs of images, that receive feedback."""

    prompts: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    """Inputs of the kind, such as noise to start from."""
    noised: tuple[DenoisingBatch, ...] = ()
    """Given images with their noise; of pairs the better ones, then the worse ones."""
    position: int = 0
    """Position of the step with the gradient, if there is one such step."""

    @property
    def is_empty(self) -> bool:
        return not self.prompts

    def to(self, device: torch.device) -> FeedbackBatch:
        moved = {name: value.to(device) for name, value in self.tensors.items()}
        return replace(self, tensors=moved, noised=tuple(one.to(device) for one in self.noised))


class Feedback(Protocol):
    """One kind of feedback. All its randomness depends only on the seed and the update."""

    figures: Mapping[str, float]
    """Returns metrics of its training data."""

    def batch(self, update: int, positions: Sequence[int]) -> FeedbackBatch:
        """Returns the images of these `positions` of update `update` (from 0)."""

    def outputs(self, generator: Generator, batch: FeedbackBatch) -> Any:
        """Returns the generator's output for a batch: a tensor, or a tuple of tensors. The text encoder is frozen."""

    def to(self, device: torch.device) -> None:
        """Moves its other models to the device, once."""

    def losses(self, outputs: Any, batch: FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of each image, [images], and figures for the curve, each [images]."""

    # A kind that carries nothing from one update to the next inherits these three, which do nothing.
    def prepare(self, update: int, artist: Generator, ranks: Ranks) -> None:
        """Gets ready for update `update` (from 0); `artist` has the averaged weights. Collective."""

    def save(self, folder: Path) -> None:
        """Writes into a checkpoint what it carries to the next update; on rank 0."""

    def load(self, folder: Path) -> None:
        """Reads what `save` has written; on every rank."""


class ByScorer(Feedback):
    """Feedback by a reward model, for the training prompts."""

    def __init__(
        self, params: ReflParams, generator: Generator, scorer: ImageScorer, prompts: Sequence[str], *stream: int | str
    ) -> None:
        self.figures: dict[str, float] = {}
        self.params, self.feedback, self.stream = params, params.feedback, stream
        self.generator, self.scorer, self.prompts = generator, scorer, prompts

    def to(self, device: torch.device) -> None:
        self.scorer.to(device)


class RewardGradient(ByScorer):
    """The reward of pictures that are generated without guidance, for the training prompts in turn."""

    def batch(self, update: int, positions: Sequence[int]) -> FeedbackBatch:
        first, position = update * self.params.batch_images, 0
        prompts = [in_turn(self.prompts, first + one, *self.stream, "prompts") for one in positions]
        if isinstance(self.feedback, ReflFeedback):
            # Each micro-batch of an update has another position, as in ReFL's code. The gradient then averages over the
            # window. The first one has the stream of a recipe with one micro-batch.
            stream = [*self.stream, "position", update, *filter(None, positions[:1])]
            position = random.Random(derive_seed(*stream)).randint(*self.feedback.window)
        noise = self.generator.noise([derive_seed(*self.stream, update, one) for one in positions])
        tensors = {"noise": noise, "token_ids": self.generator.tokenize(prompts)}
        return FeedbackBatch(tuple(prompts), tensors, position=position)

    def outputs(self, generator: Generator, batch: FeedbackBatch) -> Tensor:
        """Returns pictures with a gradient, float[images, 3, side, side]; within 0..1 only if `clamped`."""
        states = generator.encode_tokens(batch.tensors["token_ids"])

        def step(latents: Tensor, timestep: int) -> tuple[Tensor, Tensor]:
            # At guidance 1 the states of the empty prompt are not read, so any will do.
            return generator.step(latents, timestep, states, 1.0, states)

        noise, timesteps = batch.tensors["noise"], generator.timesteps(self.params.sampling_steps)
        match self.feedback:
            case ReflFeedback():
                latents = guess_at(noise, timesteps, batch.position, step)
            case DraftFeedback(gradient_steps=gradient_steps):
                latents = drawn_with_gradient(noise, timesteps, gradient_steps, step)
        pictures = generator.to_images(latents)
        is_clamped = isinstance(self.feedback, ReflFeedback) and self.feedback.clamped
        return pictures.clamp(0, 1) if is_clamped else pictures

    def losses(self, outputs: Tensor, batch: FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        rewards = self.scorer.score(outputs, batch.prompts)
        return feedback_loss(rewards, self.feedback.bound), {"reward/train": rewards.detach()}


class PreferredImages(Feedback):
    """The training pairs of a folder, in turn. The reference is the generator at the time of construction.

    Pairs of an earlier round, whose images are in another pool, are left out and counted. UserError when no pair has
    both its images in the pool.
    """

    def __init__(
        self, params: ReflParams, generator: Generator, preferences: Path, pool: Path, *stream: int | str
    ) -> None:
        assert isinstance(params.feedback, PreferenceFeedback)
        self.params, self.beta, self.stream = params, params.feedback.beta, stream
        self.generator, self.reference = generator, deepcopy(generator.unet).requires_grad_(False)
        frame = read_table(preferences / "pairs.parquet", PAIR)
        frame = frame[frame["split"] == "train"]
        pairs = list(zip(frame["better_image_id"], frame["worse_image_id"], strict=True))
        wanted = {image_id for pair in pairs for image_id in pair}
        self.pictures = {row.image_id: (row.prompt, pixels_of(row.png)) for row in read_images([pool], wanted)}
        self.pairs = [pair for pair in pairs if self.pictures.keys() >= set(pair)]
        if not self.pairs:
            raise UserError(
                f"{pool} has the images of none of the {len(pairs)} training pairs in {preferences}: loosen the rules "
                "of section `preferences`, or run `dvc repro`, which makes both from one pool"
            )
        left_out = len(pairs) - len(self.pairs)
        self.figures = {"rows/in": len(pairs), "rows/kept": len(self.pairs), "dropped/image_missing": left_out}

    def batch(self, update: int, positions: Sequence[int]) -> FeedbackBatch:
        first = update * self.params.batch_images
        pairs = [in_turn(self.pairs, first + one, *self.stream, "pairs") for one in positions]
        # One seed per pair: both images get the same noise and timestep, so that only the images differ.
        seeds = [derive_seed(*self.stream, update, one) for one in positions]
        prompts = [self.pictures[better][0] for better, _ in pairs]
        noised = (
            denoising_batch(self.generator, self._images([pair[side] for pair in pairs]), prompts, seeds)
            for side in (0, 1)
        )
        return FeedbackBatch(tuple(prompts), {}, tuple(noised))

    def _images(self, ids: Sequence[str]) -> Tensor:
        side = self.generator.image_side
        return torch.cat([fit_to_square(images_of(self.pictures[one][1][None]), side) for one in ids])

    def outputs(self, generator: Generator, batch: FeedbackBatch) -> tuple[Tensor, ...]:
        """Returns denoising errors, each [pairs]: of better and worse, then of both by the reference."""
        # The reference may share everything except the U-Net: nothing else learns.
        both = generator, replace(generator, unet=self.reference)
        return tuple(denoising_errors(each, predict(each, one), one, None) for each in both for one in batch.noised)

    def to(self, device: torch.device) -> None:
        self.reference.to(device)

    def losses(self, outputs: tuple[Tensor, ...], batch: FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns also the share of pairs that the generator orders as people do."""
        better, worse, reference_better, reference_worse = outputs
        losses = diffusion_preference_loss(*outputs, self.beta)
        # Right is a pair whose better image was learnt more than the worse one, both relative to the reference.
        is_right = (better - reference_better) < (worse - reference_worse)
        return losses, {"preference/accuracy_train": is_right.float().detach()}
