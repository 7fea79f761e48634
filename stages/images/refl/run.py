"""Connects the `refl` stage: generator, scorers and prompts in; generator, curve, metrics and pictures out."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.protocol import TrainedModel
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, write_curves, write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import FEEDBACK_IMAGE, PROMPT, read_table, write_table
from stages.images.algorithms.shape_world import scene_of
from stages.images.engines.generators.denoising import DenoisingBatch, predict
from stages.images.engines.generators.generator import Generator, load_generator, save_generator
from stages.images.engines.image_scorers.scorer import load_scorer
from stages.images.refl.feedback import Feedback, PreferredImages, RewardGradient
from stages.images.refl.measurement import Draws, Judges, Validation, compare_generators
from stages.images.refl.stage import (
    DatasetFiltering,
    DraftFeedback,
    PreferenceFeedback,
    RaftFeedback,
    ReflFeedback,
    ReflParams,
    ReflRound,
    RewardWeighted,
)
from stages.images.refl.training import Learner, Pretraining, train_with_feedback
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads the inputs, trains, compares the result with the start, and writes the outputs, metrics last."""
    paths = job.paths
    params: ReflParams = job.sections["refl"]
    this_round: ReflRound = job.sections["refl_rounds"]
    trainer_params: TrainerParams = job.sections["trainer"]
    prompts = _prompts_by_split(paths.prompts)
    generator = load_generator(paths.generator, torch.device("cpu"))
    # Copies, made before the trainer casts or shards the weights: measurements use float32.
    start = replace(generator, unet=deepcopy(generator.unet).requires_grad_(False))
    average = replace(generator, unet=deepcopy(start.unet))
    # Without the round: its control learns from the same images and noise.
    stream = (job.seed, this_round.start_from)
    match chosen("refl.feedback", params.feedback):
        case ReflFeedback() | DraftFeedback():
            scorer = load_scorer(paths.scorer, generator.device)
            feedback: Feedback = RewardGradient(params, generator, scorer, prompts["train"], *stream)
        case PreferenceFeedback():
            feedback = PreferredImages(params, generator, paths.pairs, paths.pool, *stream)
        case DatasetFiltering() | RewardWeighted() | RaftFeedback():
            from stages.images.refl.generated_pictures import GeneratedPictures

            scorer = load_scorer(paths.scorer, generator.device)
            feedback = GeneratedPictures(params, generator, scorer, prompts["train"], *stream)
    pretraining = Pretraining(params.pretraining, generator, prompts["train"], *stream)
    if trainer_params.gradient_checkpointing:
        generator.unet.enable_gradient_checkpointing()
    model = _model(generator, feedback, pretraining)
    trainer = build_trainer(trainer_params, params.optimizer, params.max_gradient_norm, model)
    generator.move_others(trainer.device)
    for one in (start.unet, average.unet, feedback):
        one.to(trainer.device)
    # A separate scorer for the measurement: the trainer moves that of the feedback and runs backward through it.
    judges = Judges(
        reward=load_scorer(paths.scorer, trainer.device),
        held_out=load_scorer(paths.held_out, trainer.device),
        held_out_variant=this_round.held_out.variant,
        at_once=params.measurement.draw_images,
        knows_truth=all(scene_of(one) is not None for one in (*prompts["validation"], *prompts["test"])),
    )
    attempt = job.attempt(policy=job.item, round=job.item)
    checkpoints = Checkpoints(attempt.scratch)
    with track(attempt) as run:
        validation = Validation(_draws(params, prompts["validation"], "validation", job.seed), judges, start)
        learner = Learner(generator, average, feedback, pretraining, trainer, validation)
        curve, update, weights = train_with_feedback(params, this_round, learner, checkpoints, run)
        if trainer.rank == 0:
            average.unet.load_state_dict(weights)
            draws = _draws(params, prompts["test"], "test", job.seed)
            with run.phase("compare"):
                rows, metrics = compare_generators(start, average, draws, judges, params.measurement.shown_images)
            metrics |= {
                "refl/selected_update": update,
                "refl/updates": this_round.updates,
                "refl/guidance": params.measurement.guidance,
                **_hacked(curve[-1], metrics),
                **feedback.figures,
            }
            run.summary(metrics)
            with replace_folder(paths.out) as folder:
                save_generator(average, folder)
            write_table(rows, paths.pictures, FEEDBACK_IMAGE)
            write_curves(paths.curves, curve)
            judge = "truth" if judges.knows_truth else "held_out"
            shown = {"score": f"refl/{judge}/after", "low": f"refl/{judge}/low", "high": f"refl/{judge}/high"}
            write_metrics(paths.metrics, metrics, {paths.headline: shown})
            checkpoints.clear()
    trainer.close()


def _prompts_by_split(path: Path) -> dict[str, list[str]]:
    """UserError when one of train, validation and test has no prompts."""
    frame = read_table(path, PROMPT)
    by_split = {split: frame["prompt"][frame["split"] == split].tolist() for split in ("train", "validation", "test")}
    for split, prompts in by_split.items():
        if not prompts:
            raise UserError(f"{path} has no {split} prompts: give section t2i_prompts some of that split")
    return by_split


def _model(generator: Generator, feedback: Feedback, pretraining: Pretraining) -> TrainedModel:
    """Only the U-Net: the text encoder stays unchanged, as in ReFL."""
    generator.text_encoder.requires_grad_(False)

    def forward(module: nn.Module, batch: object) -> object:
        is_denoised = isinstance(batch, DenoisingBatch)
        return predict(generator, batch) if is_denoised else feedback.outputs(generator, batch)

    return TrainedModel(
        module=nn.ModuleDict({"unet": generator.unet}),
        forward=forward,
        save=lambda weights, folder: save_generator(generator, folder, weights),
        filler=pretraining.batch(0, [0]),
    )


def _draws(params: ReflParams, prompts: list[str], split: str, seed: int) -> Draws:
    """Returns the pictures of a split: prompts in turn, each with `images_per_prompt` pictures, until there are enough.

    Seeds are those of prompt and number, so every round and its control start from the same noise. The test noise is
    used nowhere else.
    """
    measurement = params.measurement
    # Few pictures of many prompts instead of many of few: intervals are over prompts.
    count = measurement.validation_images if split == "validation" else measurement.test_images
    draws = []
    for place in range(count):
        turn, copy = divmod(place, measurement.images_per_prompt)
        lap, number = divmod(turn, len(prompts))
        # A prompt that is repeated gets other noise, or its pictures would be the same again.
        draws.append((prompts[number], derive_seed(seed, "refl", split, prompts[number], lap, copy)))
    texts, seeds = zip(*draws, strict=True)
    return Draws(texts, seeds, params.sampling_steps, measurement.guidance, measurement.draw_images)


def _hacked(last: dict[str, float], metrics: dict[str, float]) -> dict[str, float]:
    """Metrics of the end of the curve, and `refl/hacked`: 1 where that or the result has reward without the others."""
    at_end = {name.replace("validation/", "refl/at_end/"): last[name] for name in last if "validation/" in name}
    # Both count: a choice by the held-out score can hide that the round ended in reward hacking.
    flags = [value for name, value in {**at_end, **metrics}.items() if "reward_without_" in name]
    return {**at_end, "refl/hacked": max(flags)}
