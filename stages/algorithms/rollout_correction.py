"""Importance weights for the gap between the trainer's and the sampler's log-probabilities.

Source: truncated importance sampling (Yao et al., fengyao.notion.site/off-policy-rl); verl
`trainer/ppo/rollout_corr_helper.py` at 1dda039b, from where the clamp of the log-ratio to +-20 comes too.

Which log-probabilities the caller passes as `policy_logprobs` decides the mode: the proximal ones, times a clipped
surrogate (decoupled); or the current ones, times REINFORCE (bypass).
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

PerToken = Float[Tensor, "batch tokens"]
Mask = Shaped[Tensor, "batch tokens"]

LOG_RATIO_LIMIT = 20.0


def importance_weights(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask, level: str, cap: float
) -> PerToken:
    """min(pi / mu, cap), each token's own ratio (level "token") or that of the response for all its tokens
    ("sequence": the product).

    Truncated from above only. No gradient. 0 outside the mask, and what lies there has no influence.
    ValueError on another level or a cap that is not positive.
    """
    if not cap > 0:
        raise ValueError(f"cap must be positive, not {cap} (2 is usual for tokens)")
    mask = response_mask.bool()
    log_ratio = _log_ratio(policy_logprobs, rollout_logprobs, mask)
    if level == "sequence":
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    elif level != "token":
        raise ValueError(f"level must be 'token' or 'sequence', not {level!r}")
    weights = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=cap)
    return torch.where(mask, weights, 0.0)


def _log_ratio(policy_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, policy_logprobs.detach() - rollout_logprobs.detach(), 0.0)
