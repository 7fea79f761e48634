"""Policy-gradient losses per token, their aggregation into one number, and corrections for the gap between the
trainer's and the sampler's log-probabilities: importance weights and trust region masking.

Sources: PPO (arXiv 1707.06347, equation 7) with DAPO's two clip offsets (arXiv 2503.14476, equation 8) and the dual
clip of arXiv 1912.09729 (equation 5); GSPO (arXiv 2507.18071, equations 5 and 13 to 15); CISPO (arXiv 2506.13585,
equations 4 and 5); DPPO (arXiv 2602.04879), binary total variation and binary KL; SAPO (arXiv 2511.20347, equations 5
and 6); KL-Cov (arXiv 2505.22617); REINFORCE (Williams, 1992); the mean over prompts (arXiv 2510.13786, ScaleRL).
Reference code: verl `trainer/ppo/core_algos.py` at 1dda039b.
Corrections: truncated importance sampling (Yao et al., fengyao.notion.site/off-policy-rl); IcePop (Ring team,
ringtech.notion.site, 2025); the mask by the geometric mean of a response's ratios (Liu et al., "When Speed Kills
Stability", 2025); DeepSeek-V3.2's mask of bad responses (arXiv 2512.02556, off-policy sequence masking); Trust Region
Masking (arXiv 2512.23075), algorithm 1, its table of bounds and its length-neutral appendix; verl
`trainer/ppo/rollout_corr_helper.py` at 1dda039b, for the clamp of the log-ratio to +-20, the estimators
(`seq_max_k2`, `seq_mean_k3`) and weights with mean 1.

The losses share one interface. `advantages` are per token [batch, tokens] or per response [batch]; they carry no
gradient. Values outside the response mask are replaced before any arithmetic, so that NaN in padding reaches
neither the loss nor the gradient; the loss there is 0. Diagnostics are detached scalars over the masked tokens.

The log-probabilities that the caller passes to `importance_weights` as `policy_logprobs` decide the mode: the proximal
ones, multiplied with a clipped surrogate (decoupled), or the current ones, multiplied with REINFORCE (bypass).

Trust region masking drops a whole response when its divergence leaves the trust region. The guarantee holds only for
the exact KL; k2 and k3 of the sampled tokens approximate it. The caller multiplies the response mask by the result and
divides the loss by the count of *all* responses or tokens, not of the accepted ones.

Deviations:
1. The log-ratio is clamped to +-20 in all of them (verl: all but GSPO, which it clamps to at most 10; both hold here).
2. `dual_clip` also bounds GSPO when it is given; CISPO and REINFORCE do not need it and ignore it.
3. `aggregate` divides by the caller's divisor. Without one, the sequence modes count every row of the batch,
   including rows that a mask has emptied: masking responses out must not give the others more weight.
4. With vocabulary pruning on both sides, the exact KL uses the union of the policy's and the sampler's token sets. The
   sets differ at their border, where one extra token would otherwise make the KL infinite.
5. A response of one token has length-neutral score 0: the paper's weight of the last token is 0, and 0 / 0 its score.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from stages.algorithms.token_statistics import safe_vocabulary

PerToken = Float[Tensor, "batch tokens"]
Mask = Shaped[Tensor, "batch tokens"]
PerResponse = Bool[Tensor, " batch"]
Advantages = Float[Tensor, "batch tokens"] | Float[Tensor, " batch"]
Diagnostics = dict[str, Tensor]
LOG_RATIO_LIMIT = 20.0  # exp(20) is about 5e8: far below float32's largest number, far beyond any clip
# verl's limit for GSPO (deviation 1).
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
    a negative advantage at dual_clip * |A|. With equal offsets this is PPO. ValueError on a dual_clip of 1 or less.
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
    # Detached above: unlike PPO's clip, this one only weighs a token's gradient and never removes it.
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    # A product of a NaN in padding and 0 would be NaN, so the log-probability is replaced first.
    loss = -weight * _per_token(advantages, mask) * torch.where(mask, policy_logprobs, 0.0)
    diagnostics = {
        "clip_fraction/low": _masked_mean(ratio < 1 - clip_low, mask),
        "clip_fraction/high": _masked_mean(ratio > 1 + clip_high, mask),
        **_ratio_diagnostics(ratio, mask),
    }
    return loss, diagnostics


def dppo(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    divergence: str = "total_variation",
) -> tuple[PerToken, Diagnostics]:
    """DPPO: -sg(min(r, `dual_clip`)) * A * log pi, for tokens whose divergence from the proximal policy is small.

    The divergence is that of two coins, which fall on the sampled token or not, with probabilities p and q (proximal):
    |p - q| ("total_variation"), or q log(q / p) + (1 - q) log((1 - q) / (1 - p)) ("kl", in nats). A token is left out
    if A > 0, p > q and it exceeds `clip_high`, or A <= 0, p < q and it exceeds `clip_low`: it has moved far already
    and would move further. `dual_clip` None: no cap. ValueError on another divergence.
    """
    mask = response_mask.bool()
    advantages = _per_token(advantages, mask)
    log_p = torch.where(mask, policy_logprobs, 0.0)
    log_q = torch.where(mask, proximal_logprobs.detach(), 0.0)
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).detach().exp()
    p, q = log_p.detach().double().exp(), log_q.double().exp()
    if divergence == "total_variation":
        distance = (p - q).abs()
    elif divergence == "kl":
        # xlogy: a coin that never falls on one side adds nothing there. Clamped, because 1 - p may round to 0.
        rest_p, rest_q = (1 - p).clamp_min(1e-12), (1 - q).clamp_min(0.0)
        distance = q * (log_q - log_p.detach()).double() + torch.special.xlogy(rest_q, rest_q / rest_p)
    else:
        raise ValueError(f"divergence must be 'total_variation' or 'kl', not {divergence!r}")
    is_above = (advantages > 0) & (p > q) & (distance > clip_high)
    is_below = (advantages <= 0) & (p < q) & (distance > clip_low)
    weight = ratio.clamp(max=math.inf if dual_clip is None else dual_clip)
    loss = torch.where(is_above | is_below, 0.0, -weight * advantages * log_p)
    return loss, {
        "clip_fraction/low": _masked_mean(is_below, mask),
        "clip_fraction/high": _masked_mean(is_above, mask),
        **_ratio_diagnostics(ratio, mask),
    }


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
    return loss, {
        "clip_fraction/low": _masked_mean(is_weak & (ratio < 1), mask),
        "clip_fraction/high": _masked_mean(is_weak & (ratio > 1), mask),
        **_ratio_diagnostics(ratio.detach(), mask),
    }


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
    zero = torch.zeros((), dtype=ratio.dtype, device=ratio.device)
    shown = {"clip_fraction/low": zero, "clip_fraction/high": zero, **_ratio_diagnostics(ratio.detach(), mask)}
    return penalty - ratio * _per_token(advantages, mask), shown


def reinforce(
    policy_logprobs: PerToken,
    proximal_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> tuple[PerToken, Diagnostics]:
    """REINFORCE: -A * log pi, without ratio or clip. Proximal log-probabilities only serve the diagnostics."""
    mask = response_mask.bool()
    ratio = _log_ratio(policy_logprobs, proximal_logprobs, mask).detach().exp()
    loss = -_per_token(advantages, mask) * torch.where(mask, policy_logprobs, 0.0)
    zero = torch.zeros((), dtype=loss.dtype, device=loss.device)
    return loss, {"clip_fraction/low": zero, "clip_fraction/high": zero.clone(), **_ratio_diagnostics(ratio, mask)}


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
    ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> tuple[Tensor, Diagnostics]:
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip must be greater than 1, not {dual_clip}: it caps the ratio of bad tokens")
    # -min(rA, clip(r)A) is the maximum of the two negated.
    free = -advantages * ratio
    held = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(free, held)
    # Only where the clip decides is the token clipped, and its gradient 0.
    is_held = held > free
    diagnostics = {
        # A token with a negative advantage is clipped when its ratio is below 1 - clip_low, one with a positive
        # advantage when it is above 1 + clip_high.
        "clip_fraction/low": _masked_mean(is_held & (advantages < 0), mask),
        "clip_fraction/high": _masked_mean(is_held & (advantages > 0), mask),
        **_ratio_diagnostics(ratio.detach(), mask),
    }
    if dual_clip is not None:
        # With a negative advantage the ratio, and so the loss, has no upper bound: this sets one.
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


# ------------------------------------------------------------------------------------------ importance weights
def importance_weights(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask, level: str, cap: float
) -> PerToken:
    """Returns min(pi / mu, cap): each token's ratio (level "token"), or for all tokens of a response the product of
    their ratios (level "sequence").

    Truncated only from above. No gradient. 0 outside the mask; values there have no influence.
    ValueError on another level or a cap that is not positive.
    """
    if not cap > 0:
        raise ValueError(f"cap must be positive, not {cap} (2 is usual for tokens)")
    mask = response_mask.bool()
    log_ratio = torch.where(mask, policy_logprobs.detach() - rollout_logprobs.detach(), 0.0)
    if level == "sequence":
        # A product of thousands of ratios: summed in logarithms, and clamped before the exponential.
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    elif level != "token":
        raise ValueError(f"level must be 'token' or 'sequence', not {level!r}")
    weights = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp().clamp(max=cap)
    return torch.where(mask, weights, 0.0)


def normalising_factor(weights: PerToken, response_mask: Mask, level: str) -> Float[Tensor, ""]:
    """Returns the factor that gives a batch's importance weights a mean of 1; 1 if their mean is 1e-8 or less.

    The mean is over tokens, or at level "sequence" over responses with tokens.
    """
    mask = response_mask.bool()
    kept = torch.where(mask, weights.double(), 0.0)
    if level == "token":
        mean = kept.sum() / mask.sum().clamp_min(1)
    else:
        # All tokens of a response have the same weight.
        mean = kept.amax(-1).sum() / mask.any(-1).sum().clamp_min(1)
    return torch.where(mean > 1e-8, 1 / mean, 1.0).to(weights.dtype)


def ice_pop_weights(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask, low: float, high: float
) -> PerToken:
    """Returns each token's ratio pi / mu where it lies in [low, high], and 0 elsewhere (IcePop: 0.5 and 5).

    No gradient. 0 outside the mask. ValueError unless 0 <= low < 1 < high.
    """
    if not 0 <= low < 1 < high:
        raise ValueError(f"low {low} and high {high} must enclose 1, the ratio of equal policies")
    ratio = importance_weights(policy_logprobs, rollout_logprobs, response_mask, "token", math.inf)
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


# -------------------------------------------------------------------------------------- masks of whole responses
def geometric_mask(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask, low: float, high: float
) -> PerResponse:
    """Returns True where the geometric mean of a response's ratios pi / mu lies in [low, high] (0.99 and 1.001).

    A response without tokens is accepted; one with NaN is not.
    """
    mean = _mean_log_ratio(policy_logprobs, rollout_logprobs, response_mask)
    return (mean.exp() >= low) & (mean.exp() <= high)


def bad_response_mask(
    policy_logprobs: PerToken,
    rollout_logprobs: PerToken,
    advantages: Advantages,
    response_mask: Mask,
    max_divergence: float,
) -> PerResponse:
    """Returns False for responses with a negative advantage whose mean log(mu / pi) exceeds `max_divergence`, in nats.

    Such a response is far from what the policy would write, and learning to avoid it says little about the policy. The
    advantage of a response is the mean over its tokens. One with NaN is not accepted.
    """
    mask = response_mask.bool()
    mean = _per_token(advantages, mask).sum(-1) / mask.sum(-1).clamp_min(1)
    divergence = -_mean_log_ratio(policy_logprobs, rollout_logprobs, response_mask)
    return (mean >= 0) & ~divergence.isnan() | (divergence <= max_divergence)


def length_neutral_scores(
    policy_logprobs: PerToken,
    rollout_logprobs: PerToken,
    response_mask: Mask,
    token_kl: float | None,
    token_tv: float | None,
) -> Float[Tensor, " batch"]:
    """Returns sum_t w_t |rho_t - 1| / sum_t w_t of each response (LN-TRM), in float64; rho = pi / mu. No gradient.

    w_t = min(1, (T - t) token_tv, sqrt((T - t) token_kl / 2)) for the policy's t-th of T tokens: an error at an early
    token reaches more of the response. None leaves a term out; with both out the score is the plain mean (SER). A
    response without tokens has score 0; NaN stays NaN. ValueError on a tolerance that is not positive.
    """
    if any(value is not None and not value > 0 for value in (token_kl, token_tv)):
        raise ValueError(f"token_kl {token_kl} and token_tv {token_tv} must be positive, or null")
    mask = response_mask.bool()
    log_ratio = torch.where(mask, policy_logprobs.detach().double() - rollout_logprobs.detach().double(), 0.0)
    errors = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).expm1().abs()
    left = mask.sum(-1, keepdim=True) - mask.cumsum(-1)  # the policy's tokens after each one
    weights = mask.double()
    if token_tv is not None:
        weights = torch.minimum(weights, left * token_tv)
    if token_kl is not None:
        weights = torch.minimum(weights, (left * token_kl / 2).sqrt())
    total = weights.sum(-1)
    return (errors * weights).sum(-1) / torch.where(total > 0, total, 1.0)


def _mean_log_ratio(policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask) -> Tensor:
    """Returns the mean of log(pi / mu) over each response's tokens, in float64: [batch]."""
    mask = response_mask.bool()
    log_ratio = torch.where(mask, policy_logprobs.detach().double() - rollout_logprobs.detach().double(), 0.0)
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).sum(-1) / mask.sum(-1).clamp_min(1)


