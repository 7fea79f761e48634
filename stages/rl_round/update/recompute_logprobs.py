"""What the trainer and the reference say of the samples before the update, each sample once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from stages.engines.policies.packing import ResponseBatch, pack, split_by_tokens
from stages.engines.trainers.protocol import Trainer
from stages.rl_round.params.rl import RlParams
from stages.rl_round.params.update import OptimalTokenBaseline
from stages.rl_round.update.training_samples import TrainingSamples, groups_by_rank


class Reference(Protocol):
    """A policy that does not learn."""

    def logprobs(self, micro_batch: ResponseBatch) -> Tensor:
        """Log-probs [responses, tokens] on the CPU, at the batch's temperature."""


def with_proximal_statistics(
    samples: TrainingSamples,
    params: RlParams,
    micro_batch_tokens: int,
    trainer: Trainer,
    *seed_parts: int | str,
) -> TrainingSamples:
    """The samples with log-probs of the trainer's present weights; collective.

    On several ranks those of the samples that this rank trains on, where `seed_parts` are those of `update_policy`.
    Also with sums of squared probabilities where the estimator is the optimal token baseline.
    """
    needs_squares = isinstance(params.advantage, OptimalTokenBaseline)

    def statistics(batch: ResponseBatch) -> list[Tensor]:
        found = trainer.evaluate(batch)
        return [found.logprobs.cpu(), *([found.sum_squared_probs.cpu()] if needs_squares else [])]

    logprobs, *squares = _of_all(
        samples, params, params.log_threshold, micro_batch_tokens, trainer, statistics, *seed_parts
    )
    return replace(samples, proximal_logprobs=logprobs, sum_squared_probs=squares[0] if squares else None)


def with_reference_logprobs(
    samples: TrainingSamples,
    params: RlParams,
    micro_batch_tokens: int,
    trainer: Trainer,
    reference: Reference,
    *seed_parts: int | str,
) -> TrainingSamples:
    """The samples with the reference's log-probs; collective, and on several ranks as `with_proximal_statistics`.

    Over the whole vocabulary also when the policy's is pruned: what the reference would say must not depend on how
    sharp it is.
    """
    (logprobs,) = _of_all(
        samples,
        params,
        None,
        micro_batch_tokens,
        trainer,
        lambda batch: [reference.logprobs(batch)],
        *seed_parts,
    )
    return replace(samples, reference_logprobs=logprobs)


def _of_all(
    samples: TrainingSamples,
    params: RlParams,
    log_threshold: float | None,
    micro_batch_tokens: int,
    trainer: Trainer,
    statistics: Callable[[ResponseBatch], list[Tensor]],
    *seed_parts: int | str,
) -> list[Tensor]:
    """What `statistics` gives, [responses, tokens] each; of the other ranks' samples only where a baseline asks."""
    sequences = samples.sequences
    lengths = [sequence.tokens for sequence in sequences]
    if trainer.world_size == 1:
        groups = split_by_tokens(lengths, micro_batch_tokens)
    else:
        groups = groups_by_rank(lengths, params.minibatches, micro_batch_tokens, trainer, *seed_parts)[
            trainer.rank
        ]
    found: list[tuple[list[int], list[Tensor]]] = []
    for indices in groups:
        # An empty share goes through the model too: ranks take part in the same collectives.
        batch = trainer.model.filler
        if indices:
            batch = pack(
                [sequences[index] for index in indices], params.temperature, log_threshold=log_threshold
            )
        found.append((indices, statistics(batch)))
    whole = [torch.zeros_like(samples.response_mask) for _ in found[0][1]]
    compares_tokens = isinstance(params.advantage, OptimalTokenBaseline)
    for indices, tensors in (
        one for part in (trainer.gather(found) if compares_tokens else [found]) for one in part
    ):
        for target, tensor in zip(whole, tensors, strict=True):
            target[indices, : tensor.shape[1]] = tensor[: len(indices)]
    return whole
