"""The RL round, synchronous: draw groups, update the policy, sync the sampler, repeat.

This is the whole algorithm in one place. On CPU it is bit-exact: the same seed gives the same weights, and a run that
was killed and goes on from its checkpoint gives the weights of one that was not.
Ranks: rank 0 draws and judges, every rank trains its share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stages.engines.policies.reference import ReferencePolicy
from stages.engines.samplers.protocol import Sampler
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer, Update
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed, endless_order
from stages.observe.progress import progress
from stages.observe.tracking import Run
from stages.rl_round.loop.state import RolloutLog, RoundState, load_state, save_state
from stages.rl_round.loop.step_metrics import batch_metrics
from stages.rl_round.loop.weight_sync_check import WeightSyncCheck
from stages.rl_round.params.rl import RlParams, RoundParams
from stages.rl_round.params.verifier import ModelVerifier, RoundVerifierParams
from stages.rl_round.rollouts.dynamic_sampling import Batch, draw_batch
from stages.rl_round.rollouts.rollouts import Group, Problem, draw_groups
from stages.rl_round.rollouts.round_verifier import RoundVerifier
from stages.rl_round.update.policy_update import prepare_rollouts, summarise, update_policy
from stages.rl_round.update.training_samples import TrainedRollout

NOTHING_DRAWN = -1
"""Version of no group: a batch that surplus filled holds nothing that the step's own weights have drawn."""


@dataclass(frozen=True)
class Learner:
    """The parts of one round."""

    params: RlParams
    round: RoundParams
    name: str
    seed: int
    micro_batch_tokens: int
    abort_undecided_fraction: float
    problems: Sequence[Problem]
    trainer: Trainer
    sampler: Sampler | None
    """None on every rank but 0."""
    verifier: RoundVerifier | None
    """None on every rank but 0."""
    tokenizer: object
    scratch: Path
    run: Run
    reference: ReferencePolicy | None
    """The policy that the round starts from, for `rl.reference_kl`; None when that is off."""


def learn(learner: Learner) -> RoundState:
    """Runs the round's steps, going on from the last checkpoint if there is one, and returns what it reached."""
    params, trainer, sampler, run = learner.params, learner.trainer, learner.sampler, learner.run
    checkpoints, rollouts = Checkpoints(learner.scratch), RolloutLog(learner.scratch)
    probe = trainer.broadcast(_drawn_probe(learner))
    state = load_state(trainer, sampler, checkpoints)
    if trainer.rank == 0:
        rollouts.forget_after(state.step)
    _sync(learner, probe, state.policy_version)
    steps = range(state.step, learner.round.steps)
    for step in progress(steps, total=len(steps), label=learner.name, unit="steps"):
        started = time.perf_counter()
        with run.phase("sample"):
            batch = trainer.broadcast(_draw(learner, state) if sampler else None)
        row = {"step": step + 1}
        with run.phase("train"), _told_where(learner, step, batch, checkpoints):
            trained, updates = _update(learner, batch, step)
        if updates:
            row |= summarise(updates)
            state.policy_version += 1
            with run.phase("sync"):
                row["sync/logprob_gap_max"] = _sync(learner, probe, state.policy_version)
        row |= batch_metrics(batch, trained, state.drawing, params)
        if isinstance(params.verifier, ModelVerifier) and trainer.rank == 0:
            row |= learner.verifier.pop_agreement_metrics()
        state.step = step + 1
        state.curve.append(row)
        if trainer.rank == 0:
            rollouts.add(state.step, batch.groups, batch.left_out)
            seconds = time.perf_counter() - started
            rates = {"time/step_seconds": seconds, "tokens/per_second": row["tokens/sampled"] / seconds}
            run.log({**rates, **row}, step=state.step)
        if state.step % params.checkpoint_every_steps == 0 and state.step < learner.round.steps:
            with run.phase("checkpoint"):
                save_state(trainer, sampler, checkpoints, state)
    if trainer.rank == 0:
        rollouts.add(state.step + 1, [], state.drawing.carried)
    return state


