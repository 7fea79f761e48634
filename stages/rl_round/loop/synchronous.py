"""The RL round, synchronous: draw groups, update the policy, sync the sampler, repeat.

This is the whole algorithm in one place. On CPU it is bit-exact: the same seed gives the same weights, and a run that
was killed and goes on from its checkpoint gives the weights of one that was not.
Ranks: every rank runs this listing and trains its share; what only rank 0 holds (sampler, verifier, rollouts on disk)
stands behind `source`, `weights` and `log`, which other ranks have in a form that takes part and holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from stages.engines.trainers.checkpoints import Checkpoints
from stages.observe.progress import progress
from stages.rl_round.loop.batch_source import BatchSource
from stages.rl_round.loop.context import RoundContext
from stages.rl_round.loop.round_checkpoints import RoundState, load_state, save_state
from stages.rl_round.loop.round_log import RoundLog
from stages.rl_round.loop.step_metrics import step_metrics
from stages.rl_round.loop.weight_sync import WeightSync
from stages.rl_round.rollouts.dynamic_sampling import Batch
from stages.rl_round.rollouts.records import newest_version
from stages.rl_round.update.policy_update import prepare_samples, summarise, update_policy


def run_synchronous_round(
    context: RoundContext, source: BatchSource, weights: WeightSync, log: RoundLog
) -> RoundState:
    """Runs the round's steps, going on from the last checkpoint if there is one, and returns what it reached."""
    params, trainer, run, tokens = context.params, context.trainer, context.run, context.micro_batch_tokens
    checkpoints = Checkpoints(context.scratch)
    state = load_state(checkpoints, trainer, source, weights)
    log.resume(state.step)
    weights.push(state.policy_version)
    steps = range(state.step, context.round.steps)
    for step in progress(steps, total=len(steps), label=context.name, unit="steps"):
        started = time.perf_counter()
        with run.phase("sample"):
            batch = source.next_batch()

        with run.phase("train"), _explain_nonfinite_loss(context.name, step, batch, checkpoints):
            # Fresh is what this step's own weights have drawn: nothing of a batch that surplus alone has filled.
            newest = newest_version(batch.drawn)
            samples = prepare_samples(batch.groups, params, newest, tokens, trainer, context.reference)
            warm_up = min(1.0, (step + 1) / max(1, context.round.warmup_steps))
            seed = context.seed, context.name, step
            updates = update_policy(samples, params, tokens, warm_up, trainer, *seed)

        row = {"step": step + 1}
        if updates:
            row |= summarise(updates)
            state.policy_version += 1
            with run.phase("sync"):
                row["sync/logprob_gap_max"] = weights.push(state.policy_version)
        row |= step_metrics(batch, samples, params)
        state.step = step + 1
        state.curve.append(row)
        log.add(state.step, batch, row, time.perf_counter() - started)

        if state.step % params.checkpoint_every_steps == 0 and state.step < context.round.steps:
            with run.phase("checkpoint"):
                save_state(checkpoints, state, trainer, source, weights)
    log.finish(state.step, source.leftover())
    return state


@contextmanager
def _explain_nonfinite_loss(name: str, step: int, batch: Batch, checkpoints: Checkpoints) -> Iterator[None]:
    """A loss that is not finite stops the round with what is needed to look into it; the policy is never written."""
    try:
        yield
    except FloatingPointError as error:
        latest = checkpoints.latest()
        kept = f"the last checkpoint is {latest[1]}" if latest else "there is no checkpoint yet"
        ids = ", ".join(dict.fromkeys(group.problem_id for group in batch.groups))
        raise FloatingPointError(
            f"{name}, step {step + 1}: {error}. The batch's problems are {ids}; {kept}. The next run goes on "
            "from there. Lower rl.optimizer.learning_rate, or look at the rewards of these problems"
        ) from error
