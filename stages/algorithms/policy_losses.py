"""Policy-gradient losses per token, and the ways to aggregate them into one number.

Sources: PPO (arXiv 1707.06347, equation 7) with DAPO's two clip offsets (arXiv 2503.14476, equation 8) and the dual
clip of arXiv 1912.09729 (equation 5); GSPO (arXiv 2507.18071, equations 5 and 13 to 15); CISPO (arXiv 2506.13585,
equations 4 and 5); REINFORCE (Williams, 1992). Reference code: verl `trainer/ppo/core_algos.py` at 1dda039b.

The four losses share one face. `advantages` are per token [batch, tokens] or per response [batch]; they carry no
gradient. What is outside the response mask is replaced before any arithmetic, so that NaN in padding reaches
neither the loss nor the gradient; the loss there is 0. Diagnostics are detached scalars over the masked tokens.

Deviations:
1. The log-ratio is clamped to +-20 in all four (verl: all but GSPO, which it clamps to at most 10; both hold here).
2. `dual_clip` also bounds GSPO when it is given; CISPO and REINFORCE have no use for it and ignore it.
3. `aggregate` divides by what the caller says. Without a divisor, the sequence modes count every row of the batch,
   also the rows that a mask has emptied: masking responses out must not give the others more weight.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

PerToken = Float[Tensor, "batch tokens"]
Mask = Shaped[Tensor, "batch tokens"]
Advantages = Float[Tensor, "batch tokens"] | Float[Tensor, " batch"]
Diagnostics = dict[str, Tensor]

LOG_RATIO_LIMIT = 20.0  # exp(20) is about 5e8: far from float32's end, far past any clip
GSPO_LOG_RATIO_LIMIT = 10.0


def clipped_surrogate(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[PerToken, Diagnostics]:
    """PPO's clipped surrogate with DAPO's separate offsets: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    r = exp(policy_logprobs - proximal_logprobs). `dual_clip` (> 1; DAPO's recipe has 10) caps the loss of tokens with
    a negative advantage at dual_clip * |A|. Equal offsets give PPO. ValueError on a dual_clip of 1 or less.
    """
    mask = response_mask.bool()
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).exp()
    return _clipped(ratio, _per_token(advantages, mask), mask, clip_low, clip_high, dual_clip)


def gspo(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[PerToken, Diagnostics]:
    """GSPO-token: the clipped surrogate with one ratio a response, s = exp(mean over its tokens of the log-ratio).

    Each token's ratio is sg(s) * pi / sg(pi): its value is s, its gradient that of its own log-probability. Meant for
    `sequence_mean_token_mean`. A response without tokens has s = 1 and loss 0.
    """
    mask = response_mask.bool()
    log_ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask)
    mean_log_ratio = log_ratio.detach().sum(-1) / mask.sum(-1).clamp_min(1)
    policy = torch.where(mask, policy_logprobs, 0.0)
    sequence_log_ratio = policy - policy.detach() + mean_log_ratio[:, None]
    ratio = sequence_log_ratio.clamp(max=GSPO_LOG_RATIO_LIMIT).exp()
    return _clipped(ratio, _per_token(advantages, mask), mask, clip_low, clip_high, dual_clip)


def cispo(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[PerToken, Diagnostics]:
    """CISPO: -sg(clip(r, 1 - clip_low, 1 + clip_high)) * A * log pi; the clip weighs tokens and drops none.

    A `clip_low` of 1 or more leaves the lower side open, as the paper does. `dual_clip` is ignored.
    """
    mask = response_mask.bool()
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).detach().exp()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -weight * _per_token(advantages, mask) * torch.where(mask, policy_logprobs, 0.0)
    diagnostics = {
        "clip_fraction/low": _masked_mean(ratio < 1 - clip_low, mask),
        "clip_fraction/high": _masked_mean(ratio > 1 + clip_high, mask),
        **_ratio_diagnostics(ratio, mask),
    }
    return loss, diagnostics


def reinforce(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[PerToken, Diagnostics]:
    """REINFORCE: -A * log pi, no ratio and no clip. Proximal log-probabilities serve the diagnostics only."""
    mask = response_mask.bool()
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).detach().exp()
    loss = -_per_token(advantages, mask) * torch.where(mask, policy_logprobs, 0.0)
    zero = torch.zeros((), dtype=loss.dtype, device=loss.device)
    return loss, {
        "clip_fraction/low": zero,
        "clip_fraction/high": zero.clone(),
        **_ratio_diagnostics(ratio, mask),
    }


def aggregate(
    loss: PerToken, response_mask: Mask, how: str, divisor: float | Tensor | None = None
) -> Float[Tensor, ""]:
    """One number from the losses of the masked tokens; 0 with a zero gradient when the mask is empty.

    token_mean: sum over tokens / tokens (DAPO). sequence_mean_token_mean: mean over responses of each one's token
    mean (GRPO). sequence_mean_token_sum: mean over responses of each one's token sum. constant: sum over tokens /
    divisor (Dr. GRPO). A given `divisor` takes the place of the count of tokens (token_mean) or of responses (the
    sequence modes), so that the micro-batches of a batch add up to the loss of the batch and masked-out responses do
    not give the others more weight. ValueError on an unknown mode, a divisor that is not positive, or constant
    without one.
    """
    if divisor is not None and not divisor > 0:
        raise ValueError(f"divisor must be positive, not {divisor}: give the count of tokens or responses")
    mask = response_mask.bool()
    kept = torch.where(mask, loss, 0.0)
    if how == "token_mean":
        return kept.sum() / (mask.sum().clamp_min(1) if divisor is None else divisor)
    if how == "sequence_mean_token_mean":
        sequences = kept.sum(-1) / mask.sum(-1).clamp_min(1)
        return sequences.sum() / (max(len(loss), 1) if divisor is None else divisor)
    if how == "sequence_mean_token_sum":
        return kept.sum() / (max(len(loss), 1) if divisor is None else divisor)
    if how == "constant":
        if divisor is None:
            raise ValueError(
                "constant aggregation needs a divisor: give a fixed count, such as batch * max tokens"
            )
        return kept.sum() / divisor
    raise ValueError(
        f"aggregation {how!r} is not one of token_mean, sequence_mean_token_mean, sequence_mean_token_sum, constant"
    )


def _log_ratio(policy_logprobs: Tensor, proximal_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Clamped log-ratio, 0 outside the mask; proximal log-probabilities get no gradient."""
    policy = torch.where(mask, policy_logprobs, 0.0)
    proximal = torch.where(mask, proximal_logprobs.detach(), 0.0)
    return (policy - proximal).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _per_token(advantages: Tensor, mask: Tensor) -> Tensor:
    spread = advantages.detach() if advantages.dim() == 2 else advantages.detach()[:, None]
    return torch.where(mask, spread, 0.0)


def _clipped(
    ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Diagnostics]:
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(
            f"dual_clip must be greater than 1, not {dual_clip}: it caps the ratio of bad tokens"
        )
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(free, held)
    is_held = held > free
    diagnostics = {
        "clip_fraction/low": _masked_mean(is_held & (advantages < 0), mask),
        "clip_fraction/high": _masked_mean(is_held & (advantages > 0), mask),
        **_ratio_diagnostics(ratio.detach(), mask),
    }
    if dual_clip is not None:
        cap = -advantages * dual_clip
        is_capped = (advantages < 0) & (loss > cap)
        loss = torch.where(is_capped, cap, loss)
        diagnostics["clip_fraction/dual"] = _masked_mean(is_capped, mask)
    return loss, diagnostics


def _ratio_diagnostics(ratio: Tensor, mask: Tensor) -> Diagnostics:
    """Mean and largest ratio, and k3 = r - 1 - log r, whose mean estimates KL(proximal || policy)."""
    k3 = ratio - 1 - ratio.log()
    return {
        "ratio/mean": _masked_mean(ratio, mask),
        "ratio/max": torch.where(mask, ratio, 0.0).amax() if mask.numel() else ratio.new_zeros(()),
        "ratio/k3": _masked_mean(k3, mask),
    }


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    values = values.detach() if values.is_floating_point() else values.float()
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)
