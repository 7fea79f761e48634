"""Supervised fine-tuning: cross-entropy on response tokens, packed rows, cosine schedule with warm-up.

Every batch depends only on the seed and the step, so a resumed run trains on the same batches as an uninterrupted one.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas
import torch
from torch import Tensor

from stages.algorithms.token_statistics import TokenStatistics
from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import ResponseBatch, TokenSequence, groups_by_rank, pack
from stages.engines.policies.tokenizers import encode_conversation, encode_prompt, encode_response, load_tokenizer
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import LoraParams, TrainerParams, adapter_contradictions
from stages.engines.trainers.protocol import LossFunction, Trainer, replace_folder_together
from stages.engines.trainers.training_loop import VALIDATION, Curve, Schedule, train
from stages.engines.turns import problem_texts
from stages.foundations.errors import UserError
from stages.foundations.files import write_curves, write_metrics
from stages.foundations.job import Job
from stages.foundations.params import ChatFrame, ChatPrompt, PlainPrompt, PromptParams, TextFrame, chosen
from stages.foundations.seeds import derive_seed, endless_order
from stages.foundations.tables import DEMONSTRATION, DROPPED, Funnel, read_table, require_rows, write_table
from stages.observe.progress import progress, say
from stages.observe.tracking import Run, track
from stages.sft.stage import SftParams

EncodeMessages = Callable[[list[dict[str, str]]], tuple[list[int], list[bool], int]]
"""Encodes a conversation, with the results of `encode_conversation`."""


def main(job: Job) -> None:
    """Reads the inputs, trains, and writes the outputs, metrics last."""
    paths = job.paths
    params: SftParams = job.sections["sft"]
    trainer_params: TrainerParams = job.sections["trainer"]
    prompt: PromptParams = job.sections["prompt"]
    seed = job.seed
    # `retrace use` rejects the same settings, but the parameter file may have been edited since.
    if refusals := list(adapter_contradictions("sft", params.adapter, params.optimizer, trainer_params)):
        raise UserError(f"{paths.params} is not usable: {'; '.join(refusals)}")
    funnel, train, validation = _encode(paths, params, prompt)
    model = language_model(paths.policy, trainer_params, prompt)
    match chosen("sft.adapter", params.adapter):
        case LoraParams():
            from stages.engines.policies.lora import with_lora

            model = with_lora(model, params.adapter, derive_seed(seed, "sft", "adapter"))
    trainer = build_trainer(trainer_params, params.optimizer, params.max_gradient_norm, model)
    # The demonstrations are encoded first: an error in them is raised before a run is recorded.
    attempt = job.attempt(policy="sft")
    checkpoints = Checkpoints(attempt.scratch)
    with track(attempt) as run:
        tokens = trainer_params.micro_batch_tokens
        curve = fine_tune(params, tokens, seed, train, validation, trainer, checkpoints, run)
        metrics = {**_metrics(curve), **funnel.metrics(len(train) + len(validation))}
        run.summary(metrics)
        _write(paths, trainer, funnel, curve, metrics)
        checkpoints.clear()
    trainer.close()


def _encode(
    paths: Namespace, params: SftParams, prompt: PromptParams
) -> tuple[Funnel, list[TokenSequence], list[TokenSequence]]:
    tokenizer = load_tokenizer(paths.policy)
    frames: list[pandas.DataFrame] = [
        require_rows(read_table(path, DEMONSTRATION), path, "loosen the rules of filter_web or demonstrate")
        for path in (paths.train, paths.validation)
    ]
    funnel = Funnel("sft", sum(map(len, frames)))
    encode_messages = _conversation_encoder(tokenizer, prompt, paths.policy)
    encoded = [
        encode_demonstrations(frame, tokenizer, prompt, encode_messages, params.max_sequence_tokens, funnel)
        for frame in frames
    ]
    if not all(encoded):
        raise UserError(
            f"no demonstration fits sft.max_sequence_tokens {params.max_sequence_tokens}: raise it, "
            f"or make shorter demonstrations (one of them: {funnel.dropped_frame()['detail'].iloc[-1]})"
        )
    return funnel, encoded[0], encoded[1]


def _metrics(curve: Curve) -> dict[str, float]:
    validated = [row[VALIDATION] for row in curve if VALIDATION in row]
    return {
        "loss/train_last": curve[-1]["loss/train"],
        "loss/validation_last": validated[-1],
        "loss/validation_best": min(validated),
        "progress/steps": len(curve),
        "tokens/trained": sum(row["tokens/trained"] for row in curve),
    }


def _write(paths: Namespace, trainer: Trainer, funnel: Funnel, curve: Curve, metrics: dict[str, float]) -> None:
    with replace_folder_together(trainer, paths.out) as folder:
        trainer.save_model(folder)
    # All ranks save their part of the model; everything else is the same on each rank.
    if trainer.rank == 0:
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_curves(paths.curves, curve)
        write_metrics(paths.metrics, metrics, {paths.headline: {"loss": "loss/validation_last"}})


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
    """Trains for `params.steps` updates, resuming from the last checkpoint if any. Returns one row per step."""

    def update(step: int, scale: float) -> dict[str, float]:
        first, last = step * params.batch_demonstrations, (step + 1) * params.batch_demonstrations
        # Depends only on the step: a resumed run needs no record of the batches.
        order = endless_order(first, last, len(train_sequences), seed, "sft")
        batch = [train_sequences[index] for index in order]
        done = trainer.update(
            micro_batches(batch, micro_batch_tokens, params.max_sequence_tokens, trainer),
            cross_entropy(sum(sequence.written_tokens for sequence in batch)),
            scale,
        )
        return {
            "loss/train": done.loss,
            "optim/gradient_norm": done.gradient_norm,
            "tokens/trained": sum(sequence.tokens for sequence in batch),
        }

    def validate() -> dict[str, float]:
        return {VALIDATION: mean_loss(validation, micro_batch_tokens, params.max_sequence_tokens, trainer)}

    return train("sft", Schedule.of(params), trainer, checkpoints, run, update, validate)


def cross_entropy(batch_tokens: int) -> LossFunction:
    """Returns the loss -sum(log p) / `batch_tokens` over response tokens, as a `LossFunction`."""

    def loss(statistics: TokenStatistics, batch: ResponseBatch) -> tuple[Tensor, dict[str, float]]:
        # Divided by the tokens of the whole batch: the sum over micro-batches and ranks is then the mean loss, for any
        # split.
        return -(statistics.logprobs * batch.response_mask).sum() / batch_tokens, {}

    return loss


def micro_batches(
    sequences: Sequence[TokenSequence], max_tokens: int, row_tokens: int, trainer: Trainer
) -> list[ResponseBatch]:
    """Returns this rank's packed micro-batches of `sequences`."""
    mine = groups_by_rank([sequence.tokens for sequence in sequences], max_tokens, trainer)[trainer.rank]
    # A rank without a share takes part in the pass with an empty response.
    nothing = TokenSequence(sequences[0].prompt, [])
    return [
        # No row can be longer than the micro-batch that holds it.
        pack([sequences[index] for index in group] or [nothing], row_tokens=min(row_tokens, max_tokens))
        for group in mine
    ]


