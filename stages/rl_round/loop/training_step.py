"""One step of training on a batch, the same for every loop, and the step's row of the curve.

The same batch, step and weights give the same weights: bit for bit on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.entropy_levers import adapted_coefficient
from stages.algorithms.length_rewards import soft_overlong_punishment
from stages.engines.policies.language_model import PolicyUnderAdapters, ReferencePolicy, language_model
from stages.engines.samplers.protocol import StopReason
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import LoraParams
from stages.engines.trainers.training_loop import warmup_then_cosine
from stages.foundations.params import chosen
from stages.foundations.seeds import derive_seed
from stages.rl_round.critic import critic_metrics, load_critic, save_critic, summarise_critic, value_loss
from stages.rl_round.drawing import rewarded_tokens
from stages.rl_round.methods import CosineReward, NoOverlong
from stages.rl_round.params import RlParams
from stages.rl_round.records import Batch, Group, Rollout
from stages.rl_round.round import Round
from stages.rl_round.samples import TrainingSamples, scatter_batch
from stages.rl_round.update import one_pass, prepare_samples, summarise, update_policy
from stages.rl_round.update_methods import Gae, ReferenceKl
from stages.rl_round.values import VOTE


@dataclass(frozen=True)
class TrainedStep:
    row: dict[str, float]
    """Row of the round's curve; complete only on the rank that has the whole batch."""
    has_changed_weights: bool
    """False when no rollout of the batch could be trained on."""
    samples: TrainingSamples


def with_trainer(this_round: Round) -> Round:
    """Returns the round with this rank's trainer, reference, teacher and critic, which `Round.close` ends."""
    params, settings, policy = this_round.params, this_round.trainer_params, this_round.paths.policy
    model = language_model(policy, settings, this_round.prompt)
    match chosen("rl.adapter", params.adapter):
        case LoraParams():
            from stages.engines.policies.lora import with_lora

            model = with_lora(model, params.adapter, derive_seed(this_round.seed, this_round.name, "adapter"))
    trainer = build_trainer(settings, params.optimizer, params.max_gradient_norm, model)
    reference = None
    if isinstance(params.reference_kl, ReferenceKl):
        # Adapters that are off give the first policy, and no later one.
        if params.adapter and not params.reference_kl.reset_every_steps:
            reference = PolicyUnderAdapters(trainer)
        else:
            reference = ReferencePolicy.from_folder(policy, settings.dtype, trainer.device)
    teacher = critic = None
    if this_round.teacher_folder:
        teacher = ReferencePolicy.from_folder(this_round.teacher_folder, settings.dtype, trainer.device)
    match chosen("rl.advantage", params.advantage):
        case Gae():
            from stages.engines.policies.value_model import value_model

            optimizer = params.advantage.critic.optimizer
            critic = build_trainer(settings, optimizer, params.max_gradient_norm, value_model(policy, settings))
    return replace(this_round, trainer=trainer, reference=reference, teacher=teacher, critic=critic)


def train_step(this_round: Round, step: int, batch: Batch | None, last_row: Mapping[str, float]) -> TrainedStep:
    """Trains on `batch` as step `step` (from 0) of the round; collective. Only rank 0 needs to have the batch.

    `last_row` is the row of the step before; empty in the first step.
    FloatingPointError, with details for debugging, when the loss is not finite.
    """
    params, trainer, tokens = this_round.params, this_round.trainer, this_round.trainer_params.micro_batch_tokens
    _reset_reference(this_round, step)
    critic, scale = this_round.critic, learning_rate_scale(step, this_round)
    groups, plan = scatter_batch(batch, params, tokens, trainer, this_round.seed, this_round.name, step)
    with _explain_nonfinite_loss(this_round, step, groups):
        frozen = this_round.reference, this_round.teacher
        samples = prepare_samples(groups, plan, params, trainer, *frozen, this_round.settings.distillation, critic)
        of_values = partial(value_loss, params=params)
        of_critic = one_pass(samples, plan, params, scale, critic, of_values) if critic else []
        bonus = entropy_bonus(params, last_row)
        # Advantages from untrained values would only be noise.
        is_warming_up = critic is not None and step < params.advantage.critic.warmup_steps
        updates = [] if is_warming_up else update_policy(samples, plan, params, scale, trainer, bonus.get(APPLIED, 0.0))
    row = {"step": step + 1, **summarise_critic(of_critic)} | bonus | (summarise(updates) if updates else {})
    # Only rank 0 has the whole batch, and only its row is written.
    if batch is not None:
        row |= step_metrics(batch, samples, params)
    return TrainedStep(row, bool(updates), samples)


