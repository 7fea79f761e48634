"""The two kinds of feedback: a reward model's gradient, and preferred images. Each makes micro-batches and a loss.

`RewardClimbing` draws pictures, scores them, and lets the gradient flow back into the denoiser. `PreferenceLearning` is
Diffusion-DPO on the pairs that the reward model learns from; both images of a pair get the same noise and the same
timestep, as in the released code.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy
import pandas
import torch
from torch import Tensor

from stages.algorithms.text_to_image_losses import (
    diffusion_preference_loss,
    drawn_with_gradient,
    feedback_loss,
    guess_at,
)
from stages.engines.generators.denoising import DenoisingBatch, denoising_batch, denoising_errors, predict
from stages.engines.generators.generator import Generator, images_of
from stages.engines.image_scorers.scorer import ImageScorer, fit_to_square, load_scorer
from stages.engines.images.shards import pixels_of, read_shards
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed, endless_order
from stages.foundations.tables import PAIR, read_table
from stages.refl.params import DraftFeedback, PreferenceFeedback, ReflFeedback


@dataclass(frozen=True)
class FeedbackBatch:
    """Images, or pairs of images, that feedback is given on."""

    prompts: tuple[str, ...]
    token_ids: Tensor
    """[images, tokens]."""
    tensors: Mapping[str, Tensor]
    """What the kind needs besides: noise to draw from, latents of pairs."""
    position: int = 0
    """Of the draw's step that has the gradient, where there is one such."""

    @property
    def is_empty(self) -> bool:
        """True when it has no image."""
        return not self.prompts

    def to(self, device: torch.device) -> FeedbackBatch:
        """The same batch on `device`."""
        moved = {name: value.to(device) for name, value in self.tensors.items()}
        return replace(self, token_ids=self.token_ids.to(device), tensors=moved)


