"""Losses for text to image: of two encoders, of a reward model, and of a generator that learns from a reward or from
preferred images.

Sources: BLIP (arXiv 2201.12086, section 3.2), image-text contrastive and image-text matching loss; captions with one
word changed as further columns of the contrast: Yuksekgonul et al. (arXiv 2210.01936, NegCLIP). ImageReward (arXiv
2304.05977, equation 1); `train/src/ImageReward.py` at c1392c6d writes the same loss as a two-way cross entropy. ReFL,
ImageReward (algorithm 1 and equation 3; `ImageReward/ReFL.py` at 1beb4e4); DRaFT-K, Clark et al. (arXiv 2309.17400,
section 4); Diffusion-DPO, Wallace et al. (arXiv 2311.12908, equation 14; `train.py` at 5a28b05).

Deviations:
1. No momentum encoder and no queue (BLIP): the negatives are the captions of the batch and the changed captions.
2. The caller gives the negatives for matching; they are not sampled by the contrastive score.
3. A step is called with the value of its timestep. ReFL.py gives the denoiser the step's index instead, and the
   scheduler the timestep of the step before.
4. ReFL and DRaFT-K share one rule: `bound` may cut the reward of either, and ReFL takes the gradient through one step.
5. The preference loss is per pair, before any mean (a mean inside the log sigmoid would weigh pairs by their batch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
import torch
from jaxtyping import Float, Real
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid


# --------------------------------------------------------------------------- encoders of pictures and captions
def contrastive_loss(
    images: Float[Tensor, "images width"], texts: Float[Tensor, "texts width"], temperature: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Averages both directions' cross entropy of unit vectors; image i belongs to text i, further texts to no image.

    Where all vectors are equal the loss is half of log(texts) + log(images).
    """
    similarity = images @ texts.T / temperature
    # Image i belongs to text i; texts beyond the number of images are negatives for all of them.
    partner = torch.arange(len(images), device=images.device)
    return (cross_entropy(similarity, partner) + cross_entropy(similarity[:, : len(images)].T, partner)) / 2


def matching_loss(logits: Float[Tensor, "images captions 2"]) -> Float[Tensor, ""]:
    """Cross entropy of match or no match. Only the first caption of each image is its true caption.

    The true caption weighs as much as all the others together. The loss is log 2 where the logits are equal.
    """
    logprobs = logits.log_softmax(-1)
    # Two means, so that the one match weighs as much as all the mismatches.
    return -(logprobs[:, 0, 1].mean() + logprobs[:, 1:, 0].mean()) / 2


# -------------------------------------------------------------------------------------------- the reward model
def pairwise_ranking_loss(
    better: Float[Tensor, " pairs"], worse: Float[Tensor, " pairs"], weights: Float[Tensor, " pairs"] | None = None
) -> Float[Tensor, ""]:
    """Averages -log sigmoid(better - worse) over pairs, with the scores of the preferred and the other image.

    weights: of the pairs in that mean; None is 1 for each. The loss is log 2 for equal scores. Without pairs it is 0
    with a zero gradient. It is finite for any finite difference.
    """
    # softplus(-d) is -log sigmoid(d), finite for any difference.
    losses = torch.nn.functional.softplus(worse - better)
    if weights is None:
        return losses.sum() / max(len(better), 1)
    total = float(weights.sum())
    # Weights that are all 0 give a loss of 0, not 0/0.
    return (losses * weights).sum() / (total or 1.0)


def pairs_from_ranking(ranks: Sequence[float] | Real[Tensor, " items"]) -> list[tuple[int, int]]:
    """Returns (better index, worse index) of all pairs whose ranks differ, sorted; rank 1 is best, ties give none."""
    values = numpy.asarray(ranks)
    return [(better, worse) for better, worse in numpy.argwhere(values[:, None] < values).tolist()]


# ----------------------------------------------------------------------------------------------- the generator
DenoisingStep = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""Latents and the timestep's value -> latents at the next timestep, and the guess of the latents without noise."""


def feedback_loss(rewards: Float[Tensor, " images"], bound: float | None) -> Float[Tensor, " images"]:
    """Returns ReFL's loss of each image, relu(bound - reward): no gradient from `bound` on; None: -reward (DRaFT)."""
    return -rewards if bound is None else torch.relu(bound - rewards)


def guess_at(latents: Tensor, timesteps: Sequence[int], position: int, step: DenoisingStep) -> Tensor:
    """Returns the clean latents as predicted at `timesteps[position]`, with the gradient of only that step (ReFL)."""
    with torch.no_grad():
        for timestep in timesteps[:position]:
            latents, _ = step(latents, timestep)
    return step(latents, timesteps[position])[1]


def drawn_with_gradient(latents: Tensor, timesteps: Sequence[int], gradient_steps: int, step: DenoisingStep) -> Tensor:
    """Returns the latents at the end of sampling, with the gradient of the last `gradient_steps` steps (DRaFT-K).

    ValueError unless 1 <= gradient_steps <= number of timesteps.
    """
    if not 1 <= gradient_steps <= len(timesteps):
        raise ValueError(f"gradient_steps {gradient_steps} must be in 1..{len(timesteps)}")
    # Only the last steps keep their activations: memory grows with the number of steps that have a gradient.
    free = len(timesteps) - gradient_steps
    with torch.no_grad():
        for timestep in timesteps[:free]:
            latents, _ = step(latents, timestep)
    for timestep in timesteps[free:]:
        latents, _ = step(latents, timestep)
    return latents


def best_share(rewards: Float[Tensor, " pictures"], share: float) -> Float[Tensor, " pictures"]:
    """Returns weight 1 for the best `share` of the pictures, at least one, and 0 for the others (dataset filtering).

    Of equal rewards the earlier picture counts as better.
    """
    best = rewards.argsort(descending=True, stable=True)[: max(1, int(share * len(rewards)))]
    return torch.zeros_like(rewards).index_fill(0, best, 1.0)


def scaled_rewards(rewards: Float[Tensor, " pictures"]) -> Float[Tensor, " pictures"]:
    """Returns the rewards scaled to 0..1, the worst picture 0 and the best 1; all 1 where the rewards are equal."""
    low, high = rewards.min(), rewards.max()
    return (rewards - low) / (high - low) if high > low else torch.ones_like(rewards)


def best_of_each(rewards: Float[Tensor, "prompts pictures"]) -> Float[Tensor, "prompts pictures"]:
    """Returns weight 1 for the first best picture of each prompt and 0 for the others (RAFT)."""
    return torch.zeros_like(rewards).scatter(1, rewards.argmax(1, keepdim=True), 1.0)


def diffusion_preference_loss(
    better_errors: Float[Tensor, " pairs"],
    worse_errors: Float[Tensor, " pairs"],
    reference_better_errors: Float[Tensor, " pairs"],
    reference_worse_errors: Float[Tensor, " pairs"],
    beta: float,
) -> Float[Tensor, " pairs"]:
    """-log sigmoid(-beta/2 ((better - its reference) - (worse - its reference))) of each pair's denoising errors.

    Errors are mean squares over an image; both images of a pair get the same noise. `beta` is as in the released code:
    it includes the number of timesteps and the weight of each (2,000 to 5,000 for Stable Diffusion).
    """
    # Negative where the policy denoises the preferred image better, relative to its reference, than the other one.
    gained = (better_errors - reference_better_errors) - (worse_errors - reference_worse_errors)
    return -logsigmoid(-0.5 * beta * gained)
