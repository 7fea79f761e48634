"""Corrections for the gap between the trainer's and the sampler's log-probabilities: weights, and masks of responses.

Sources: truncated importance sampling (Yao et al., fengyao.notion.site/off-policy-rl); IcePop (Ring team,
ringtech.notion.site, 2025); the mask by the geometric mean of a response's ratios (Liu et al., "When Speed Kills
Stability", 2025); DeepSeek-V3.2's mask of bad responses (arXiv 2512.02556, off-policy sequence masking); Trust Region
Masking (arXiv 2512.23075), algorithm 1, its table of bounds and its length-neutral appendix; verl
`trainer/ppo/rollout_corr_helper.py` at 1dda039b, for the clamp of the log-ratio to +-20, the estimators
(`seq_max_k2`, `seq_mean_k3`) and weights with mean 1.

The log-probabilities that the caller passes to `importance_weights` as `policy_logprobs` decide the mode: the proximal
ones, multiplied with a clipped surrogate (decoupled), or the current ones, multiplied with REINFORCE (bypass).

A mask drops a whole response. The guarantee of trust region masking holds only for the exact KL; k2 and k3 of the
sampled tokens approximate it. The caller multiplies the response mask by the result and divides the loss by the count
of *all* responses or tokens, not of the accepted ones.

Weights and masks have no gradient, and values outside the response mask have no influence.

Deviations:
1. With vocabulary pruning on both sides, the exact KL uses the union of the policy's and the sampler's token sets. The
   sets differ at their border, where one extra token would otherwise make the KL infinite.
2. A response of one token has length-neutral score 0: the paper's weight of the last token is 0, and 0 / 0 its score.
3. The caller's masks compare the current policy with the sampler, in each update anew. verl's decoupled mode compares
   the proximal policy, once a step. Its `seq_mean_k1` bounds the mean of mu / pi, where its documentation, slime and
   this module bound that of pi / mu.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from stages.algorithms.policy_losses import LOG_RATIO_LIMIT, Mask, PerToken
from stages.algorithms.token_statistics import safe_vocabulary

PerResponse = Bool[Tensor, " batch"]


def importance_weights(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask, level: str, cap: float
) -> PerToken:
    """Returns min(pi / mu, cap): each token's ratio (level "token"), or for all tokens of a response the product of
    their ratios (level "sequence").

    Truncated only from above. 0 outside the mask.
    """
    mask = response_mask.bool()
    log_ratio = torch.where(mask, policy_logprobs.detach() - rollout_logprobs.detach(), 0.0)
    if level == "sequence":
        # A product of thousands of ratios: summed in logarithms, and clamped before the exponential.
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
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
    """Returns each token's ratio pi / mu where it lies in [low, high], and 0 elsewhere (IcePop: 0.5 and 5)."""
    ratio = importance_weights(policy_logprobs, rollout_logprobs, response_mask, "token", math.inf)
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


def geometric_mask(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask, low: float, high: float
) -> PerResponse:
    """Returns True where the geometric mean of a response's ratios pi / mu lies in [low, high] (0.999 and 1.001).

    A response without tokens is accepted; one with NaN is not.
    """
    mean = _mean_log_ratio(policy_logprobs, rollout_logprobs, response_mask).exp()
    return (mean >= low) & (mean <= high)


def bad_response_mask(
    policy_logprobs: PerToken,
    rollout_logprobs: PerToken,
    advantages: PerToken,
    response_mask: Mask,
    max_divergence: float,
) -> PerResponse:
    """Returns False for responses with a negative advantage whose mean log(mu / pi) exceeds `max_divergence`, in nats.

    Such a response is far from what the policy would write, and learning to avoid it says little about the policy. The
    advantage of a response is the mean over its tokens. One with NaN is not accepted.
    """
    mask = response_mask.bool()
    mean = torch.where(mask, advantages.detach(), 0.0).sum(-1) / mask.sum(-1).clamp_min(1)
    divergence = -_mean_log_ratio(policy_logprobs, rollout_logprobs, response_mask)
    return (mean >= 0) & ~divergence.isnan() | (divergence <= max_divergence)


def length_neutral_scores(
    policy_logprobs: PerToken,
    rollout_logprobs: PerToken,
    response_mask: Mask,
    token_kl: float | None,
    token_tv: float | None,
) -> Float[Tensor, " batch"]:
    """Returns sum_t w_t |rho_t - 1| / sum_t w_t of each response (LN-TRM), in float64; rho = pi / mu.

    w_t = min(1, (T - t) token_tv, sqrt((T - t) token_kl / 2)) for the policy's t-th of T tokens: an error at an early
    token reaches more of the response. None leaves a term out; with both out the score is the plain mean (SER). A
    response without tokens has score 0; NaN stays NaN.
    """
    mask = response_mask.bool()
    errors = _log_ratio(policy_logprobs, rollout_logprobs, mask).expm1().abs()
    left = mask.sum(-1, keepdim=True) - mask.cumsum(-1)  # the policy's tokens after each one
    weights = mask.double()
    if token_tv is not None:
        weights = torch.minimum(weights, left * token_tv)
    if token_kl is not None:
        weights = torch.minimum(weights, (left * token_kl / 2).sqrt())
    total = weights.sum(-1)
    return (errors * weights).sum(-1) / torch.where(total > 0, total, 1.0)


