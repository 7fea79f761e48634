"""Which tokens of a micro-batch give gradient, with what weight, and why the others do not.

Sources: truncated importance sampling and Trust Region Masking as in `stages.algorithms`; vocabulary pruning
(arXiv 2512.23087). Weights and masks carry no gradient. What is left out stays in the divisors.

Deviations: 1. the trainer's safe set is that of the current weights, so it moves within a step as they do; the ratio's
two sides may be normalised over sets that differ by what one update changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.algorithms.rollout_correction import importance_weights
from stages.algorithms.trust_region_masking import (
    sampled_divergences,
    trust_region_mask,
    trust_region_mask_exact,
)
from stages.engines.policies.packing import ResponseBatch
from stages.engines.policies.statistics import PolicyStatistics
from stages.rl_round.params.rl import RlParams
from stages.rl_round.params.update import ImportanceWeights, Reinforce, TrustRegionMasking
from stages.rl_round.update.by_staleness import shares_by_staleness

Shares = dict[str, Tensor]
"""Diagnostics of a micro-batch that add up over the minibatch; names that end in `_max` combine by their maximum."""


@dataclass(frozen=True)
class Totals:
    """What a whole minibatch holds, masked or not: the divisors of its loss and of its diagnostics."""

    responses: int
    tokens: int
    fresh_tokens: int


@dataclass(frozen=True)
class Selection:
    """The tokens that give gradient."""

    mask: Tensor
    """1 where a token gives gradient, [responses, tokens]."""
    weights: Tensor | None
    """Importance weights, [responses, tokens]; None where they are all 1."""
    metrics: Shares


def select_tokens(
    statistics: PolicyStatistics, batch: ResponseBatch, params: RlParams, totals: Totals
) -> Selection:
    """Overlong filtering, vocabulary pruning and rollout correction, in this order, each counted by itself."""
    policy_logprobs = statistics.logprobs.detach()
    mask, response_mask = batch.fields["loss_mask"], batch.response_mask
    metrics = {"mask/overlong_fraction": _emptied(response_mask, mask) / totals.responses}
    if params.vocabulary_pruning:
        mask, counted = _inside_safe_set(statistics.outside, mask, response_mask, params, totals)
        metrics |= counted
    before = mask
    if isinstance(params.rollout_correction, TrustRegionMasking):
        mask, counted = _inside_trust_region(statistics, batch, mask, params.rollout_correction, totals)
        metrics |= counted
    weights, in_use, weighed = _weights(policy_logprobs, batch, mask, params)
    metrics |= weighed
    if (staleness := batch.fields.get("staleness")) is not None:
        after = mask if isinstance(params.rollout_correction, TrustRegionMasking) else None
        metrics |= shares_by_staleness(staleness, in_use, before, after)
    metrics["mask/fraction_dropped"] = _emptied(response_mask, mask) / totals.responses
    metrics["mask/token_fraction_dropped"] = (response_mask.sum() - mask.sum()) / totals.tokens
    return Selection(mask, weights, metrics)


def _emptied(before: Tensor, after: Tensor) -> Tensor:
    """How many responses have a token in the one mask and none in the other."""
    return (before.any(-1) & ~after.any(-1)).sum().float()


def _inside_safe_set(
    outside: Tensor, mask: Tensor, response_mask: Tensor, params: RlParams, totals: Totals
) -> tuple[Tensor, Shares]:
    is_outside = outside & response_mask.bool()
    match params.vocabulary_pruning.outside:
        case "drop_token":
            kept = mask * ~is_outside
        case "drop_response":
            kept = mask * ~is_outside.any(-1, keepdim=True)
    return kept, {
        "pruning/outside_fraction": is_outside.sum() / totals.tokens,
        "mask/outside_fraction": _emptied(mask, kept) / totals.responses,
        "mask/outside_token_fraction": (mask.sum() - kept.sum()) / totals.tokens,
    }


def _inside_trust_region(
    statistics: PolicyStatistics,
    batch: ResponseBatch,
    mask: Tensor,
    region: TrustRegionMasking,
    totals: Totals,
) -> tuple[Tensor, Shares]:
    """Judges every response by all its tokens, also those that give no gradient for another reason."""
    response_mask = batch.response_mask
    if region.divergence == "exact":
        for_max = for_mean = statistics.divergence
        within_max = trust_region_mask_exact(for_max, response_mask, max_threshold=region.max_threshold)
        within_mean = trust_region_mask_exact(for_mean, response_mask, mean_threshold=region.mean_threshold)
    else:
        pair = statistics.logprobs.detach(), batch.fields["rollout_logprobs"], response_mask
        for_max, for_mean = sampled_divergences(*pair)
        within_max = trust_region_mask(*pair, max_threshold=region.max_threshold)
        within_mean = trust_region_mask(*pair, mean_threshold=region.mean_threshold)
    accepted = within_max & within_mean
    kept = mask * accepted[:, None]
    for_max, for_mean = for_max * accepted[:, None], for_mean * accepted[:, None]
    is_response = response_mask.any(-1)
    counts = {
        "trust_region/acceptance_rate": accepted,
        "mask/trust_region_max_fraction": ~within_max,
        "mask/trust_region_mean_fraction": ~within_mean,
    }
    return kept, {
        **{name: (value & is_response).sum() / totals.responses for name, value in counts.items()},
        "trust_region/divergence_max": for_max.amax(),
        "sum/accepted_divergence": for_mean.sum() / totals.responses,
    }


def _weights(
    policy_logprobs: Tensor, batch: ResponseBatch, mask: Tensor, params: RlParams
) -> tuple[Tensor | None, Tensor, Shares]:
    """The weights in use, or None; those or the raw ratios, and what an effective sample size of them is made of."""
    correction, rollout_logprobs = params.rollout_correction, batch.fields["rollout_logprobs"]
    if not isinstance(correction, ImportanceWeights):
        ratio = importance_weights(policy_logprobs, rollout_logprobs, mask, "token", math.inf)
        return None, ratio, _sums(ratio, mask)
    # A clipped loss brings the ratio to the proximal policy itself; REINFORCE has none.
    is_whole = isinstance(params.policy_loss, Reinforce)
    corrected = policy_logprobs if is_whole else batch.fields["proximal_logprobs"]
    weights = importance_weights(
        corrected, rollout_logprobs, batch.response_mask, correction.level, correction.cap
    )
    capped = (weights >= correction.cap) & mask.bool()
    return weights, weights, {**_sums(weights * mask, mask), "sum/capped_tokens": capped.sum()}


def _sums(weights: Tensor, mask: Tensor) -> Shares:
    exact = weights.double()
    return {
        "sum/weights": exact.sum(),
        "sum/squared_weights": exact.square().sum(),
        "sum/weighted_tokens": mask.sum(),
    }


def effective_sample_fraction(sums: dict[str, float]) -> float:
    """(sum w)^2 / (n sum w^2) over the n tokens that give gradient; 0 when there is none."""
    spread = sums["sum/weighted_tokens"] * sums["sum/squared_weights"]
    return sums["sum/weights"] ** 2 / spread if spread > 0 else 0.0


def shares_by_token(mask: Tensor, aggregation: str, totals: Totals, divisor: float) -> Tensor:
    """What each token's loss is multiplied by on its way into the loss of the minibatch: [responses, tokens]."""
    if aggregation == "sequence_mean_token_mean":
        return mask / mask.sum(-1, keepdim=True).clamp_min(1) / divisor
    return torch.full_like(mask, 1.0 / divisor) * mask
