"""The synchronous RL round: sample groups, update the policy, sync the sampler, repeat.

This is the whole algorithm in one place. On CPU it is bit-exact. The same seed gives the same weights. A killed run
that resumes from its checkpoint gives the weights of a run without interruption. Ranks: every rank runs this listing,
samples its share of the responses and trains its share of the batch. Rank 0 makes the batch, the row of the curve and
the files. A replay runs the same listing: its source reads the recorded groups, and there is no sampler to sync.
Held-out problems (`evaluate`) change no step, but they may end the round early and decide which weights are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stages.engines.trainers.checkpoints import Checkpoints
from stages.observe.progress import progress
from stages.rl_round.loop.batch_source import BatchSource
from stages.rl_round.loop.evaluation import is_over
from stages.rl_round.loop.round_log import RolloutLog
from stages.rl_round.loop.training_step import train_step
from stages.rl_round.loop.weight_sync import RoundState, WeightSync, load_state, save_state
from stages.rl_round.round import Round


def run_synchronous_round(
    this_round: Round,
    source: BatchSource,
    weights: WeightSync,
    log: RolloutLog | None,
    evaluate: Callable[[RoundState], bool] = lambda state: False,
) -> RoundState:
    """Runs the round's steps, resuming from the last checkpoint if there is one, and returns the final state.

    Only rank 0 has the curve and the log.
    """
    run, last = this_round.run, this_round.settings.steps
    checkpoints = Checkpoints(this_round.scratch)
    state = load_state(checkpoints, this_round, source, weights)
    if log:
        log.resume(state.step)
    weights.push(state.policy_version)
    if evaluate(state):
        save_state(checkpoints, state, this_round, source, weights, log)
    steps = range(state.step, last)
    for step in progress(steps, last, this_round.name, "steps", done=state.step, curve=state.curve):
        if is_over(state.evaluations, this_round.params.evaluation):
            break
        started = time.perf_counter()
        with run.phase("sample"):
            batch = source.next_batch()

        with run.phase("train"):
            trained = train_step(this_round, step, batch, state.curve[-1] if state.curve else {})

        row = trained.row
        if trained.has_changed_weights:
            state.policy_version += 1
            with run.phase("sync"):
                row |= weights.push(state.policy_version)
        state.step = step + 1
        state.curve.append(row)
        if log:
            log.add(state.step, batch, row, time.perf_counter() - started)

        is_best = evaluate(state)
        is_due = state.step % this_round.params.checkpoint_every_steps == 0 and state.step < last
        if is_due or is_best:
            with run.phase("checkpoint"):
                save_state(checkpoints, state, this_round, source, weights, log)
    if log:
        log.finish(state.step, source.leftover())
    return state