# ---------------------------------------------------------------------------------------- trust region masking
def trust_region_mask(
    policy_logprobs: PerToken,
    rollout_logprobs: PerToken,
    response_mask: Mask,
    max_threshold: float | None = None,
    mean_threshold: float | None = None,
) -> PerResponse:
    """Returns True where max_t k2 <= max_threshold and mean_t k3 <= mean_threshold; None skips a criterion.

    k2 = 0.5 log^2 r, k3 = r - 1 - log r, r = pi / mu, in nats, log r clamped to +-20. The paper's stable settings:
    0.05 for the maximum, 0.001 for the mean. A response without tokens is accepted; one with NaN is not. ValueError
    on a negative threshold.
    """
    k2, k3 = sampled_divergences(policy_logprobs, rollout_logprobs, response_mask)
    return _accept(k2, k3, response_mask.bool(), max_threshold, mean_threshold)


def sampled_divergences(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask
) -> tuple[PerToken, PerToken]:
    """k2 and k3 of the sampled tokens, in nats and float64; 0 outside the mask. No gradient."""
    mask = response_mask.bool()
    log_ratio = torch.where(mask, policy_logprobs.detach().double() - rollout_logprobs.detach().double(), 0.0)
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # expm1(x) - x keeps the digits that exp(x) - 1 - x loses for small x.
    return 0.5 * log_ratio.square(), log_ratio.expm1() - log_ratio


