"""How a text-to-image generator learns from a reward model, or from preferred images.

Sources: ReFL, ImageReward (arXiv 2304.05977, algorithm 1 and equation 3; `ImageReward/ReFL.py` at 1beb4e4); DRaFT-K,
Clark et al. (arXiv 2309.17400, section 4); Diffusion-DPO, Wallace et al. (arXiv 2311.12908, equation 14; `train.py` at
5a28b05).

Deviations:
1. A step is called with the value of its timestep. ReFL.py gives the denoiser the step's index instead, and the
   scheduler the timestep of the step before.
2. One rule for ReFL and DRaFT-K: `bound` may cut the reward of either, and ReFL takes the gradient through one step.
3. The preference loss is per pair, before any mean (a mean inside of the log sigmoid weighs pairs by their batch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

DenoisingStep = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""Latents and the timestep's value -> latents at the next timestep, and the guess of the latents without noise."""


def feedback_loss(rewards: Float[Tensor, " images"], bound: float | None) -> Float[Tensor, " images"]:
    """ReFL's loss of each image, relu(bound - reward): 0 without a gradient from `bound` on; None: -reward (DRaFT)."""
    return -rewards if bound is None else torch.relu(bound - rewards)


def guess_at(latents: Tensor, timesteps: Sequence[int], position: int, step: DenoisingStep) -> Tensor:
    """The clean latents as guessed at `timesteps[position]`, with the gradient of that one step (ReFL)."""
    with torch.no_grad():
        for timestep in timesteps[:position]:
            latents, _ = step(latents, timestep)
    return step(latents, timesteps[position])[1]


def drawn_with_gradient(
    latents: Tensor, timesteps: Sequence[int], gradient_steps: int, step: DenoisingStep
) -> Tensor:
    """The latents at the end of the draw, with the gradient of its last `gradient_steps` steps (DRaFT-K).

    ValueError unless 1 <= gradient_steps <= number of timesteps.
    """
    if not 1 <= gradient_steps <= len(timesteps):
        raise ValueError(f"gradient_steps {gradient_steps} must lie in 1..{len(timesteps)}")
    free = len(timesteps) - gradient_steps
    with torch.no_grad():
        for timestep in timesteps[:free]:
            latents, _ = step(latents, timestep)
    for timestep in timesteps[free:]:
        latents, _ = step(latents, timestep)
    return latents


def diffusion_preference_loss(
    better_errors: Float[Tensor, " pairs"],
    worse_errors: Float[Tensor, " pairs"],
    reference_better_errors: Float[Tensor, " pairs"],
    reference_worse_errors: Float[Tensor, " pairs"],
    beta: float,
) -> Float[Tensor, " pairs"]:
    """-log sigmoid(-beta/2 ((better - its reference) - (worse - its reference))) of each pair's denoising errors.

    Errors are mean squares over an image, both images of a pair noised alike. `beta` is the released code's, which
    holds the number of timesteps and the weight of each (2,000 to 5,000 for Stable Diffusion).
    """
    gained = (better_errors - reference_better_errors) - (worse_errors - reference_worse_errors)
    return -logsigmoid(-0.5 * beta * gained)
