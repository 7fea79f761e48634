"""The numbers of one RL step that come from its rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from stages.algorithms.answers.verdicts import Verdict
from stages.rl_round.params.rewards import CosineReward, VerdictReward
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.records import Batch, Rollout
from stages.rl_round.rollouts.scoring import verdict_reward
from stages.rl_round.update.training_samples import TrainingSamples


def step_metrics(batch: Batch, trained: TrainingSamples, params: RlParams) -> dict[str, float]:
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
        "verdict/exhausted_fraction": _mean(
            [float(rollout.verdict is Verdict.EXHAUSTED) for rollout in rollouts]
        ),
        "length/response_tokens_mean": _mean(tokens),
        "length/truncated_fraction": _mean([float(rollout.sample.is_truncated) for rollout in rollouts]),
        "length/punished_fraction": _mean([float(_is_punished(rollout, params)) for rollout in rollouts]),
        "groups/drawn": len(batch.drawn),
        "groups/trained": len(batch.groups),
        "groups/carried": batch.carried,
        "groups/too_stale": batch.too_stale,
        "groups/draws": batch.draws,
        "groups/signal_fraction": batch.signal_fraction,
        **_advantage_metrics(trained),
        **_penalty_metrics(trained, params),
        "tokens/sampled": sum(len(r.sample.token_ids) for group in batch.drawn for r in group.rollouts),
        "tokens/trained": int(trained.response_mask.sum()),
        **batch.agreement,
    }


def _advantage_metrics(trained: TrainingSamples) -> dict[str, float]:
    """Mean size by response, and the variance over all tokens that the batch holds; 0 without samples."""
    if not len(trained):
        return {"advantage/abs_mean": 0.0, "advantage/variance": 0.0}
    advantages, mask = trained.advantages.double(), trained.response_mask
    by_response = (advantages.abs() * mask).sum(-1) / mask.sum(-1).clamp_min(1)
    return {
        "advantage/abs_mean": float(by_response.mean()),
        "advantage/variance": float(advantages[mask.bool()].var(correction=0)),
    }


def _penalty_metrics(trained: TrainingSamples, params: RlParams) -> dict[str, float]:
    """How much repetition was punished, where it is."""
    if params.repetition_penalty is None:
        return {}
    penalised = int(trained.penalised.sum())
    responses = max(1, len(trained))
    return {
        "repetition/token_fraction": penalised / max(1, int(trained.response_mask.sum())),
        "repetition/response_fraction": int(trained.penalised.any(-1).sum()) / responses,
        "repetition/penalty_mean": params.repetition_penalty.penalty * penalised / responses,
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
