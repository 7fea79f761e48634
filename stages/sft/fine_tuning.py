"""Supervised fine-tuning: cross-entropy on response tokens, packed rows, cosine schedule with warm-up.

Every batch is a function of the seed and the step alone, so a run that goes on from a checkpoint sees what an
uninterrupted one sees.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from stages.algorithms.token_statistics import TokenStatistics
from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack, split_by_tokens
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import LossFunction, Trainer, replace_folder_together
from stages.engines.trainers.schedules import warmup_then_cosine
from stages.foundations.files import write_json
from stages.foundations.seeds import endless_order
from stages.observe.progress import progress, say
from stages.observe.tracking import Run
from stages.sft.params import SftParams

Curve = list[dict[str, float]]


def fine_tune(
    params: SftParams,
    micro_batch_tokens: int,
    seed: int,
    train: Sequence[TokenSequence],
    validation: Sequence[TokenSequence],
    trainer: Trainer,
    checkpoints: Checkpoints,
    run: Run,
) -> Curve:
    """Trains for `params.steps` updates and returns one row per step; goes on from the last checkpoint if any."""
    start, curve = _resume(trainer, checkpoints)
    steps = range(start, params.steps)
    for step in progress(steps, total=len(steps), label="sft", unit="steps"):
        first, last = step * params.batch_demonstrations, (step + 1) * params.batch_demonstrations
        chosen = [train[index] for index in endless_order(first, last, len(train), seed, "sft")]
        with run.phase("train"):
            update = trainer.update(
                micro_batches(chosen, micro_batch_tokens, params.max_sequence_tokens, trainer),
                cross_entropy(sum(len(sequence.response) for sequence in chosen)),
                learning_rate_scale(step, params),
            )
        row = {
            "step": step + 1,
            "loss/train": update.loss,
            "optim/gradient_norm": update.gradient_norm,
            "optim/learning_rate_scale": learning_rate_scale(step, params),
            "tokens/trained": sum(sequence.tokens for sequence in chosen),
        }
        done = step + 1
        if done % params.validate_every_steps == 0 or done == params.steps:
            with run.phase("validate"):
                row["loss/validation"] = mean_loss(
                    validation, micro_batch_tokens, params.max_sequence_tokens, trainer
                )
        curve.append(row)
        run.log({name: value for name, value in row.items() if name != "step"}, step=done)
        if done % params.checkpoint_every_steps == 0 and done < params.steps:
            with run.phase("checkpoint"):
                _save(trainer, checkpoints, done, curve)
    return curve


def learning_rate_scale(step: int, params: SftParams) -> float:
    """Share of the peak learning rate at `step` (from 0)."""
    return warmup_then_cosine(step, params.steps, params.warmup_steps, params.final_learning_rate_fraction)


def cross_entropy(batch_tokens: int) -> LossFunction:
    """The loss -sum(log p) / `batch_tokens` over response tokens, as a `LossFunction`."""

    def loss(statistics: TokenStatistics, batch: ResponseBatch) -> tuple[Tensor, dict[str, float]]:
        return -(statistics.logprobs * batch.response_mask).sum() / batch_tokens, {}

    return loss


def micro_batches(
    sequences: Sequence[TokenSequence], max_tokens: int, row_tokens: int, trainer: Trainer
) -> list[ResponseBatch]:
    """This rank's packed micro-batches of `sequences`."""
    groups = split_by_tokens([sequence.tokens for sequence in sequences], max_tokens, trainer.world_size)
    mine = groups[trainer.rank :: trainer.world_size]
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


def _save(trainer: Trainer, checkpoints: Checkpoints, step: int, curve: Curve) -> None:
    with replace_folder_together(trainer, checkpoints.folder(step)) as folder:
        trainer.save_checkpoint(folder)
        if trainer.rank == 0:
            write_json(folder / "curve.json", curve)
    if trainer.rank == 0:
        checkpoints.keep_last()


def _resume(trainer: Trainer, checkpoints: Checkpoints) -> tuple[int, Curve]:
    found = checkpoints.latest()
    if found is None:
        return 0, []
    step, folder = found
    say(f"sft: going on from step {step}")
    trainer.load_checkpoint(folder)
    return step, json.loads((folder / "curve.json").read_text(encoding="utf-8"))
