"""The numbers of one RL step that come from its rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from stages.engines.verifier.verifier import Verdict
from stages.rl_round.params.rewards import CosineReward, VerdictReward
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.dynamic_sampling import Batch, DrawState
from stages.rl_round.rollouts.rollouts import Rollout, verdict_reward
from stages.rl_round.update.training_samples import TrainedRollout


def batch_metrics(
    batch: Batch, trained: Sequence[TrainedRollout], drawing: DrawState, params: RlParams
) -> dict[str, float]:
    """Rewards, accuracy and lengths of everything drawn in the step (an unbiased view of the policy), and what was
    trained on. A step that drew nothing, because surplus filled the batch, reports the batch instead.
    """
    groups = batch.drawn or batch.groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    tokens = [len(rollout.sample.token_ids) for rollout in rollouts]
    return {
        "reward/mean": _mean([rollout.reward for rollout in rollouts if rollout.is_decided]),
        "accuracy/mean": _mean([float(rollout.verdict is Verdict.CORRECT) for rollout in rollouts]),
        "verdict/undecided_fraction": _mean([float(not rollout.is_decided) for rollout in rollouts]),
        "verdict/unparsed_fraction": _mean(
            [float(rollout.verdict is Verdict.UNPARSED) for rollout in rollouts]
        ),
        "length/response_tokens_mean": _mean(tokens),
        "length/truncated_fraction": _mean([float(rollout.sample.is_truncated) for rollout in rollouts]),
        "length/punished_fraction": _mean([float(_is_punished(rollout, params)) for rollout in rollouts]),
        "groups/drawn": len(batch.drawn),
        "groups/trained": len(batch.groups),
        "groups/carried": len(drawing.carried),
        "groups/too_stale": batch.too_stale,
        "groups/draws": batch.draws,
        "groups/signal_fraction": drawing.signal_fraction,
        **_advantage_metrics(trained),
        **_penalty_metrics(trained, params),
        "tokens/sampled": sum(len(r.sample.token_ids) for group in batch.drawn for r in group.rollouts),
        "tokens/trained": sum(item.response_tokens for item in trained),
    }


def _advantage_metrics(trained: Sequence[TrainedRollout]) -> dict[str, float]:
    """Mean size by response, and the variance over all tokens that the batch holds."""
    tokens = torch.tensor([value for item in trained for value in item.advantages], dtype=torch.float64)
    return {
        "advantage/abs_mean": _mean(
            [math.fsum(map(abs, item.advantages)) / max(1, item.response_tokens) for item in trained]
        ),
        "advantage/variance": float(tokens.var(correction=0)) if len(tokens) else 0.0,
    }


def _penalty_metrics(trained: Sequence[TrainedRollout], params: RlParams) -> dict[str, float]:
    """How much repetition was punished, where it is."""
    if params.repetition_penalty is None:
        return {}
    tokens = sum(item.response_tokens for item in trained)
    penalised = sum(item.penalised_tokens for item in trained)
    return {
        "repetition/token_fraction": penalised / max(1, tokens),
        "repetition/response_fraction": _mean([float(item.penalised_tokens > 0) for item in trained]),
        "repetition/penalty_mean": params.repetition_penalty.penalty * penalised / max(1, len(trained)),
    }


def _is_punished(rollout: Rollout, params: RlParams) -> bool:
    """True where length cost the response a part of what its verdict alone is worth."""
    if not rollout.is_decided:
        return False
    match params.reward:
        case VerdictReward():
            return rollout.reward < verdict_reward(params.reward, rollout.verdict)
        case CosineReward():
            return rollout.reward == params.reward.exceeded


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
