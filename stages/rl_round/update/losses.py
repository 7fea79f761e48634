"""The loss of one optimizer update: policy loss, rollout correction and KL to the reference, with its diagnostics.

Divisors are taken over the whole minibatch, so micro-batches and ranks add up, and a response or token that is left out
does not give the others more weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stages.algorithms.optimal_token_baseline import logit_gradient_proxy
from stages.algorithms.policy_losses import aggregate, cispo, clipped_surrogate, gspo, reinforce
from stages.engines.policies.packing import ResponseBatch
from stages.engines.policies.statistics import PolicyStatistics
from stages.engines.trainers.protocol import LossFunction
from stages.rl_round.params.rl import RlParams
from stages.rl_round.params.update import (
    Cispo,
    ClippedSurrogate,
    Gspo,
    NoReferenceKl,
    PolicyLossParams,
    ReferenceK1,
    ReferenceK2,
    ReferenceK3,
    ReferenceKlParams,
    Reinforce,
)
from stages.rl_round.update.corrections import Shares, Totals, select_tokens, shares_by_token
from stages.rl_round.update.training_samples import TrainingSamples

LOG_RATIO_LIMIT = 20.0
OVER_TOKENS = "sum/over_tokens/"
"""Begins the name of a sum that is to be divided by the count of tokens that gave gradient."""


def policy_loss(minibatch: TrainingSamples, params: RlParams) -> LossFunction:
    """The loss of one optimizer update on `minibatch`, as trainers take it: one micro-batch's share at a time."""
    totals = Totals(
        responses=len(minibatch),
        tokens=int(minibatch.response_mask.sum()),
        fresh_tokens=int(minibatch.response_mask[minibatch.is_fresh].sum()),
    )
    divisor = {
        "token_mean": totals.tokens,
        "sequence_mean_token_mean": totals.responses,
        "sequence_mean_token_sum": totals.responses,
        "constant": totals.responses * params.max_response_tokens,
    }[params.aggregation]

    def loss(
        statistics: PolicyStatistics, batch: ResponseBatch
    ) -> tuple[Tensor, Mapping[str, Tensor | float]]:
        selection = select_tokens(statistics, batch, params, totals)
        mask, fields = selection.mask, batch.fields
        token_loss, metrics = surrogate(
            params.policy_loss, statistics.logprobs, fields["proximal_logprobs"], fields["advantages"], mask
        )
        advantages = fields["advantages"]
        if selection.weights is not None:
            token_loss, advantages = token_loss * selection.weights, advantages * selection.weights
        diagnostics = {**selection.metrics, **_sums(metrics, mask)}
        if not isinstance(params.reference_kl, NoReferenceKl):
            pull, k3 = _reference_kl(
                params.reference_kl, statistics.logprobs, fields["reference_logprobs"], mask
            )
            token_loss = token_loss + params.reference_kl.coefficient * pull
            diagnostics["reference_kl/k3"] = k3.sum() / totals.tokens
        # Of all that was drawn: what gives no gradient is as much the policy's.
        entropy = statistics.entropy.detach() * batch.response_mask
        diagnostics["entropy/mean"] = entropy.sum() / totals.tokens
        diagnostics |= logprob_gap(
            statistics.logprobs.detach(),
            fields["rollout_logprobs"],
            fields["fresh_mask"],
            totals.fresh_tokens,
        )
        energy = logit_gradient_proxy(statistics.logprobs, statistics.sum_squared_probs)
        share = shares_by_token(batch.response_mask, params.aggregation, totals, divisor)
        diagnostics["sum/gradient_power"] = (energy * (share * mask * advantages).square()).sum()
        # Left-out tokens have loss 0 and stay in each response's count; a mask must not hide a NaN.
        poison = statistics.logprobs.detach().sum() * 0.0
        scalar = aggregate(token_loss, batch.response_mask, params.aggregation, divisor=divisor)
        return scalar + poison, diagnostics

    return loss


def surrogate(
    params: PolicyLossParams,
    policy_logprobs: Tensor,
    proximal_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy loss of each token that `params` names, 0 outside the mask, and its diagnostics."""
    tensors = policy_logprobs, proximal_logprobs, advantages, mask
    match params:
        case ClippedSurrogate():
            return clipped_surrogate(*tensors, params.clip_low, params.clip_high, params.dual_clip)
        case Gspo():
            return gspo(*tensors, params.clip_low, params.clip_high)
        case Cispo():
            return cispo(*tensors, params.clip_low, params.clip_high)
        case Reinforce():
            return reinforce(*tensors, clip_low=0.0, clip_high=0.0)


def _sums(metrics: Mapping[str, Tensor], mask: Tensor) -> Shares:
    """Means over a micro-batch's tokens as sums, which add up over micro-batches; a maximum stays one."""
    return {
        OVER_TOKENS + name: value * mask.sum() for name, value in metrics.items() if name != "ratio/max"
    } | {"ratio/token_max": metrics["ratio/max"]}


def _reference_kl(
    params: ReferenceKlParams, policy_logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The estimate of KL(policy || reference) at each token with gradient, and k3 without; 0 outside the mask."""
    log_ratio = torch.where(mask.bool(), policy_logprobs - reference_logprobs, 0.0)
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    k3 = torch.expm1(-log_ratio) + log_ratio
    match params:
        case ReferenceK1():
            return log_ratio, k3.detach()
        case ReferenceK2():
            return 0.5 * log_ratio.square(), k3.detach()
        case ReferenceK3():
            return k3, k3.detach()


def logprob_gap(
    policy_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, tokens: int
) -> dict[str, Tensor]:
    """How far the trainer's log-probs are from the sampler's: shares of the mean gap and of k3, and the maximum.

    Taken over fresh rollouts in a step's first update, where both sides should hold the same weights.
    k3 = r - 1 - log r with r = policy / rollout, an estimate of KL(rollout || policy) that is never negative.
    """
    gap = (policy_logprobs - rollout_logprobs) * mask
    return {
        "logprob_gap/mean": gap.abs().sum() / max(1, tokens),
        "logprob_gap/k3": ((gap.exp() - 1 - gap) * mask).sum() / max(1, tokens),
        "logprob_gap/token_max": gap.abs().max(),
    }
