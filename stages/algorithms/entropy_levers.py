"""Levers on a policy's entropy: the tokens that drive it, and the coefficient of an entropy bonus.

Tokens are compared with all others of a batch, so the caller passes a whole batch and not a micro-batch.

Sources:
- Clip-Cov and KL-Cov: "The Entropy Mechanism of Reinforcement Learning" (arXiv 2505.22617; code
  PRIME-RL/Entropy-Mechanism-of-RL at 6071b11c, and verl `trainer/ppo/core_algos.py`);
- gradients of the tokens with the highest entropy: "Beyond the 80/20 Rule" (arXiv 2506.01939);
- adaptive coefficient: Skywork-OR1 (arXiv 2505.22312; code SkyworkAI/Skywork-OR1 at 64e96afe).

Deviations:
1. Exactly as many tokens are chosen as the fraction says. Where several share the lowest chosen value, the first ones
   are chosen. A quantile as threshold would choose all of them.
2. Clip-Cov also draws tokens that PPO's clip already holds. verl leaves them out, and needs the current ratio for that.
3. Skywork's bonus measures the entropy by the sampled tokens' log-probabilities; the caller here has the exact one.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

PerToken = Float[Tensor, "batch tokens"]
Mask = Shaped[Tensor, "batch tokens"]
Chosen = Bool[Tensor, "batch tokens"]


def covariances(logprobs: PerToken, advantages: PerToken, response_mask: Mask) -> PerToken:
    """Returns each token's part of the covariance of log-probability and advantage: (log p - mean)(A - mean).

    Means are over the masked tokens. In float64; 0 outside the mask. Where it is high, a step lowers the entropy most.
    """
    mask = response_mask.bool()
    count = mask.sum().clamp_min(1)
    values = [torch.where(mask, part.detach().double(), 0.0) for part in (logprobs, advantages)]
    first, second = (part - part.sum() / count for part in values)
    return torch.where(mask, first * second, 0.0)


def top_fraction(values: PerToken, response_mask: Mask, fraction: float) -> Chosen:
    """Returns True at the masked tokens with the largest values: `fraction` of them, rounded down, but at least one.

    Of equal values the first are chosen, row by row.
    """
    mask = response_mask.bool()
    places = mask.flatten().nonzero()[:, 0]
    order = values.detach()[mask].argsort(descending=True, stable=True)
    return _chosen(mask, places[order[: _count(len(places), fraction)]])


def random_between(
    values: PerToken, response_mask: Mask, low: float, high: float, fraction: float, seed: int
) -> Chosen:
    """Returns True at random tokens with low < value < high: `fraction` of all masked tokens, or all that there are.

    The number is rounded down, but at least one.
    """
    mask = response_mask.bool()
    places = (mask & (values > low) & (values < high)).flatten().nonzero()[:, 0]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    return _chosen(mask, places[order[: _count(int(mask.sum()), fraction)]])


def _count(tokens: int, fraction: float) -> int:
    return max(1, int(tokens * fraction))


def _chosen(mask: Tensor, places: Tensor) -> Tensor:
    return torch.zeros_like(mask).flatten().index_fill_(0, places, True).view_as(mask)


def adapted_coefficient(coefficient: float, entropy: float, target: float, step: float, highest: float) -> float:
    """Returns the next coefficient of an entropy bonus: up by `step` if the entropy is below the target, else down.

    In [0, highest]. The bonus itself acts only while the entropy is below the target.
    """
    return min(max(coefficient + (step if entropy < target else -step), 0.0), highest)
