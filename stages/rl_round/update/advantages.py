"""Advantages per token: the outcome stream and the repetition stream, each with its own discount.

Sources: the papers behind `stages.algorithms.group_advantages` and `optimal_token_baseline`; two streams with their own
discounts as in Demystifying Long CoT (arXiv 2502.03373, section 4.4), without a critic: each is a reward to go.

Deviations: 1. estimators of whole responses centre the outcome only; the discounted penalty to go is added as it is,
so that a repeated token is always pushed down. 2. With the optimal token baseline both streams are part of the return
that the baseline is taken from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stages.algorithms.group_advantages import group_normalized, leave_one_out, length_weighted
from stages.algorithms.length_rewards import discounted_to_go, ngram_repetition_penalty
from stages.algorithms.optimal_token_baseline import logit_gradient_proxy, optimal_token_baseline
from stages.algorithms.rollout_correction import importance_weights
from stages.rl_round.params.rl import RlParams
from stages.rl_round.params.update import (
    GroupNormalized,
    ImportanceWeights,
    LeaveOneOut,
    LengthWeighted,
    OptimalTokenBaseline,
    PlainReward,
)
from stages.rl_round.update.training_samples import TrainedRollout, rows


def with_advantages(rollouts: Sequence[TrainedRollout], params: RlParams) -> list[TrainedRollout]:
    """The rollouts with their advantages; for the optimal token baseline they must have trainer statistics."""
    if not rollouts:
        return []
    rewards = torch.tensor([item.rollout.reward for item in rollouts])
    group_ids = torch.tensor([item.group for item in rollouts])
    match params.advantage:
        case GroupNormalized(divide_by_std=divide_by_std):
            whole = group_normalized(rewards, group_ids, divide_by_std=divide_by_std)
        case LeaveOneOut():
            whole = leave_one_out(rewards, group_ids)
        case LengthWeighted():
            lengths = torch.tensor([item.response_tokens for item in rollouts])
            whole = length_weighted(rewards, lengths, group_ids)
        case PlainReward():
            whole = rewards
        case OptimalTokenBaseline():
            return _with_token_baseline(rollouts, rewards, group_ids, params)
    if params.reward_discount == 1 and params.repetition_penalty is None:
        return [
            replace(item, advantages=[advantage] * item.response_tokens)
            for item, advantage in zip(rollouts, whole.tolist(), strict=True)
        ]
    mask = _response_mask(rollouts)
    penalties = _penalties(rollouts, params, mask)
    per_token = _to_go_of_outcome(whole, mask, params) + _to_go_of_penalties(penalties, mask, params)
    return _spread(rollouts, per_token, penalties)


def _with_token_baseline(
    rollouts: Sequence[TrainedRollout], rewards: Tensor, group_ids: Tensor, params: RlParams
) -> list[TrainedRollout]:
    mask = _response_mask(rollouts)
    penalties = _penalties(rollouts, params, mask)
    returns = _to_go_of_outcome(rewards, mask, params) + _to_go_of_penalties(penalties, mask, params)
    proximal = rows((item.proximal_logprobs for item in rollouts), mask)
    squares = rows((item.sum_squared_probs for item in rollouts), mask)
    weights = None
    if params.advantage.is_importance_weighted and isinstance(params.rollout_correction, ImportanceWeights):
        sampled = rows((item.rollout.sample.logprobs for item in rollouts), mask)
        correction = params.rollout_correction
        weights = importance_weights(proximal, sampled, mask, correction.level, correction.cap)
    baseline = optimal_token_baseline(
        returns, mask, logit_gradient_proxy(proximal, squares), group_ids, weights, params.advantage.lone_tail
    )
    return _spread(rollouts, (returns - baseline) * mask, penalties)


def _response_mask(rollouts: Sequence[TrainedRollout]) -> Tensor:
    lengths = torch.tensor([item.response_tokens for item in rollouts])
    return (torch.arange(int(lengths.max()))[None] < lengths[:, None]).float()


def _to_go_of_outcome(outcomes: Tensor, mask: Tensor, params: RlParams) -> Tensor:
    """outcome * discount^(T - 1 - t) at token t of a response of T tokens: (responses, tokens)."""
    is_last = mask - torch.nn.functional.pad(mask, (0, 1))[:, 1:]
    return discounted_to_go(outcomes[:, None] * is_last, mask, params.reward_discount)


def _penalties(rollouts: Sequence[TrainedRollout], params: RlParams, mask: Tensor) -> Tensor:
    penalty = params.repetition_penalty
    if penalty is None:
        return torch.zeros_like(mask)
    return rows(
        (
            ngram_repetition_penalty(item.rollout.sample.token_ids, penalty.n, penalty.penalty).tolist()
            for item in rollouts
        ),
        mask,
    )


def _to_go_of_penalties(penalties: Tensor, mask: Tensor, params: RlParams) -> Tensor:
    if params.repetition_penalty is None:
        return penalties
    return discounted_to_go(penalties, mask, params.repetition_penalty.discount)


def _spread(
    rollouts: Sequence[TrainedRollout], advantages: Tensor, penalties: Tensor
) -> list[TrainedRollout]:
    return [
        replace(
            item,
            advantages=row[: item.response_tokens].tolist(),
            penalised_tokens=int(penalty.count_nonzero()),
        )
        for item, row, penalty in zip(rollouts, advantages, penalties, strict=True)
    ]
