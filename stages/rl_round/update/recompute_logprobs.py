"""What the trainer and the reference say of the samples before the update, each sample once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from stages.engines.policies.packing import ResponseBatch, pack
from stages.engines.trainers.protocol import Trainer
from stages.rl_round.params.rl import RlParams
from stages.rl_round.params.update import OptimalTokenBaseline
from stages.rl_round.update.training_samples import TrainingSamples, micro_batch_indices


class Reference(Protocol):
    """A policy that does not learn."""

    def logprobs(self, micro_batch: ResponseBatch) -> Tensor:
        """Log-probs [responses, tokens] on the CPU, at the batch's temperature."""


def with_proximal_statistics(
    samples: TrainingSamples, params: RlParams, micro_batch_tokens: int, trainer: Trainer
) -> TrainingSamples:
    """The samples with log-probs of the trainer's present weights; collective.

    Also with sums of squared probabilities where the estimator is the optimal token baseline.
    """
    needs_squares = isinstance(params.advantage, OptimalTokenBaseline)

    def statistics(batch: ResponseBatch) -> list[Tensor]:
        found = trainer.evaluate(batch)
        return [found.logprobs.cpu(), *([found.sum_squared_probs.cpu()] if needs_squares else [])]

    logprobs, *squares = _of_all(
        samples, params.temperature, params.log_threshold, micro_batch_tokens, trainer, statistics
    )
    return replace(samples, proximal_logprobs=logprobs, sum_squared_probs=squares[0] if squares else None)


def with_reference_logprobs(
    samples: TrainingSamples,
    params: RlParams,
    micro_batch_tokens: int,
    trainer: Trainer,
    reference: Reference,
) -> TrainingSamples:
    """The samples with the reference's log-probs; collective.

    Over the whole vocabulary also when the policy's is pruned: what the reference would say must not depend on how
    sharp it is.
    """
    (logprobs,) = _of_all(
        samples,
        params.temperature,
        None,
        micro_batch_tokens,
        trainer,
        lambda batch: [reference.logprobs(batch)],
    )
    return replace(samples, reference_logprobs=logprobs)


def _of_all(
    samples: TrainingSamples,
    temperature: float,
    log_threshold: float | None,
    micro_batch_tokens: int,
    trainer: Trainer,
    statistics: Callable[[ResponseBatch], list[Tensor]],
) -> list[Tensor]:
    """What `statistics` gives, [responses, tokens] each, computed in the ranks' shares and known to all of them."""
    sequences = samples.sequences
    found: list[tuple[list[int], list[Tensor]]] = []
    for indices in micro_batch_indices(samples, micro_batch_tokens, trainer):
        # An empty share goes through the model too: ranks take part in the same collectives.
        batch = pack([sequences[index] for index in indices or [0]], temperature, log_threshold=log_threshold)
        found.append((indices, statistics(batch)))
    whole = [torch.zeros_like(samples.response_mask) for _ in found[0][1]]
    for indices, tensors in (one for part in trainer.gather(found) for one in part):
        for target, tensor in zip(whole, tensors, strict=True):
            target[indices, : tensor.shape[1]] = tensor[: len(indices)]
    return whole
