"""One step of training on a batch: what every loop does with it, wherever the batch comes from.

The same batch, step and weights give the same weights: bit for bit on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stages.engines.trainers.checkpoints import Checkpoints
from stages.rl_round.loop.context import RoundContext
from stages.rl_round.loop.step_metrics import step_metrics
from stages.rl_round.rollouts.records import Batch, Group
from stages.rl_round.update.own_groups import own_groups
from stages.rl_round.update.policy_update import prepare_samples, summarise, update_policy
from stages.rl_round.update.training_samples import TrainingSamples


@dataclass(frozen=True)
class TrainedStep:
    """What a step has done."""

    row: dict[str, float]
    """Of the round's curve; whole where the batch is."""
    has_changed_weights: bool
    """False where no rollout of the batch could be trained on."""
    samples: TrainingSamples


def train_step(context: RoundContext, step: int, batch: Batch | None) -> TrainedStep:
    """Trains on `batch` as step `step` (from 0) of the round; collective. Only rank 0 needs to have the batch.

    FloatingPointError, with what is needed to look into it, when the loss is not finite.
    """
    params, trainer, tokens = context.params, context.trainer, context.micro_batch_tokens
    seed = context.seed, context.name, step
    groups, newest_version = own_groups(batch, params, tokens, trainer, *seed)
    with _explain_nonfinite_loss(context, step, groups):
        samples = prepare_samples(groups, params, newest_version, tokens, trainer, context.reference, seed)
        warm_up = min(1.0, (step + 1) / max(1, context.round.warmup_steps))
        updates = update_policy(samples, params, tokens, warm_up, trainer, *seed)
    row = {"step": step + 1} | (summarise(updates) if updates else {})
    if batch is not None:
        row |= step_metrics(batch, samples, params)
    return TrainedStep(row, bool(updates), samples)


@contextmanager
def _explain_nonfinite_loss(context: RoundContext, step: int, groups: Sequence[Group]) -> Iterator[None]:
    """A loss that is not finite stops the round with what is needed to look into it; the policy is never written."""
    try:
        yield
    except FloatingPointError as error:
        latest = Checkpoints(context.scratch).newest()
        kept = f"the last checkpoint is {latest}" if latest else "there is no checkpoint yet"
        ids = ", ".join(dict.fromkeys(group.problem_id for group in groups))
        raise FloatingPointError(
            f"{context.name}, step {step + 1}: {error}. The batch's problems are {ids}; {kept}. The next run goes on "
            "from there. Lower rl.optimizer.learning_rate, or look at the rewards of these problems"
        ) from error
