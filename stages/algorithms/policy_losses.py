"""Policy-gradient losses per token, and their aggregation into one number.

Sources: PPO (arXiv 1707.06347, equation 7) with DAPO's two clip offsets (arXiv 2503.14476, equation 8) and the dual
clip of arXiv 1912.09729 (equation 5); GSPO (arXiv 2507.18071, equations 5 and 13 to 15); CISPO (arXiv 2506.13585,
equations 4 and 5); DPPO (arXiv 2602.04879), binary total variation and binary KL; SAPO (arXiv 2511.20347, equations 5
and 6); KL-Cov (arXiv 2505.22617); REINFORCE (Williams, 1992); the mean over prompts (arXiv 2510.13786, ScaleRL).
Reference code: verl `trainer/ppo/core_algos.py` at 1dda039b.

The losses share their first four arguments. `advantages` are per token [batch, tokens] or per response [batch]; they
carry no gradient. Values outside the response mask are replaced before any arithmetic, so that NaN in padding reaches
neither the loss nor the gradient; the loss there is 0. Diagnostics are detached scalars over the masked tokens.

Deviations:
1. The log-ratio is clamped to +-20 in all of them (verl: all but GSPO, which it clamps to at most 10; both hold here).
2. `aggregate` divides by the caller's divisor. Without one, the sequence modes count every row of the batch,
   including rows that a mask has emptied: masking responses out must not give the others more weight.
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

PerToken = Float[Tensor, "batch tokens"]
Mask = Shaped[Tensor, "batch tokens"]
Advantages = Float[Tensor, "batch tokens"] | Float[Tensor, " batch"]
Diagnostics = dict[str, Tensor]
LOG_RATIO_LIMIT = 20.0
"""exp(20) is about 5e8: far below float32's largest number, far beyond any clip."""
GSPO_LOG_RATIO_LIMIT = 10.0
"""verl's limit for GSPO (deviation 1)."""


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
    a negative advantage at dual_clip * |A|. With equal offsets this is PPO.
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
) -> tuple[PerToken, Diagnostics]:
    """GSPO-token: the clipped surrogate with one ratio a response, s = exp(mean over its tokens of the log-ratio).

    Each token's ratio is sg(s) * pi / sg(pi): its value is s, and its gradient is that of the token's log-probability.
    Use it with `sequence_mean_token_mean`. A response without tokens has s = 1 and loss 0.
    """
    mask = response_mask.bool()
    log_ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask)
    # The geometric mean of the tokens' ratios; `clamp_min` is for responses without tokens.
    mean_log_ratio = log_ratio.detach().sum(-1) / mask.sum(-1).clamp_min(1)
    policy = torch.where(mask, policy_logprobs, 0.0)
    # Value: the mean. Gradient: that of the token's own log-probability, since policy - policy.detach() is 0.
    sequence_log_ratio = policy - policy.detach() + mean_log_ratio[:, None]
    ratio = sequence_log_ratio.clamp(max=GSPO_LOG_RATIO_LIMIT).exp()
    return _clipped(ratio, _per_token(advantages, mask), mask, clip_low, clip_high)


def cispo(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    clip_low: float,
    clip_high: float,
) -> tuple[PerToken, Diagnostics]:
    """CISPO: -sg(clip(r, 1 - clip_low, 1 + clip_high)) * A * log pi; the clip weighs tokens and drops none.

    A `clip_low` of 1 or more leaves the lower side open, as the paper does.
    """
    mask = response_mask.bool()
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).detach().exp()
    # Detached above: unlike PPO's clip, this one only weighs a token's gradient and never removes it.
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    # A product of a NaN in padding and 0 would be NaN, so the log-probability is replaced first.
    loss = -weight * _per_token(advantages, mask) * torch.where(mask, policy_logprobs, 0.0)
    return loss, _diagnostics(ratio, mask, ratio < 1 - clip_low, ratio > 1 + clip_high)


