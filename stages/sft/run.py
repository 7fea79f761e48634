"""Wires the `sft` stage: tables and policy in, policy, metrics and curves out."""

from __future__ import annotations

from argparse import Namespace

import pandas

from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence
from stages.engines.policies.tokenizers import load_tokenizer
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.engines.trainers.training_loop import VALIDATION, Curve
from stages.foundations.errors import UserError
from stages.foundations.funnel import Funnel
from stages.foundations.job import Job
from stages.foundations.metrics import write_curves, write_metrics
from stages.foundations.prompts import PromptParams
from stages.foundations.tables.demonstration import DEMONSTRATION
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.table import read_table, require_rows, write_table
from stages.observe.tracking import track
from stages.sft.demonstrations import encode_demonstrations
from stages.sft.fine_tuning import fine_tune
from stages.sft.params import SftParams


def main(job: Job) -> None:
    """Reads the inputs, trains, and writes the outputs, metrics last."""
    paths = job.paths
    params: SftParams = job.sections["sft"]
    trainer_params: TrainerParams = job.sections["trainer"]
    prompt: PromptParams = job.sections["prompt"]
    seed = job.seed
    funnel, train, validation = _encode(paths, params, prompt)
    trainer = build_trainer(
        trainer_params,
        params.optimizer,
        params.max_gradient_norm,
        language_model(paths.policy, trainer_params),
    )
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
    encoded = [
        encode_demonstrations(frame, tokenizer, prompt, params.max_sequence_tokens, funnel)
        for frame in frames
    ]
    if not all(encoded):
        raise UserError(
            f"no demonstration fits sft.max_sequence_tokens {params.max_sequence_tokens}: raise it, "
            "or make shorter demonstrations"
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


def _write(
    paths: Namespace, trainer: Trainer, funnel: Funnel, curve: Curve, metrics: dict[str, float]
) -> None:
    with replace_folder_together(trainer, paths.out) as folder:
        trainer.save_model(folder)
    if trainer.rank == 0:
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_curves(paths.curves, curve)
        write_metrics(paths.metrics, metrics, {paths.headline: {"loss": "loss/validation_last"}})
