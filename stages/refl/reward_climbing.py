"""Feedback by a reward model: pictures are drawn, scored, and the gradient goes back into the denoiser."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from stages.algorithms.reward_feedback import drawn_with_gradient, feedback_loss, guess_at
from stages.engines.generators.generator import Generator
from stages.engines.image_scorers.scorer import ImageScorer
from stages.engines.image_scorers.scorer_folders import load_scorer
from stages.foundations.seeds import derive_seed
from stages.refl.feedback import FeedbackBatch, UpdatePrompts
from stages.refl.params import DraftFeedback, ReflFeedback


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
            return generator.step(
                latents, timestep, states, 1.0, states
            )  # at guidance 1 the last is not read

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