def dppo(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    limit_low: float,
    limit_high: float,
    ratio_cap: float,
    divergence: str,
) -> tuple[PerToken, Diagnostics]:
    """DPPO: -sg(min(r, `ratio_cap`)) * A * log pi, for tokens whose divergence from the proximal policy, here the
    sampler, is small.

    The divergence is that of two coins, which fall on the sampled token or not, with probabilities p and q (proximal):
    |p - q| ("total_variation"), or q log(q / p) + (1 - q) log((1 - q) / (1 - p)) ("kl", in nats). A token is left out
    if A > 0, p > q and it exceeds `limit_high`, or A <= 0, p < q and it exceeds `limit_low`: it has moved far
    already and would move further.
    """
    mask = response_mask.bool()
    advantages = _per_token(advantages, mask)
    log_p = torch.where(mask, policy_logprobs, 0.0)
    log_q = torch.where(mask, proximal_logprobs.detach(), 0.0)
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).detach().exp()
    p, q = log_p.detach().double().exp(), log_q.double().exp()
    if divergence == "total_variation":
        distance = (p - q).abs()
    else:
        # xlogy: a coin that never falls on one side adds nothing there. Clamped, because 1 - p may round to 0.
        rest_p, rest_q = (1 - p).clamp_min(1e-12), (1 - q).clamp_min(0.0)
        distance = q * (log_q - log_p.detach()).double() + torch.special.xlogy(rest_q, rest_q / rest_p)
    is_above = (advantages > 0) & (p > q) & (distance > limit_high)
    is_below = (advantages <= 0) & (p < q) & (distance > limit_low)
    loss = torch.where(is_above | is_below, 0.0, -ratio.clamp(max=ratio_cap) * advantages * log_p)
    return loss, _diagnostics(ratio, mask, is_below, is_above)


def sapo(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    temperature_positive: float,
    temperature_negative: float,
) -> tuple[PerToken, Diagnostics]:
    """SAPO: -(4 / t) sigmoid(t (r - 1)) A, a soft gate instead of a clip; t by the sign of the advantage.

    At r = 1 its gradient is that of -r A. "Clipped" counts tokens whose gradient is less than half of that.
    """
    mask = response_mask.bool()
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).exp()
    advantages = _per_token(advantages, mask)
    temperature = torch.where(advantages > 0, temperature_positive, temperature_negative)
    gate = torch.sigmoid(temperature * (ratio - 1))
    loss = torch.where(mask, -4 / temperature * gate * advantages, 0.0)
    # The derivative of the gate by the ratio, 4 sigmoid (1 - sigmoid), is 1 at ratio 1.
    is_weak = 4 * gate.detach() * (1 - gate.detach()) < 0.5
    return loss, _diagnostics(ratio.detach(), mask, is_weak & (ratio < 1), is_weak & (ratio > 1))


def kl_cov(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    is_held: Mask,
    coefficient: float,
) -> tuple[PerToken, Diagnostics]:
    """KL-Cov: -r A, without a clip, plus coefficient * |log r| at the tokens `is_held`, those of high covariance.

    The penalty has no slope at r = 1: there, the rounding of the two log-probabilities decides its sign.
    """
    mask = response_mask.bool()
    log_ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask)
    ratio = log_ratio.exp()
    penalty = torch.where(mask & is_held.bool(), coefficient * log_ratio.abs(), 0.0)
    return penalty - ratio * _per_token(advantages, mask), _diagnostics(ratio.detach(), mask)


def reinforce(
    policy_logprobs: PerToken, proximal_logprobs: PerToken, advantages: Advantages, response_mask: Mask
) -> tuple[PerToken, Diagnostics]:
    """REINFORCE: -A * log pi, without ratio or clip. Proximal log-probabilities only serve the diagnostics."""
    mask = response_mask.bool()
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).detach().exp()
    return -_per_token(advantages, mask) * torch.where(mask, policy_logprobs, 0.0), _diagnostics(ratio, mask)