class Feedback(Protocol):
    """One kind of feedback. Everything random in it is a function of the seed and the update."""

    figures: Mapping[str, float]
    """Metrics of what it learns from."""

    def batch(self, update: int, positions: Sequence[int]) -> FeedbackBatch:
        """The images of these `positions` of update `update` (from 0)."""

    def outputs(self, generator: Generator, batch: FeedbackBatch) -> Any:
        """What the generator makes of a batch: a tensor, or a tuple of tensors."""

    def to(self, device: torch.device) -> None:
        """Moves what it holds besides the generator, once."""

    def losses(self, outputs: Any, batch: FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each image, [images], and figures for the curve, each [images]."""


class UpdatePrompts:
    """Training prompts in a new order each time all were had."""

    def __init__(self, prompts: Sequence[str], batch_images: int, seed: int, stream: str) -> None:
        self.prompts, self.batch_images, self.seed, self.stream = prompts, batch_images, seed, stream

    def at(self, update: int, positions: Sequence[int]) -> list[str]:
        """The prompts of these positions of an update."""
        places = [update * self.batch_images + position for position in positions]
        return [
            self.prompts[endless_order(place, place + 1, len(self.prompts), self.seed, self.stream, "prompts")[0]]
            for place in places
        ]

    def seeds(self, update: int, positions: Sequence[int]) -> list[int]:
        """A seed for each of these positions of an update."""
        return [derive_seed(self.seed, self.stream, update, position) for position in positions]


class RewardClimbing:
    """See `stages.refl.feedback.Feedback`. Pictures are drawn without guidance."""

    def __init__(
        self,
        params: ReflFeedback | DraftFeedback,
        sampling_steps: int,
        generator: Generator,
        scorer: ImageScorer,
        prompts: UpdatePrompts,
    ) -> None:
        self.figures: dict[str, float] = {}
        self.params, self.prompts, self.scorer = params, prompts, scorer
        self.sampling_steps, self.generator = sampling_steps, generator

    def batch(self, update: int, positions: Sequence[int]) -> FeedbackBatch:
        """Noise and prompts; the position of the gradient is one for the whole update, as in ReFL's code."""
        prompts, position = self.prompts.at(update, positions), 0
        if isinstance(self.params, ReflFeedback):
            stream = random.Random(derive_seed(self.prompts.seed, self.prompts.stream, "position", update))
            position = stream.randint(*self.params.window)
        noise = self.generator.noise(self.prompts.seeds(update, positions))
        token_ids = self.generator.tokenize(prompts)
        return FeedbackBatch(tuple(prompts), token_ids, {"noise": noise}, position)

    def outputs(self, generator: Generator, batch: FeedbackBatch) -> Tensor:
        """Pictures with a gradient, float[images, 3, side, side], values outside of 0..1 kept."""
        with torch.no_grad():
            states = generator.encode_tokens(batch.token_ids)

        def step(latents: Tensor, timestep: int) -> tuple[Tensor, Tensor]:
            return generator.step(latents, timestep, states, 1.0, states)  # at guidance 1 the last is not read

        noise, timesteps = batch.tensors["noise"], generator.timesteps(self.sampling_steps)
        match self.params:
            case ReflFeedback():
                latents = guess_at(noise, timesteps, batch.position, step)
            case DraftFeedback(gradient_steps=gradient_steps):
                latents = drawn_with_gradient(noise, timesteps, gradient_steps, step)
        return generator.to_images(latents)

    def to(self, device: torch.device) -> None:
        """Moves the scorer."""
        self.scorer.to(device)

    def losses(self, outputs: Tensor, batch: FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """`feedback_loss` of the reward."""
        rewards = self.scorer.score(outputs, batch.prompts)
        return feedback_loss(rewards, self.params.bound), {"reward/train": rewards.detach()}


def reward_climbing(
    params: ReflFeedback | DraftFeedback,
    sampling_steps: int,
    generator: Generator,
    reward_model: Path,
    prompts: UpdatePrompts,
) -> RewardClimbing:
    """The feedback of the reward model in a folder."""
    scorer = load_scorer(reward_model, generator.device)
    return RewardClimbing(params, sampling_steps, generator, scorer, prompts)


Picture = tuple[str, numpy.ndarray]
"""Prompt and pixels."""


class PreferenceLearning:
    """See `stages.refl.feedback.Feedback`. The reference is the generator as it is when this is made."""

    def __init__(
        self,
        params: PreferenceFeedback,
        generator: Generator,
        pairs: Sequence[tuple[str, str]],
        pictures: dict[str, Picture],
        batch_images: int,
        seed: int,
        stream: str,
        left_out: int,
    ) -> None:
        self.figures = {"rows/in": len(pairs) + left_out, "rows/kept": len(pairs), "dropped/image_missing": left_out}
        self.params, self.pairs, self.pictures = params, pairs, pictures
        self.batch_images, self.seed, self.stream = batch_images, seed, stream
        self.generator, self.reference = generator, deepcopy(generator.unet).requires_grad_(False)

    def batch(self, update: int, positions: Sequence[int]) -> FeedbackBatch:
        """Pairs in a new order each time all were had."""
        pairs = [
            self.pairs[endless_order(place, place + 1, len(self.pairs), self.seed, self.stream, "pairs")[0]]
            for place in (update * self.batch_images + position for position in positions)
        ]
        # One seed a pair: both images get the same noise and timestep, so that what differs is the images.
        seeds = [derive_seed(self.seed, self.stream, update, position) for position in positions]
        prompts = [self.pictures[better][0] for better, _ in pairs]
        better, worse = (
            denoising_batch(self.generator, self._images([pair[side] for pair in pairs]), prompts, seeds)
            for side in (0, 1)
        )
        tensors = {
            "better": better.latents,
            "worse": worse.latents,
            "noise": better.noise,
            "timesteps": better.timesteps,
        }
        return FeedbackBatch(tuple(prompts), better.token_ids, tensors)

    def _images(self, ids: Sequence[str]) -> Tensor:
        side = self.generator.image_side
        return torch.cat([fit_to_square(images_of(self.pictures[one][1][None]), side) for one in ids])

    def outputs(self, generator: Generator, batch: FeedbackBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Denoising errors, each [pairs]: of better and worse, then of both by the reference."""
        with torch.no_grad():
            states = generator.encode_tokens(batch.token_ids)
        better, worse = (self._side(batch, side) for side in ("better", "worse"))
        own = [denoising_errors(generator, predict(generator, one, states), one, None) for one in (better, worse)]
        with torch.no_grad():
            frozen = generator.with_unet(self.reference)
            theirs = [denoising_errors(frozen, predict(frozen, one, states), one, None) for one in (better, worse)]
        return own[0], own[1], theirs[0], theirs[1]

    def _side(self, batch: FeedbackBatch, side: str) -> DenoisingBatch:
        held = batch.tensors
        return DenoisingBatch(held[side], held["noise"], held["timesteps"], batch.token_ids)

    def to(self, device: torch.device) -> None:
        """Moves the reference."""
        self.reference.to(device)

    def losses(
        self, outputs: tuple[Tensor, Tensor, Tensor, Tensor], batch: FeedbackBatch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`diffusion_preference_loss`, and the share of pairs that the generator leans to as people do."""
        better, worse, reference_better, reference_worse = outputs
        losses = diffusion_preference_loss(*outputs, self.params.beta)
        leans = (better - reference_better) < (worse - reference_worse)
        return losses, {"preference/accuracy_train": leans.float().detach()}


def preference_learning(
    params: PreferenceFeedback,
    generator: Generator,
    preferences: Path,
    pool: Path,
    batch_images: int,
    seed: int,
    stream: str,
) -> PreferenceLearning:
    """The feedback of the training pairs in a folder; UserError when none has both its images in the pool.

    Pairs of an earlier round, whose images lie in another pool, are left out and counted.
    """
    frame = read_table(preferences / "pairs.parquet", PAIR)
    frame = frame[frame["split"] == "train"]
    pairs = list(zip(frame["better_image_id"], frame["worse_image_id"], strict=True))
    wanted = {image_id for pair in pairs for image_id in pair}
    pictures = {
        row.image_id: (row.prompt, pixels_of(row.png)) for rows in read_shards(pool) for row in _rows(rows, wanted)
    }
    there = [pair for pair in pairs if pictures.keys() >= set(pair)]
    if not there:
        raise UserError(
            f"of {len(pairs)} training pairs in {preferences} no images lie in {pool}: loosen the rules of section "
            "`preferences`, or run `dvc repro`, which makes both of one pool"
        )
    left_out = len(pairs) - len(there)
    return PreferenceLearning(params, generator, there, pictures, batch_images, seed, stream, left_out)


def _rows(rows: pandas.DataFrame, wanted: set[str]) -> list:
    return list(rows[rows["image_id"].isin(wanted)].itertuples())