def exact_divergences(
    rollout_logprobs: Float[Tensor, "tokens vocab"],
    policy_logits: Float[Tensor, "tokens vocab"],
    temperature: float = 1.0,
    log_threshold: float | None = None,
) -> Float[Tensor, " tokens"]:
    """KL(mu || pi) = sum_v mu_v (log mu_v - log pi_v) of each token, in nats and float64, never below 0. No gradient.

    mu is given by its log-probs, -inf where the sampler cut a token off; they are normalised to undo rounding. pi is
    the softmax of the logits over the temperature, over the safe vocabulary of `log_threshold` and the support of mu
    (deviation 4). NaN stays NaN. ValueError on a temperature that is not positive or a threshold above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    rollout = rollout_logprobs.detach().double()
    # Samplers return rounded log-probabilities, whose probabilities do not add up to 1 exactly.
    rollout = rollout - rollout.logsumexp(-1, keepdim=True)
    # 0 log 0 is 0: a token that the sampler cannot generate adds nothing.
    is_drawable = rollout != -torch.inf
    logits = policy_logits.detach().double() / temperature
    if log_threshold is not None:
        logits = logits.masked_fill(~(safe_vocabulary(logits, log_threshold) | is_drawable), -torch.inf)
    log_ratio = torch.where(is_drawable, rollout - logits.log_softmax(-1), 0.0)
    return (rollout.exp() * log_ratio).sum(-1).clamp_min(0.0)


LARGEST_ROUNDING = 1e-6
"""A sampler's log-probs are rounded: if the listed tokens leave less mass than this, they are all that it can draw."""