def aggregate(
    loss: PerToken,
    response_mask: Mask,
    how: str,
    divisor: float | Tensor | None = None,
    prompt_tokens: Float[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Returns one number from the losses of the masked tokens; 0 with a zero gradient when the mask is empty.

    token_mean: sum over tokens / tokens (DAPO). sequence_mean_token_mean: mean over responses of each one's token
    mean (GRPO). sequence_mean_token_sum: mean over responses of each one's token sum. constant: sum over tokens /
    divisor (Dr. GRPO). prompt_mean: sum over tokens, each over the tokens of all responses to its prompt
    (`prompt_tokens`) / divisor, the number of prompts (ScaleRL). A given `divisor` replaces the count of tokens
    (token_mean) or of responses (the sequence modes). So the losses of micro-batches add up to the loss of the batch,
    and masked-out responses do not give the others more weight. ValueError on an unknown mode, a divisor that is not
    positive, or constant or prompt_mean without one.
    """
    if divisor is not None and not divisor > 0:
        raise ValueError(f"divisor must be positive, not {divisor}: give the count of tokens or responses")
    mask = response_mask.bool()
    # `where`, not a product with the mask: 0 times NaN is NaN.
    kept = torch.where(mask, loss, 0.0)
    if how == "token_mean":
        return kept.sum() / (mask.sum().clamp_min(1) if divisor is None else divisor)
    if how == "sequence_mean_token_mean":
        # Each response weighs the same, whatever its length.
        sequences = kept.sum(-1) / mask.sum(-1).clamp_min(1)
        return sequences.sum() / (max(len(loss), 1) if divisor is None else divisor)
    if how == "sequence_mean_token_sum":
        return kept.sum() / (max(len(loss), 1) if divisor is None else divisor)
    if how == "constant":
        if divisor is None:
            raise ValueError("constant aggregation needs a divisor: give a fixed count, such as batch * max tokens")
        return kept.sum() / divisor
    if how == "prompt_mean":
        if divisor is None or prompt_tokens is None:
            raise ValueError("prompt_mean aggregation needs the number of prompts, and the tokens of each one")
        return (kept.sum(-1) / prompt_tokens.clamp_min(1)).sum() / divisor
    raise ValueError(
        f"aggregation {how!r} is not one of token_mean, sequence_mean_token_mean, sequence_mean_token_sum, constant, "
        "prompt_mean"
    )


def tokens_of_prompts(response_mask: Mask, group_ids: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Returns, for each response, the masked tokens of all responses of its group: for `aggregate` as prompt_mean."""
    _, groups = torch.unique(group_ids, return_inverse=True)
    counts = response_mask.float().sum(-1)
    return torch.zeros_like(counts).index_add_(0, groups, counts)[groups]


def _log_ratio(policy_logprobs: Tensor, proximal_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Returns the clamped log-ratio, 0 outside the mask; proximal log-probabilities get no gradient."""
    policy = torch.where(mask, policy_logprobs, 0.0)
    proximal = torch.where(mask, proximal_logprobs.detach(), 0.0)
    return (policy - proximal).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _per_token(advantages: Tensor, mask: Tensor) -> Tensor:
    spread = advantages.detach() if advantages.dim() == 2 else advantages.detach()[:, None]
    return torch.where(mask, spread, 0.0)


def _clipped(
    ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Diagnostics]:
    # -min(rA, clip(r)A) is the maximum of the two negated.
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(free, held)
    # Only where the clip decides is the token clipped, and its gradient 0. With a negative advantage its ratio is then
    # below 1 - clip_low, with a positive one above 1 + clip_high.
    is_held = held > free
    diagnostics = _diagnostics(ratio.detach(), mask, is_held & (advantages < 0), is_held & (advantages > 0))
    if dual_clip is not None:
        # With a negative advantage the ratio, and so the loss, has no upper bound: this sets one.
        cap = -advantages * dual_clip
        is_capped = (advantages < 0) & (loss > cap)
        loss = torch.where(is_capped, cap, loss)
        diagnostics["clip_fraction/dual"] = _masked_mean(is_capped, mask)
    return loss, diagnostics


def _diagnostics(
    ratio: Tensor, mask: Tensor, is_low: Tensor | None = None, is_high: Tensor | None = None
) -> Diagnostics:
    """Shares of tokens clipped below and above; mean and largest ratio; and k3 = r - 1 - log r, whose mean estimates
    KL(proximal || policy)."""
    none = torch.zeros_like(mask)
    return {
        "clip_fraction/low": _masked_mean(none if is_low is None else is_low, mask),
        "clip_fraction/high": _masked_mean(none if is_high is None else is_high, mask),
        "ratio/mean": _masked_mean(ratio, mask),
        "ratio/max": torch.where(mask, ratio, 0.0).amax() if mask.numel() else ratio.new_zeros(()),
        "ratio/k3": _masked_mean(ratio - 1 - ratio.log(), mask),
    }


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    values = values.detach() if values.is_floating_point() else values.float()
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)