def mean_loss(sequences: Sequence[TokenSequence], max_tokens: int, row_tokens: int, trainer: Trainer) -> float:
    """Returns the mean cross-entropy in nats per response token, over all ranks."""
    total = torch.zeros(2, dtype=torch.float64)
    for batch in micro_batches(sequences, max_tokens, row_tokens, trainer):
        # Summed in float64 below, because these are tens of thousands of small numbers.
        logprobs = trainer.evaluate(batch).logprobs.cpu()
        total += torch.stack([-(logprobs * batch.response_mask).sum(), batch.response_mask.sum()]).double()
    loss, tokens = trainer.sum_over_ranks(total).tolist()
    return loss / tokens


def encode_demonstrations(
    frame: pandas.DataFrame,
    tokenizer,
    prompt: PlainPrompt | ChatPrompt,
    encode_messages: EncodeMessages,
    max_sequence_tokens: int,
    funnel: Funnel,
) -> list[TokenSequence]:
    """Returns one sequence per row of a `demonstration` table; responses end with the end-of-sequence token.

    Rows longer than `max_sequence_tokens` are dropped: truncated responses would teach the policy not to end. So are
    conversations that the chat template rejects.
    """
    sequences, context = [], 0
    rows = frame.to_dict("records")
    # The prompts of sampling contain an environment's text before the first turn, so these contain it as well. The
    # first turn of a conversation has it already.
    texts = iter(problem_texts(prompt, [row for row in rows if not isinstance(row.get("messages"), str)]))
    for row in progress(rows, label="sft: tokens of demonstrations"):
        if isinstance(row.get("messages"), str):
            try:
                ids, is_written, turns = encode_messages(json.loads(row["messages"]))
            except UserError as error:
                funnel.drop(row, "refused_by_template", str(error))
                continue
            context += turns
            start = is_written.index(True)
            sequence = TokenSequence(ids[:start], ids[start:], is_written[start:])
        else:
            asked = encode_prompt(tokenizer, prompt, next(texts))
            sequence = TokenSequence(asked, encode_response(tokenizer, row["response"], prompt, asked))
        if sequence.tokens > max_sequence_tokens:
            funnel.drop(row, "too_long", f"{sequence.tokens} tokens, limit {max_sequence_tokens}")
        else:
            sequences.append(sequence)
    if context:
        say(f"sft: {context} assistant turns are context only: the chat template rewrites them in later prompts")
    return sequences


def _conversation_encoder(tokenizer, prompt: PlainPrompt | ChatPrompt, policy: Path) -> EncodeMessages:
    """Returns `encode_conversation`; with an environment, what encodes the ids that sampling would have produced."""
    environment = prompt.environment
    match chosen("prompt.environment.frame", environment and environment.frame):
        # Two cases, because a fingerprint follows a case of one class.
        case TextFrame():
            from stages.engines.environments.conversations import turn_encoder

            return turn_encoder(tokenizer, prompt, policy)
        case ChatFrame():
            from stages.engines.environments.conversations import turn_encoder

            return turn_encoder(tokenizer, prompt, policy)
    return partial(encode_conversation, tokenizer, prompt)