def likeliest_divergences(
    likeliest: Float[Tensor, "tokens columns"], policy_logits: Float[Tensor, "tokens vocab"], temperature: float = 1.0
) -> Float[Tensor, " tokens"]:
    """Returns KL(mu || pi) of each token where all tokens but the sampler's likeliest count as one. No gradient.

    In nats and float64. Merging tokens never raises a KL, so this is a lower bound of `exact_divergences`. It is equal
    when the listed tokens are all that the sampler can draw. `likeliest` is from `token_statistics.likeliest_tokens`;
    neither side is pruned. After DPPO's top-k approximation (arXiv 2602.04879). Edge cases as in `exact_divergences`.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    rollout, ids = likeliest.detach().double().chunk(2, dim=-1)
    ids, is_drawable = ids.long(), rollout != -torch.inf
    logprobs = (policy_logits.detach().double() / temperature).log_softmax(-1)
    # Summed without the listed tokens, because 1 - sum would lose the digits of a small remainder.
    others = logprobs.scatter(-1, ids, -torch.inf).logsumexp(-1)
    remainder = 1 - rollout.exp().sum(-1)
    remainder = torch.where(remainder > LARGEST_ROUNDING, remainder, 0.0)
    listed = torch.where(is_drawable, rollout.exp() * (rollout - logprobs.gather(-1, ids)), 0.0).sum(-1)
    merged = torch.where(remainder > 0, remainder * (remainder.log() - others), 0.0)
    return (listed + merged).clamp_min(0.0)


def trust_region_mask_exact(
    kl: PerToken, response_mask: Mask, max_threshold: float | None = None, mean_threshold: float | None = None
) -> PerResponse:
    """Returns True where max_t KL <= max_threshold and mean_t KL <= mean_threshold; None skips a criterion.

    `kl` is KL(mu || pi) over the whole vocabulary at each position, in nats. Edge cases as in `trust_region_mask`.
    """
    mask = response_mask.bool()
    masked = torch.where(mask, kl.detach().double(), 0.0)
    return _accept(masked, masked, mask, max_threshold, mean_threshold)


def error_bounds(
    horizon: int,
    delta: float,
    max_token_tv: float | None = None,
    sequence_kl: float | None = None,
    sequence_tv: float | None = None,
    mean_token_tv: Sequence[float] | None = None,
) -> dict[str, float]:
    """Returns the paper's bounds on |J(pi) - J(mu) - surrogate| for rewards in [0, 1]; a bound above 1 says nothing.

    `horizon` T in tokens; `delta` the largest token KL(mu || pi). Missing arguments follow from these two:
    `max_token_tv` (eps) <= sqrt(delta / 2) by Pinsker, which also caps a given value; `sequence_kl` <= T delta by
    the chain rule; `sequence_tv` <= sqrt(sequence_kl / 2); `mean_token_tv`, the mean total variation at each of the T
    positions, <= eps. ValueError on a negative number, a horizon below 1, or a number of means other than T.
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1 token, not {horizon}")
    divergences = [delta, max_token_tv, sequence_kl, sequence_tv, *(mean_token_tv or [])]
    if any(value is not None and not value >= 0 for value in divergences):
        raise ValueError(f"divergences cannot be negative: {divergences[:4]}")
    if mean_token_tv is not None and len(mean_token_tv) != horizon:
        raise ValueError(f"mean_token_tv needs one value for each of {horizon} tokens, not {len(mean_token_tv)}")
    # Pinsker: total variation is at most the root of half the KL.
    pinsker = math.sqrt(delta / 2)
    eps = min(value for value in (max_token_tv, pinsker, 1.0) if value is not None)
    sequence_kl = min(horizon * delta, math.inf if sequence_kl is None else sequence_kl)
    sequence_tv = min(1.0, math.sqrt(sequence_kl / 2), math.inf if sequence_tv is None else sequence_tv)
    means = [eps] * horizon if mean_token_tv is None else mean_token_tv
    # After t tokens the KL of the prefix is at most t times delta, and its total variation at most 1.
    marginal = math.fsum(min(1.0, math.sqrt(past * delta / 2)) for past in range(horizon))
    bounds = {
        "classical": 2 * horizon * (horizon - 1) * eps**2,
        "coupling": 4 * eps * math.fsum(min(1.0, past * eps) for past in range(horizon)),
        "pinsker_marginal_kl": 4 * pinsker * marginal,
        "pinsker_marginal_tv": 4 * eps * marginal,
        "mixed_kl": 2 * horizon * math.sqrt(delta * sequence_kl),
        "mixed_tv": 4 * horizon * eps * sequence_tv,
        "adaptive": 4
        * math.fsum(
            mean * min(1.0, left * eps, math.sqrt(left * delta / 2))
            for mean, left in zip(means, range(horizon - 1, -1, -1), strict=True)
        ),
    }
    return {**bounds, "unified": min(bounds.values())}


def _accept(
    for_max: Tensor, for_mean: Tensor, mask: Tensor, max_threshold: float | None, mean_threshold: float | None
) -> Tensor:
    for threshold in (max_threshold, mean_threshold):
        if threshold is not None and not threshold >= 0:
            raise ValueError(f"a trust region threshold cannot be negative: {threshold}")
    accepted = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    # amax of no tokens is an error.
    if mask.shape[1] == 0:
        return accepted
    if max_threshold is not None:
        # NaN is not <= anything, so that a response with NaN is not accepted.
        accepted &= for_max.amax(-1) <= max_threshold
    if mean_threshold is not None:
        accepted &= for_mean.sum(-1) / mask.sum(-1).clamp_min(1) <= mean_threshold
    return accepted
