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


def effective_sample_fraction(weights: PerToken, response_mask: Mask) -> Float[Tensor, ""]:
    """(sum w)^2 / (n sum w^2) over the n masked tokens: 1 for equal weights, 1/n when one token has it all.

    0 for an empty mask or weights that are all 0.
    """
    mask = response_mask.bool()
    kept = torch.where(mask, weights.detach().double(), 0.0)
    spread = mask.sum() * kept.square().sum()
    return (kept.sum().square() / spread.clamp_min(torch.finfo(torch.float64).tiny)).to(weights.dtype)


def logprob_gap(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask
) -> dict[str, Tensor]:
    """How far trainer and sampler are apart on the sampled tokens, in nats; an empty mask counts as no gap.

    mean_abs and max_abs of log pi - log mu; k3 = r - 1 - log r with r = pi / mu, whose mean estimates KL(mu || pi);
    perplexity_ratio = exp(mean(log mu - log pi)), above 1 when the trainer thinks less of the tokens.
    """
    mask = response_mask.bool()
    gap = _log_ratio(policy_logprobs, rollout_logprobs, mask).double()
    count = mask.sum().clamp_min(1)
    bounded = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return {
        "rollout_gap/mean_abs": gap.abs().sum() / count,
        "rollout_gap/max_abs": gap.abs().amax() if gap.numel() else gap.new_zeros(()),
        "rollout_gap/k3": (bounded.expm1() - bounded).sum() / count,
        "rollout_gap/perplexity_ratio": (-gap.sum() / count).exp(),
    }


def _log_ratio(policy_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, policy_logprobs.detach() - rollout_logprobs.detach(), 0.0)
