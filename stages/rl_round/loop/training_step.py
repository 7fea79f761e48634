"""One step of training on a batch, the same for every loop, and the step's row of the curve.

The same batch, step and weights give the same weights: bit for bit on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.entropy_levers import adapted_coefficient
from stages.engines.samplers.protocol import StopReason
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.training_loop import warmup_then_cosine
from stages.rl_round.critic import critic_metrics, update_critic
from stages.rl_round.drawing import VOTE, is_punished
from stages.rl_round.learners import reset_reference
from stages.rl_round.params import RlParams
from stages.rl_round.records import Batch, Group, Rollout
from stages.rl_round.round import Round
from stages.rl_round.samples import TrainingSamples, prepare_samples, scatter_batch
from stages.rl_round.update import policy_metrics, update_policy


@dataclass(frozen=True)
class TrainedStep:
    row: dict[str, float]
    """Row of the round's curve; complete only on the rank that has the whole batch."""
    has_changed_weights: bool
    """False when no rollout of the batch could be trained on."""
    samples: TrainingSamples


def train_step(this_round: Round, step: int, batch: Batch | None, last_row: Mapping[str, float]) -> TrainedStep:
    """Trains on `batch` as step `step` (from 0) of the round; collective. Only rank 0 needs to have the batch.

    `last_row` is the row of the step before; empty in the first step.
    FloatingPointError, with details for debugging, when the loss is not finite.
    """
    params, trainer, critic = this_round.params, this_round.trainer, this_round.critic
    reset_reference(this_round, step)
    scale, bonus = learning_rate_scale(step, this_round), entropy_bonus(params, last_row)
    # Advantages from untrained values would only be noise.
    is_warming_up = critic is not None and step < params.advantage.critic.warmup_steps
    tokens, seed_path = this_round.trainer_params.micro_batch_tokens, (this_round.seed, this_round.name, step)
    groups, plan = scatter_batch(batch, params, tokens, trainer, *seed_path)
    critic_updates, policy_updates = [], []
    try:
        frozen = this_round.reference, this_round.teacher
        samples = prepare_samples(groups, plan, params, trainer, *frozen, this_round.settings.distillation, critic)
        if critic is not None:
            critic_updates = update_critic(samples, plan, params, scale, critic)
        if not is_warming_up:
            policy_updates = update_policy(samples, plan, params, scale, trainer, bonus.get(APPLIED, 0.0))
    except FloatingPointError as error:
        # Each problem once and in the order of the batch, so the error is the same each time.
        ids = dict.fromkeys(group.problem_id for group in groups)
        raise _explained(error, this_round, step, ids) from error
    row = {"step": step + 1, **bonus, **policy_metrics(policy_updates, plan, params)}
    row |= critic_metrics(critic_updates, samples)
    # Only rank 0 has the whole batch, and only its row is written.
    if batch is not None:
        row |= sample_metrics(samples, params) | batch_metrics(batch, params)
    return TrainedStep(row, bool(policy_updates), samples)


def learning_rate_scale(step: int, this_round: Round) -> float:
    """Returns the share of the peak learning rate in step `step` (from 0): all updates of a step have the same."""
    steps, warmup_steps = this_round.settings.steps, this_round.settings.warmup_steps
    # From 1 / warmup_steps upwards: a first step with rate 0 would sample a whole batch and learn nothing.
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    schedule = this_round.params.schedule
    if schedule is None:
        return 1.0
    if schedule.kind == "cosine":
        return warmup_then_cosine(step, steps, warmup_steps, schedule.final_fraction)
    return 1.0 - (1.0 - schedule.final_fraction) * (step - warmup_steps) / max(1, steps - 1 - warmup_steps)


COEFFICIENT, APPLIED = "entropy/coefficient", "entropy/coefficient_applied"


def entropy_bonus(params: RlParams, last_row: Mapping[str, float]) -> dict[str, float]:
    """Returns the coefficient of the entropy bonus, and the one that applies in this step; empty without a bonus.

    Both follow from the last step's row alone, so a checkpoint's curve is all the state that there is.
    """
    bonus = params.entropy_bonus
    if bonus is None:
        return {}
    if not last_row:
        return {COEFFICIENT: bonus.first_coefficient, APPLIED: bonus.first_coefficient}
    if "entropy/mean" not in last_row:
        # That step had nothing to train on, so it measured no entropy.
        return {name: last_row[name] for name in (COEFFICIENT, APPLIED)}
    before, entropy = last_row[COEFFICIENT], last_row["entropy/mean"]
    moved = adapted_coefficient(before, entropy, bonus.target, bonus.coefficient_step, bonus.max_coefficient)
    return {COEFFICIENT: moved, APPLIED: moved if entropy < bonus.target else 0.0}


def _explained(
    error: FloatingPointError, this_round: Round, step: int, problem_ids: Iterable[str]
) -> FloatingPointError:
    """Returns the error of a loss that is not finite with details for debugging; the policy is never written."""
    latest = Checkpoints(this_round.scratch).newest()
    kept = f"the last checkpoint is {latest}" if latest else "there is no checkpoint yet"
    return FloatingPointError(
        f"{this_round.name}, step {step + 1}: {error}. The batch's problems are {', '.join(problem_ids)}; {kept}. The "
        "next run resumes from there. Lower rl.optimizer.learning_rate, or look at the rewards of these problems"
    )


