"""What the trainer and the reference say of the rollouts before the update, each rollout once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from stages.engines.policies.packing import ResponseBatch
from stages.engines.trainers.protocol import Trainer
from stages.rl_round.params.rl import RlParams
from stages.rl_round.params.update import OptimalTokenBaseline
from stages.rl_round.update.training_samples import TrainedRollout, pack_rollouts, shares


class Reference(Protocol):
    """A policy that does not learn."""

    def logprobs(self, micro_batch: ResponseBatch) -> Tensor:
        """Log-probs [responses, tokens] on the CPU, at the batch's temperature."""


def with_proximal_statistics(
    rollouts: Sequence[TrainedRollout], params: RlParams, micro_batch_tokens: int, trainer: Trainer
) -> list[TrainedRollout]:
    """The rollouts with log-probs of the trainer's present weights; collective.

    Also with sums of squared probabilities where the estimator is the optimal token baseline.
    """
    needs_squares = isinstance(params.advantage, OptimalTokenBaseline)

    def statistics(batch: ResponseBatch) -> list[Tensor]:
        found = trainer.evaluate(batch)
        return [found.logprobs.cpu(), *([found.sum_squared_probs.cpu()] if needs_squares else [])]

    found = _by_rollout(
        rollouts, params.temperature, params.log_threshold, micro_batch_tokens, trainer, statistics
    )
    return [
        replace(item, proximal_logprobs=logprobs, sum_squared_probs=squares[0] if squares else None)
        for item, (logprobs, *squares) in zip(rollouts, found, strict=True)
    ]


def with_reference_logprobs(
    rollouts: Sequence[TrainedRollout],
    params: RlParams,
    micro_batch_tokens: int,
    trainer: Trainer,
    reference: Reference,
) -> list[TrainedRollout]:
    """The rollouts with the reference's log-probs; collective.

    Over the whole vocabulary also when the policy's is pruned: what the reference would say must not depend on how
    sharp it is.
    """
    found = _by_rollout(
        rollouts,
        params.temperature,
        None,
        micro_batch_tokens,
        trainer,
        lambda batch: [reference.logprobs(batch)],
    )
    return [replace(item, reference_logprobs=row) for item, (row,) in zip(rollouts, found, strict=True)]


def _by_rollout(
    rollouts: Sequence[TrainedRollout],
    temperature: float,
    log_threshold: float | None,
    micro_batch_tokens: int,
    trainer: Trainer,
    statistics: Callable[[ResponseBatch], list[Tensor]],
) -> list[list[list[float]]]:
    """Each rollout's rows of what `statistics` gives, computed in the ranks' shares and known to all of them."""
    found: dict[int, list[list[float]]] = {}
    for group in shares(rollouts, micro_batch_tokens, trainer):
        batch = pack_rollouts(
            [rollouts[index] for index in group] or [rollouts[0]], temperature, log_threshold
        )
        tensors = statistics(batch)
        for row, index in enumerate(group):
            length = rollouts[index].response_tokens
            found[index] = [tensor[row, :length].tolist() for tensor in tensors]
    together = {index: values for part in trainer.gather(found) for index, values in part.items()}
    return [together[index] for index in range(len(rollouts))]
