"""Supervised fine-tuning: cross-entropy on response tokens, packed rows, cosine schedule with warm-up.

Every batch is a function of the seed and the step alone, so a run that goes on from a checkpoint sees what an
uninterrupted one sees.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stages.algorithms.token_statistics import TokenStatistics
from stages.engines.policies.balancing import groups_of_rank
from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import LossFunction, Trainer
from stages.engines.trainers.training_loop import VALIDATION, Curve, Schedule, train
from stages.foundations.seeds import endless_order
from stages.observe.tracking import Run
from stages.sft.params import SftParams


def fine_tune(
    params: SftParams,
    micro_batch_tokens: int,
    seed: int,
    train_sequences: Sequence[TokenSequence],
    validation: Sequence[TokenSequence],
    trainer: Trainer,
    checkpoints: Checkpoints,
    run: Run,
) -> Curve:
    """Trains for `params.steps` updates and returns one row per step; goes on from the last checkpoint if any."""

    def update(step: int, scale: float) -> dict[str, float]:
        first, last = step * params.batch_demonstrations, (step + 1) * params.batch_demonstrations
        order = endless_order(first, last, len(train_sequences), seed, "sft")
        chosen = [train_sequences[index] for index in order]
        done = trainer.update(
            micro_batches(chosen, micro_batch_tokens, params.max_sequence_tokens, trainer),
            cross_entropy(sum(len(sequence.response) for sequence in chosen)),
            scale,
        )
        return {
            "loss/train": done.loss,
            "optim/gradient_norm": done.gradient_norm,
            "tokens/trained": sum(sequence.tokens for sequence in chosen),
        }

    def validate() -> dict[str, float]:
        return {VALIDATION: mean_loss(validation, micro_batch_tokens, params.max_sequence_tokens, trainer)}

    return train("sft", schedule_of(params), trainer, checkpoints, run, update, validate)


def schedule_of(params: SftParams) -> Schedule:
    """The steps of the section, as the loop takes them."""
    return Schedule(
        steps=params.steps,
        warmup_steps=params.warmup_steps,
        final_learning_rate_fraction=params.final_learning_rate_fraction,
        validate_every_steps=params.validate_every_steps,
        checkpoint_every_steps=params.checkpoint_every_steps,
    )


def cross_entropy(batch_tokens: int) -> LossFunction:
    """The loss -sum(log p) / `batch_tokens` over response tokens, as a `LossFunction`."""

    def loss(statistics: TokenStatistics, batch: ResponseBatch) -> tuple[Tensor, dict[str, float]]:
        return -(statistics.logprobs * batch.response_mask).sum() / batch_tokens, {}

    return loss


def micro_batches(
    sequences: Sequence[TokenSequence], max_tokens: int, row_tokens: int, trainer: Trainer
) -> list[ResponseBatch]:
    """This rank's packed micro-batches of `sequences`."""
    mine = groups_of_rank([sequence.tokens for sequence in sequences], max_tokens, trainer)
    nothing = TokenSequence(sequences[0].prompt, [])
    return [
        pack([sequences[index] for index in group] or [nothing], row_tokens=min(row_tokens, max_tokens))
        for group in mine
    ]


def mean_loss(
    sequences: Sequence[TokenSequence], max_tokens: int, row_tokens: int, trainer: Trainer
) -> float:
    """Mean cross-entropy in nats per response token, over all ranks."""
    total = torch.zeros(2, dtype=torch.float64)
    for batch in micro_batches(sequences, max_tokens, row_tokens, trainer):
        logprobs = trainer.evaluate(batch).logprobs.cpu()
        total += torch.stack([-(logprobs * batch.response_mask).sum(), batch.response_mask.sum()]).double()
    loss, tokens = trainer.sum_over_ranks(total).tolist()
    return loss / tokens
