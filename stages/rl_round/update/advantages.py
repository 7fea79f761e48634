"""Advantages per token: the outcome stream and the repetition stream, each with its own discount.

Sources: the papers behind `stages.algorithms.advantages` and `optimal_token_baseline`; two streams with their own
discounts as in Demystifying Long CoT (arXiv 2502.03373, section 4.4), without a critic: each is a reward to go.

Deviations: 1. estimators of whole responses centre the outcome only; the discounted penalty to go is added as it is,
so that a repeated token is always pushed down. 2. With the optimal token baseline both streams are part of the return
that the baseline is taken from.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stages.algorithms.advantages import (
    group_normalized,
    leave_one_out,
    length_weighted,
    logit_gradient_proxy,
    optimal_token_baseline,
)
from stages.algorithms.length_rewards import discounted_to_go, ngram_repetition_penalty
from stages.algorithms.policy_losses import importance_weights
from stages.rl_round.methods import (
    GroupNormalized,
    ImportanceWeights,
    LeaveOneOut,
    LengthWeighted,
    OptimalTokenBaseline,
    PlainReward,
)
from stages.rl_round.params import RlParams
from stages.rl_round.update.training_samples import TrainingSamples, rows


def with_advantages(samples: TrainingSamples, params: RlParams) -> TrainingSamples:
    """The samples with their advantages; for the optimal token baseline they must have trainer statistics."""
    rewards, group_ids, mask = samples.rewards, samples.group_ids, samples.response_mask
    penalties = _penalties(samples, params)
    samples = replace(samples, penalised=penalties != 0)
    match params.advantage:
        case GroupNormalized(divide_by_std=divide_by_std):
            whole = group_normalized(rewards, group_ids, divide_by_std=divide_by_std)
        case LeaveOneOut():
            whole = leave_one_out(rewards, group_ids)
        case LengthWeighted():
            whole = length_weighted(rewards, torch.tensor(samples.response_tokens), group_ids)
        case PlainReward():
            whole = rewards
        case OptimalTokenBaseline():
            return replace(samples, advantages=_beyond_token_baseline(samples, params, penalties))
    per_token = _to_go_of_outcome(whole, mask, params) + _to_go_of_penalties(penalties, mask, params)
    return replace(samples, advantages=per_token)


def _beyond_token_baseline(samples: TrainingSamples, params: RlParams, penalties: Tensor) -> Tensor:
    mask, proximal = samples.response_mask, samples.proximal_logprobs
    returns = _to_go_of_outcome(samples.rewards, mask, params) + _to_go_of_penalties(penalties, mask, params)
    weights = None
    if params.advantage.is_importance_weighted and isinstance(params.rollout_correction, ImportanceWeights):
        correction = params.rollout_correction
        weights = importance_weights(proximal, samples.rollout_logprobs, mask, correction.level, correction.cap)
    proxy = logit_gradient_proxy(proximal, samples.sum_squared_probs)
    baseline = optimal_token_baseline(returns, mask, proxy, samples.group_ids, weights, params.advantage.lone_tail)
    return (returns - baseline) * mask


def _to_go_of_outcome(outcomes: Tensor, mask: Tensor, params: RlParams) -> Tensor:
    """outcome * discount^(T - 1 - t) at token t of a response of T tokens: (responses, tokens)."""
    if params.reward_discount == 1:
        return outcomes[:, None] * mask
    is_last = mask - torch.nn.functional.pad(mask, (0, 1))[:, 1:]
    return discounted_to_go(outcomes[:, None] * is_last, mask, params.reward_discount)


def _penalties(samples: TrainingSamples, params: RlParams) -> Tensor:
    """The repetition penalty of each token: (responses, tokens)."""
    penalty = params.repetition_penalty
    if penalty is None:
        return torch.zeros_like(samples.response_mask)
    found = (
        ngram_repetition_penalty(rollout.sample.token_ids, penalty.n, penalty.penalty).tolist()
        for rollout in samples.rollouts
    )
    return rows(found, samples.response_mask)


def _to_go_of_penalties(penalties: Tensor, mask: Tensor, params: RlParams) -> Tensor:
    if params.repetition_penalty is None:
        return penalties
    return discounted_to_go(penalties, mask, params.repetition_penalty.discount)