def _log_ratio(policy_logprobs: PerToken, rollout_logprobs: PerToken, mask: Tensor) -> Tensor:
    """Returns the clamped log(pi / mu) of each token in float64, 0 outside the mask."""
    log_ratio = torch.where(mask, policy_logprobs.detach().double() - rollout_logprobs.detach().double(), 0.0)
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _mean_log_ratio(policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask) -> Tensor:
    """Returns the mean of log(pi / mu) over each response's tokens: [batch]."""
    mask = response_mask.bool()
    return _log_ratio(policy_logprobs, rollout_logprobs, mask).sum(-1) / mask.sum(-1).clamp_min(1)


def trust_region_masks(
    for_max: PerToken,
    for_mean: PerToken,
    response_mask: Mask,
    max_threshold: float | None,
    mean_threshold: float | None,
) -> tuple[PerResponse, PerResponse]:
    """Returns where max_t for_max <= max_threshold, and where mean_t for_mean <= mean_threshold; None accepts all.

    Divergences in nats: k2 and k3 of `sampled_divergences`, or twice KL(mu || pi) over the whole vocabulary. The
    paper's stable settings: 0.05 for the maximum, 0.001 for the mean. A response without tokens is accepted; one with
    NaN is not.
    """
    mask = response_mask.bool()
    accepted = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    # amax of no tokens is an error.
    if mask.shape[1] == 0:
        return accepted, accepted
    for_max, for_mean = (torch.where(mask, one.detach().double(), 0.0) for one in (for_max, for_mean))
    # NaN is not <= anything, so that a response with NaN is not accepted.
    within_max = accepted if max_threshold is None else for_max.amax(-1) <= max_threshold
    means = for_mean.sum(-1) / mask.sum(-1).clamp_min(1)
    return within_max, accepted if mean_threshold is None else means <= mean_threshold


def sampled_divergences(
    policy_logprobs: PerToken, rollout_logprobs: PerToken, response_mask: Mask
) -> tuple[PerToken, PerToken]:
    """Returns k2 = 0.5 log^2 r and k3 = r - 1 - log r of the sampled tokens, r = pi / mu, in nats and float64.

    log r is clamped to +-20; both are 0 outside the mask.
    """
    log_ratio = _log_ratio(policy_logprobs, rollout_logprobs, response_mask.bool())
    # expm1(x) - x keeps the digits that exp(x) - 1 - x loses for small x.
    return 0.5 * log_ratio.square(), log_ratio.expm1() - log_ratio


def exact_divergences(
    rollout_logprobs: Float[Tensor, "tokens vocab"],
    policy_logits: Float[Tensor, "tokens vocab"],
    temperature: float = 1.0,
    log_threshold: float | None = None,
) -> Float[Tensor, " tokens"]:
    """KL(mu || pi) = sum_v mu_v (log mu_v - log pi_v) of each token, in nats and float64, never below 0.

    mu is given by its log-probs, -inf where the sampler cut a token off; they are normalised to undo rounding. pi is
    the softmax of the logits over the temperature, over the safe vocabulary of `log_threshold` and the support of mu
    (deviation 1). NaN stays NaN. ValueError on a temperature that is not positive.
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
    likeliest: Float[Tensor, "tokens columns"],
    policy_logits: Float[Tensor, "tokens vocab"],
    temperature: float = 1.0,
    only_listed: bool = False,
) -> Float[Tensor, " tokens"]:
    """Returns KL(mu || pi) of each token where all tokens but the sampler's likeliest count as one.

    In nats and float64. Merging tokens never raises a KL, so this is a lower bound of `exact_divergences`. It is equal
    when the listed tokens are all that the sampler can draw. `likeliest` is from `token_statistics.likeliest_tokens`;
    neither side is pruned. With `only_listed` both are renormalised over the listed tokens that the sampler can draw.
    After DPPO's top-k approximation (arXiv 2602.04879). Edge cases as in `exact_divergences`.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    rollout, ids = likeliest.detach().double().chunk(2, dim=-1)
    ids, is_drawable = ids.long(), rollout != -torch.inf
    logits = policy_logits.detach().double() / temperature
    if only_listed:
        policy = logits.gather(-1, ids).masked_fill(~is_drawable, -torch.inf).log_softmax(-1)
        rollout = rollout.log_softmax(-1)
        return torch.where(is_drawable, rollout.exp() * (rollout - policy), 0.0).sum(-1).clamp_min(0.0)
    logprobs = logits.log_softmax(-1)
    # Summed without the listed tokens, because 1 - sum would lose the digits of a small remainder.
    others = logprobs.scatter(-1, ids, -torch.inf).logsumexp(-1)
    remainder = 1 - rollout.exp().sum(-1)
    remainder = torch.where(remainder > LARGEST_ROUNDING, remainder, 0.0)
    listed = torch.where(is_drawable, rollout.exp() * (rollout - logprobs.gather(-1, ids)), 0.0).sum(-1)
    merged = torch.where(remainder > 0, remainder * (remainder.log() - others), 0.0)
    return (listed + merged).clamp_min(0.0)


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