def _reset_reference(this_round: Round, step: int) -> None:
    """Makes the current policy the reference before each `reset_every_steps`-th step; collective.

    Source: ProRL (arXiv 2505.24864), section 2.3.1. Deviation: at fixed intervals; the paper resets when the
    validation accuracy stagnates.
    """
    settings, trainer = this_round.params.reference_kl, this_round.trainer
    if not _resets_reference(this_round) or step == 0 or step % settings.reset_every_steps:
        return
    this_round.reference.take(trainer.named_weights())
    if settings.resets_optimizer:
        trainer.reset_optimizer()


def _resets_reference(this_round: Round) -> bool:
    return this_round.reference is not None and this_round.params.reference_kl.reset_every_steps is not None


def save_training(this_round: Round, folder: Path) -> dict[str, str]:
    """Writes the state of trainer, reference and critic; returns hashes like `Trainer.save_checkpoint`; collective."""
    if _resets_reference(this_round) and this_round.trainer.rank == 0:
        this_round.reference.save(folder)
    return this_round.trainer.save_checkpoint(folder) | save_critic(this_round.critic, folder)


def load_training(this_round: Round, folder: Path) -> None:
    """Restores what `save_training` wrote; collective."""
    if _resets_reference(this_round):
        this_round.reference.load(folder)
    this_round.trainer.load_checkpoint(folder)
    load_critic(this_round.critic, folder)


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


@contextmanager
def _explain_nonfinite_loss(this_round: Round, step: int, groups: Sequence[Group]) -> Iterator[None]:
    """Adds details for debugging to the error of a loss that is not finite; the policy is never written."""
    try:
        yield
    except FloatingPointError as error:
        latest = Checkpoints(this_round.scratch).newest()
        kept = f"the last checkpoint is {latest}" if latest else "there is no checkpoint yet"
        # Each problem once and in the order of the batch, so the error is the same each time.
        ids = ", ".join(dict.fromkeys(group.problem_id for group in groups))
        raise FloatingPointError(
            f"{this_round.name}, step {step + 1}: {error}. The batch's problems are {ids}; {kept}. The next run "
            "resumes from there. Lower rl.optimizer.learning_rate, or look at the rewards of these problems"
        ) from error


def step_metrics(batch: Batch, trained: TrainingSamples, params: RlParams) -> dict[str, float]:
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
        "length/punished_fraction": _mean([float(_is_punished(rollout, params)) for rollout in rollouts]),
        "groups/drawn": len(batch.drawn),
        "groups/trained": len(batch.groups),
        "groups/carried": batch.carried,
        "groups/too_stale": batch.too_stale,
        "groups/draws": batch.draws,
        "groups/signal_fraction": batch.signal_fraction,
        **_advantage_metrics(trained),
        **critic_metrics(trained),
        **_penalty_metrics(trained, params),
        "tokens/sampled": sum(r.sample.policy_tokens for group in batch.drawn for r in group.rollouts),
        "tokens/trained": int(trained.response_mask.sum()),
        **batch.agreement,
    }


def _advantage_metrics(trained: TrainingSamples) -> dict[str, float]:
    """Returns the mean absolute advantage of a response and the variance over all tokens of the batch; 0 without
    samples."""
    if not len(trained):
        return {"advantage/abs_mean": 0.0, "advantage/variance": 0.0}
    # In double: a batch has millions of tokens, and a variance subtracts large sums.
    advantages, mask = trained.advantages.double(), trained.response_mask
    by_response = (advantages.abs() * mask).sum(-1) / mask.sum(-1).clamp_min(1)
    return {
        "advantage/abs_mean": float(by_response.mean()),
        "advantage/variance": float(advantages[mask.bool()].var(correction=0)),
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


def _penalty_metrics(trained: TrainingSamples, params: RlParams) -> dict[str, float]:
    """Returns how much repetition was punished, when it is."""
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
    """Returns True when length lowered the response's reward below that of its verdict alone."""
    if not rollout.is_decided:
        return False
    if isinstance(params.reward, CosineReward):
        return rollout.reward == params.reward.exceeded
    if isinstance(params.overlong, NoOverlong):
        return False
    tokens = rewarded_tokens(rollout.sample, params.max_response_tokens)
    return soft_overlong_punishment(tokens, params.max_response_tokens, params.overlong.buffer_tokens) < 0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