def _update(learner: Learner, batch: Batch, step: int) -> tuple[list[TrainedRollout], list[Update]]:
    params, trainer, tokens = learner.params, learner.trainer, learner.micro_batch_tokens
    newest = max((group.policy_version for group in batch.drawn), default=NOTHING_DRAWN)
    trained = prepare_rollouts(batch.groups, params, newest, tokens, trainer, learner.reference)
    if not trained:
        return [], []
    scale = min(1.0, (step + 1) / max(1, learner.round.warmup_steps))
    return trained, update_policy(trained, params, tokens, scale, trainer, learner.seed, learner.name, step)


@contextmanager
def _told_where(learner: Learner, step: int, batch: Batch, checkpoints: Checkpoints) -> Iterator[None]:
    """A loss that is not finite stops the round with what is needed to look into it; the policy is never written."""
    try:
        yield
    except FloatingPointError as error:
        latest = checkpoints.latest()
        kept = f"the last checkpoint is {latest[1]}" if latest else "there is no checkpoint yet"
        ids = ", ".join(dict.fromkeys(group.problem_id for group in batch.groups))
        raise FloatingPointError(
            f"{learner.name}, step {step + 1}: {error}. The batch's problems are {ids}; {kept}. The next run goes on "
            "from there. Lower rl.optimizer.learning_rate, or look at the rewards of these problems"
        ) from error


def _draw(learner: Learner, state: RoundState) -> Batch:
    params, problems = learner.params, learner.problems

    def draw(count: int, number: int) -> list[Group]:
        first = state.drawing.cursor
        order = endless_order(first, first + count, len(problems), learner.seed, learner.name, "problems")
        return draw_groups(
            [problems[index] for index in order],
            learner.sampler,
            learner.verifier,
            learner.tokenizer,
            params,
            derive_seed(learner.seed, learner.name, state.step, number),
        )

    # A sampler that is stale on purpose stamps groups with an older version than the trainer's: surplus then waits no
    # longer than other surplus.
    version = learner.sampler.policy_version
    batch = draw_batch(params.dynamic_sampling, params.problems_per_step, version, state.drawing, draw)
    _stop_when_undecided(batch, learner.abort_undecided_fraction, params.verifier)
    return batch


def _stop_when_undecided(batch: Batch, allowed_fraction: float, verifier: RoundVerifierParams) -> None:
    verdicts = [
        rollout.verdict for group in batch.drawn for rollout in group.rollouts if not rollout.is_decided
    ]
    total = sum(len(group.rollouts) for group in batch.drawn)
    if total and len(verdicts) > allowed_fraction * total:
        remedy = "raise verifier.timeout_seconds or memory_mib, or look at the responses"
        if isinstance(verifier, ModelVerifier):
            remedy = "lower rl.verifier.reading.undecided_margin, or give the judge more teaching.steps or max_tokens"
        raise UserError(
            f"the verifier could not decide {len(verdicts)} of {total} responses ({', '.join(sorted(set(verdicts)))}), "
            f"more than verifier.abort_undecided_fraction {allowed_fraction} allows: {remedy}; the last checkpoint is "
            "kept"
        )


def _drawn_probe(learner: Learner) -> WeightSyncCheck | None:
    if learner.sampler is None:
        return None
    return WeightSyncCheck.drawn(
        learner.params.weight_sync_check,
        [problem.prompt for problem in learner.problems],
        learner.params.max_response_tokens,
        learner.sampler,
        derive_seed(learner.seed, learner.name, "probe"),
    )


def _sync(learner: Learner, probe: WeightSyncCheck, policy_version: int) -> float:
    """Gives the sampler the trainer's weights and checks that they arrived; the probe's gap (0 on other ranks)."""
    from_trainer = probe.trainer_side(learner.trainer)
    weights = learner.trainer.named_weights()
    if learner.sampler is None:
        for _ in weights:  # gathering the weights is collective
            continue
        return 0.0
    learner.sampler.load_weights(weights, policy_version)
    return probe.check(learner.sampler, from_trainer)
