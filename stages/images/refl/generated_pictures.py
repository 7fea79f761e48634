"""Feedback without a gradient through the reward model: it chooses or weighs pictures that the generator has drawn.

ImageReward (arXiv 2304.05977, section 4) compares ReFL with these three. Each trains with the pre-training loss.
- Dataset filtering: the best share of the start's pictures (after Wu et al., arXiv 2303.14420).
- Reward-weighted: all of the start's pictures, each loss times its reward (Lee et al., arXiv 2302.12192).
- RAFT: the best of each prompt, drawn anew in every round (Dong et al., arXiv 2304.06767, algorithm 1).

Deviations:
1. A reward model's output has no bounds, so the weights are the rewards scaled to 0..1 over the drawn pictures.
2. Wu et al. also train on the rejected pictures, with a mark in the prompt. Here they are left out.
3. The moving average of the weights draws, because each rank has it whole. With `ema_decay: 0` these are the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stages.engines.trainers.protocol import Ranks
from stages.foundations.seeds import derive_seed
from stages.images.algorithms.text_to_image_losses import best_of_each, best_share, scaled_rewards
from stages.images.engines.generators.denoising import denoising_batch, denoising_errors, predict
from stages.images.engines.generators.generator import Generator, images_of
from stages.images.refl.feedback import ByScorer, FeedbackBatch, in_turn
from stages.images.refl.measurement import Draws, scores_by
from stages.images.refl.stage import DatasetFiltering, RaftFeedback

PICTURES = "generated.safetensors"
"""In a checkpoint: the pictures of its round."""


class GeneratedPictures(ByScorer):
    """The kept pictures of a round, in turn. `prepare` draws them; a checkpoint holds them."""

    held: Mapping[str, Tensor] = MappingProxyType({})

    def prepare(self, update: int, artist: Generator, ranks: Ranks) -> None:
        """Draws, scores and selects the pictures of the update's round, unless it has them."""
        number, _ = self.feedback.place_in_round(update)
        if self.held and int(self.held["round"]) == number:
            return
        prompts, copies = self.feedback.prompts, self.feedback.pictures_per_prompt
        known, count, first = range(len(self.prompts)), prompts * copies, number * prompts
        shown = [in_turn(known, first + one // copies, *self.stream, "prompts") for one in range(count)]
        side, shares = self.generator.image_side, -(-count // ranks.world_size)
        pictures, rewards = numpy.empty((count, side, side, 3), numpy.uint8), numpy.empty(count)
        # Each rank draws its share, so that none waits longer than another draws. Equal shares: the rest begins again.
        mine = [(ranks.rank + turn * ranks.world_size) % count for turn in range(shares)]
        texts, at_once = tuple(self.prompts[shown[one]] for one in mine), self.params.measurement.draw_images
        seeds = tuple(derive_seed(*self.stream, "generated", number, one) for one in mine)
        drawn = Draws(texts, seeds, self.params.sampling_steps, 1.0, at_once).of(artist)
        scores = scores_by(self.scorer, "reward", drawn, texts, at_once)
        for theirs, *of_rank in ranks.gather((mine, drawn, scores)):
            pictures[theirs], rewards[theirs] = of_rank
        weights = self._weights(torch.from_numpy(rewards).view(prompts, copies)).flatten()
        kept = weights > 0
        self.held = {
            "round": torch.tensor(number),
            "pictures": torch.from_numpy(pictures)[kept],
            "prompts": torch.tensor(shown)[kept],
            "weights": weights[kept].float(),
            "rewards": torch.from_numpy(rewards)[kept].float(),
            "mean": torch.tensor(rewards.mean(), dtype=torch.float32),
        }

    def _weights(self, rewards: Tensor) -> Tensor:
        if isinstance(self.feedback, RaftFeedback):
            return best_of_each(rewards)
        if isinstance(self.feedback, DatasetFiltering):
            return best_share(rewards.flatten(), self.feedback.top_share)
        return scaled_rewards(rewards.flatten())

    def batch(self, update: int, positions: Sequence[int]) -> FeedbackBatch:
        number, place = self.feedback.place_in_round(update)
        first, count = place * self.params.batch_images, len(self.held["weights"])
        chosen = [in_turn(range(count), first + one, *self.stream, "kept", number) for one in positions]
        pictures, weights, rewards = (self.held[name][chosen] for name in ("pictures", "weights", "rewards"))
        prompts = [self.prompts[place] for place in self.held["prompts"][chosen].tolist()]
        seeds = [derive_seed(*self.stream, "denoised", update, one) for one in positions]
        noised = denoising_batch(self.generator, images_of(pictures.numpy()), prompts, seeds)
        tensors = {"weights": weights, "rewards": rewards, "mean": self.held["mean"].expand(len(chosen))}
        return FeedbackBatch(tuple(prompts), tensors, (noised,))

    def outputs(self, generator: Generator, batch: FeedbackBatch) -> Tensor:
        return predict(generator, *batch.noised)

    def losses(self, outputs: Tensor, batch: FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns each picture's weighted pre-training loss, its reward, and the mean reward of all drawn pictures."""
        errors = denoising_errors(self.generator, outputs, *batch.noised, self.params.pretraining.weight_cap)
        shown = {"reward/train": batch.tensors["rewards"], "reward/generated": batch.tensors["mean"]}
        return errors * batch.tensors["weights"], shown

    def save(self, folder: Path) -> None:
        # A round without a reward has no pictures.
        if self.held:
            save_file(self.held, folder / PICTURES)

    def load(self, folder: Path) -> None:
        if (folder / PICTURES).exists():
            self.held = load_file(folder / PICTURES)
