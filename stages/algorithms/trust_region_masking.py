"""Trust region masking: a response whose divergence leaves the trust region is dropped whole.

Source: Trust Region Masking (arXiv 2512.23075), algorithm 1 and its table of bounds; estimators as in verl
`trainer/ppo/rollout_corr_helper.py` at 1dda039b (`seq_max_k2`, `seq_mean_k3`). The guarantee holds for the exact KL
only; k2 and k3 of the sampled tokens stand in for it. The caller multiplies the response mask by the result and
divides the loss by the count of *all* responses or tokens, not of the accepted ones.

Deviations: 1. with vocabulary pruning on both sides the policy's set is joined with the sampler's before the exact KL
is taken: the sets differ at their border, where one token more would otherwise make the KL infinite.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from stages.algorithms.vocabulary_pruning import safe_vocabulary

PerToken = Float[Tensor, "batch tokens"]
Mask = Shaped[Tensor, "batch tokens"]
PerResponse = Bool[Tensor, " batch"]

LOG_RATIO_LIMIT = 20.0


def trust_region_mask(
    policy_logprobs: PerToken,
    rollout_logprobs: PerToken,
    response_mask: Mask,
    max_threshold: float | None = None,
    mean_threshold: float | None = None,
) -> PerResponse:
    """True where max_t k2 <= max_threshold and mean_t k3 <= mean_threshold; None leaves a criterion out.

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
    return 0.5 * log_ratio.square(), log_ratio.expm1() - log_ratio


def exact_divergences(
    rollout_logprobs: Float[Tensor, "tokens vocab"],
    policy_logits: Float[Tensor, "tokens vocab"],
    temperature: float = 1.0,
    log_threshold: float | None = None,
) -> Float[Tensor, " tokens"]:
    """KL(mu || pi) = sum_v mu_v (log mu_v - log pi_v) of each token, in nats and float64, never below 0. No gradient.

    mu is given by its log-probs, -inf where the sampler had cut it off; its rounding is normalised away. pi is the
    softmax of the logits over the temperature, over the safe vocabulary of `log_threshold` and the support of mu
    (deviation 1). NaN stays NaN. ValueError on a temperature that is not positive or a threshold above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    rollout = rollout_logprobs.detach().double()
    rollout = rollout - rollout.logsumexp(-1, keepdim=True)
    is_drawable = rollout != -torch.inf
    logits = policy_logits.detach().double() / temperature
    if log_threshold is not None:
        logits = logits.masked_fill(~(safe_vocabulary(logits, log_threshold) | is_drawable), -torch.inf)
    log_ratio = torch.where(is_drawable, rollout - logits.log_softmax(-1), 0.0)
    return (rollout.exp() * log_ratio).sum(-1).clamp_min(0.0)


def trust_region_mask_exact(
    kl: PerToken, response_mask: Mask, max_threshold: float | None = None, mean_threshold: float | None = None
) -> PerResponse:
    """True where max_t KL <= max_threshold and mean_t KL <= mean_threshold; None leaves a criterion out.

    `kl` is KL(mu || pi) over the whole vocabulary at each position, in nats. Edges as in `trust_region_mask`.
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
    """The paper's bounds on |J(pi) - J(mu) - surrogate| for rewards in [0, 1]; above 1 a bound says nothing.

    `horizon` T in tokens; `delta` the largest token KL(mu || pi). What is not given follows from them:
    `max_token_tv` (eps) <= sqrt(delta / 2) by Pinsker, also where a larger value is given; `sequence_kl` <= T delta by
    the chain rule; `sequence_tv` <= sqrt(sequence_kl / 2); `mean_token_tv`, the mean total variation at each of the T
    positions, <= eps. ValueError on a negative number, a horizon below 1, or means that are not T.
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1 token, not {horizon}")
    given = [delta, max_token_tv, sequence_kl, sequence_tv, *(mean_token_tv or [])]
    if any(value is not None and not value >= 0 for value in given):
        raise ValueError(f"divergences cannot be negative: {given[:4]}")
    if mean_token_tv is not None and len(mean_token_tv) != horizon:
        raise ValueError(
            f"mean_token_tv needs one value for each of {horizon} tokens, not {len(mean_token_tv)}"
        )
    pinsker = math.sqrt(delta / 2)
    eps = min(value for value in (max_token_tv, pinsker, 1.0) if value is not None)
    sequence_kl = min(horizon * delta, math.inf if sequence_kl is None else sequence_kl)
    sequence_tv = min(1.0, math.sqrt(sequence_kl / 2), math.inf if sequence_tv is None else sequence_tv)
    means = [eps] * horizon if mean_token_tv is None else mean_token_tv
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
    if mask.shape[1] == 0:
        return accepted
    if max_threshold is not None:
        accepted &= for_max.amax(-1) <= max_threshold
    if mean_threshold is not None:
        accepted &= for_mean.sum(-1) / mask.sum(-1).clamp_min(1) <= mean_threshold
    return accepted