def sample_metrics(samples: TrainingSamples, params: RlParams) -> dict[str, float]:
    """Returns the metrics of what a step trained on: advantages and punished repetition.

    `advantage/abs_mean` is of a response, `advantage/variance` over all tokens of the batch; both 0 without samples.
    """
    mask, penalty = samples.response_mask, params.repetition_penalty
    tokens, responses = int(mask.sum()), max(1, len(samples))
    metrics = {"tokens/trained": tokens, "advantage/abs_mean": 0.0, "advantage/variance": 0.0}
    if len(samples):
        # In double: a batch has millions of tokens, and a variance subtracts large sums.
        advantages = samples.advantages.double()
        by_response = (advantages.abs() * mask).sum(-1) / mask.sum(-1).clamp_min(1)
        metrics["advantage/abs_mean"] = float(by_response.mean())
        metrics["advantage/variance"] = float(advantages[mask.bool()].var(correction=0))
    if penalty is not None:
        penalised = int(samples.penalised.sum())
        metrics["repetition/token_fraction"] = penalised / max(1, tokens)
        metrics["repetition/response_fraction"] = int(samples.penalised.any(-1).sum()) / responses
        metrics["repetition/penalty_mean"] = penalty.penalty * penalised / responses
    return metrics


def batch_metrics(batch: Batch, params: RlParams) -> dict[str, float]:
    """Returns rewards, accuracy and lengths of all groups drawn in the step (an unbiased view of the policy), and of
    the batch. A step that drew nothing, because surplus filled the batch, reports the batch instead.
    """
    # Of the groups drawn, not of those trained on: dynamic sampling trains only on problems of medium difficulty, which
    # say little about the policy.
    groups = batch.drawn or batch.groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    tokens = [rollout.sample.policy_tokens for rollout in rollouts]
    return {
        **_custom_metrics(rollouts),
        **_vote_metrics(groups),
        **_episode_metrics(rollouts),
        "reward/mean": _mean([rollout.reward for rollout in rollouts if rollout.is_decided]),
        "accuracy/mean": _mean([float(rollout.verdict is Verdict.CORRECT) for rollout in rollouts]),
        "verdict/undecided_fraction": _mean([float(not rollout.is_decided) for rollout in rollouts]),
        "verdict/unparsed_fraction": _mean([float(rollout.verdict is Verdict.UNPARSED) for rollout in rollouts]),
        "verdict/exhausted_fraction": _mean([float(rollout.verdict is Verdict.EXHAUSTED) for rollout in rollouts]),
        "length/response_tokens_mean": _mean(tokens),
        "length/truncated_fraction": _mean([float(rollout.sample.is_truncated) for rollout in rollouts]),
        "length/punished_fraction": _mean([float(is_punished(rollout, params)) for rollout in rollouts]),
        "groups/drawn": len(batch.drawn),
        "groups/trained": len(batch.groups),
        "groups/carried": batch.carried,
        "groups/too_stale": batch.too_stale,
        "groups/draws": batch.draws,
        "groups/signal_fraction": batch.signal_fraction,
        "tokens/sampled": sum(r.sample.policy_tokens for group in batch.drawn for r in group.rollouts),
        **batch.agreement,
    }


def _custom_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns the failures and the mean of each part, when custom functions give rewards."""
    if not any(rollout.is_custom for rollout in rollouts):
        return {}
    decided = [rollout for rollout in rollouts if rollout.is_decided]
    names = sorted({name for rollout in decided for name in rollout.parts})
    # A part that a response lacks counts as 0, since it adds nothing to its reward.
    means = {f"reward/part_{name}": _mean([rollout.parts.get(name, 0.0) for rollout in decided]) for name in names}
    return {"reward/failed_fraction": _mean([float(bool(rollout.fault)) for rollout in rollouts]), **means}


def _vote_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Returns the share of a group that has the majority's answer, and how often that is the gold answer.

    A group without an answer counts as 0 in both. Empty without votes.
    """
    members = [[rollout for rollout in group.rollouts if rollout.parts.get(VOTE)] for group in groups]
    if not any(VOTE in rollout.parts for group in groups for rollout in group.rollouts):
        return {}
    return {
        "vote/majority_ratio": _mean(
            [len(one) / len(group.rollouts) for one, group in zip(members, groups, strict=True)]
        ),
        # The first one's answer represents the majority's.
        "vote/label_accuracy": _mean([float(bool(one) and one[0].verdict is Verdict.CORRECT) for one in members]),
    }


def _episode_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns turns, calls, observed tokens and endings of the episodes; empty without an environment.

    A void turn ended an episode and holds no answer that the verifier could read.
    """
    episodes = [(rollout, rollout.sample.episode) for rollout in rollouts if rollout.sample.episode]
    if not episodes:
        return {}
    calls, limits = sum(episode.calls for _, episode in episodes), (StopReason.MAX_TOKENS, StopReason.MAX_TURNS)
    void = [one.verdict is Verdict.UNPARSED and one.sample.stop_reason not in limits for one, _ in episodes]
    return {
        "turns/mean": _mean([episode.turns for _, episode in episodes]),
        "turns/void_fraction": _mean(void),
        "calls/mean": calls / len(episodes),
        "calls/failed_fraction": sum(episode.failed_calls for _, episode in episodes) / max(1, calls),
        "tokens/observed": sum(len(one.sample.token_ids) - one.sample.policy_tokens for one, _ in episodes),
        "environment/fault_fraction": _mean([bool(episode.fault) for _, episode in episodes]),
        **{
            f"ending/{ending.value}_fraction": _mean([one.sample.stop_reason is ending for one, _ in episodes])
            for ending in StopReason
        },
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
