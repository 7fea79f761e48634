"""Feedback by preferred images: Diffusion-DPO on the pairs that the reward model learns from.

Both images of a pair get the same noise and the same timestep, as in the released code.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import numpy
import pandas
import torch
from torch import Tensor

from stages.algorithms.reward_feedback import diffusion_preference_loss
from stages.engines.generators.denoising import DenoisingBatch, denoising_batch, denoising_errors, predict
from stages.engines.generators.generator import Generator, images_of
from stages.engines.image_scorers.scorer import fit_to_square
from stages.engines.images.shards import pixels_of, read_shards
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed, endless_order
from stages.foundations.tables.pair import PAIR
from stages.foundations.tables.table import read_table
from stages.refl.feedback import FeedbackBatch
from stages.refl.params import PreferenceFeedback

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
        self.figures = {
            "rows/in": len(pairs) + left_out,
            "rows/kept": len(pairs),
            "dropped/image_missing": left_out,
        }
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
        own = [
            denoising_errors(generator, predict(generator, one, states), one, None) for one in (better, worse)
        ]
        with torch.no_grad():
            frozen = generator.with_unet(self.reference)
            theirs = [
                denoising_errors(frozen, predict(frozen, one, states), one, None) for one in (better, worse)
            ]
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
        row.image_id: (row.prompt, pixels_of(row.png))
        for rows in read_shards(pool)
        for row in _rows(rows, wanted)
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
