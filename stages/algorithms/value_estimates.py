"""A critic's part of PPO: advantages and targets from the values of tokens, its loss, and how much its values explain.

The value of a token is the critic's estimate, before the token is chosen, of the rewards from there on.

Sources: generalised advantage estimation (Schulman et al., arXiv 1506.02438, equation 16); the clipped value loss of
OpenAI's baselines (`ppo2`), which PPO's paper (arXiv 1707.06347) does not have. Reference code: verl
`trainer/ppo/core_algos.py` at 012be9d9, `compute_gae_advantage_return` and `compute_value_loss`; OpenRLHF's
`get_advantages_and_returns`, as in eddycmu/demystify-long-cot at 29fddcc8.

Deviations:
1. Advantages are not whitened here (verl whitens in the same function): the caller does it over all ranks.
2. Sums are in float64; the result has the values' type.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from stages.algorithms.length_rewards import discounted_to_go

PerToken = Float[Tensor, "batch tokens"]
Mask = Shaped[Tensor, "batch tokens"]


def generalised_advantages(
    rewards: PerToken, values: PerToken, response_mask: Mask, discount: float, gae_lambda: float
) -> PerToken:
    """Returns A_t = d_t + discount * lambda * A_{t'} with d_t = r_t + discount * V_{t'} - V_t, 0 outside the mask.

    t' is the next token inside the mask: tokens outside it (padding, tool output) are no actions, carry no reward and
    cost no discount. After the last token the value is 0, also where a limit truncated the response. Its reward is for
    the text that it wrote, and nothing follows. (verl and OpenRLHF do the same.) The target of a value is A_t + V_t.
    lambda 1 gives the discounted reward to go minus V_t, lambda 0 the temporal difference d_t. ValueError when discount
    times lambda is not in [0, 1].
    """
    mask = response_mask.bool()
    values = values.detach().double()
    # The values in the mask, row after row, moved up by one; the last one of a row is followed by none.
    following = torch.cat([values[mask], values.new_zeros(1)])[1:]
    following = torch.zeros_like(values).masked_scatter_(mask, following).masked_fill_(last_tokens(mask), 0.0)
    differences = rewards.detach().double() + discount * following - values
    return discounted_to_go(differences, mask, discount * gae_lambda).to(rewards.dtype)


def last_tokens(response_mask: Mask) -> Shaped[Tensor, "batch tokens"]:
    """Returns True at the last token inside the mask of each response."""
    mask = response_mask.bool()
    return mask & (mask.cumsum(-1) == mask.sum(-1, keepdim=True))


def clipped_value_loss(
    values: PerToken, values_before: PerToken, targets: PerToken, response_mask: Mask, value_clip: float | None
) -> tuple[PerToken, Tensor]:
    """Returns the loss of each token, 0 outside the mask, and where the clip decides it (no gradient), as booleans.

    0.5 * max((V - target)^2, (clip(V, V_before - value_clip, V_before + value_clip) - target)^2); None does not clip.
    """
    mask = response_mask.bool()
    # Replaced before any arithmetic: NaN in padding reaches neither the loss nor the gradient.
    values, before, targets = (
        torch.where(mask, part, 0.0) for part in (values, values_before.detach(), targets.detach())
    )
    free = (values - targets).square()
    if value_clip is None:
        return 0.5 * free, torch.zeros_like(mask)
    held = (torch.clamp(values, before - value_clip, before + value_clip) - targets).square()
    return 0.5 * torch.maximum(free, held), held > free


def explained_variance(values: PerToken, targets: PerToken, response_mask: Mask) -> float:
    """Returns 1 - Var(target - V) / Var(target) over the tokens in the mask: 1 is perfect, 0 is as good as a constant.

    Negative when the values are worse than a constant; 0 without tokens or when all targets are equal.
    """
    mask = response_mask.bool()
    targets, errors = targets[mask].double(), (targets - values)[mask].double()
    if not len(targets) or bool((targets == targets[0]).all()):
        return 0.0
    return float(1 - errors.var(correction=0) / targets.var(correction=0))
