"""Wires the `reward_model` stage: base scorer, preferences and pictures in, the round's scorer out."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from stages.engines.image_scorers.scorer import (
    ImageScorer,
    load_pictures,
    load_scorer,
    load_trainable_scorer,
    save_scorer,
    score_pictures,
)
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.protocol import replace_folder_together
from stages.engines.trainers.training_loop import Curve, best_row
from stages.foundations.errors import UserError
from stages.foundations.files import write_curves, write_metrics
from stages.foundations.job import Job
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import PAIR, RATING, read_table, require_rows
from stages.observe.tracking import track
from stages.reward_model.learning import (
    Preferences,
    add_reward_head,
    freeze,
    groups_of,
    learn,
    reward_model,
    standardised,
)
from stages.reward_model.stage import RewardModelParams


def main(job: Job) -> None:
    """Reads the inputs, trains, and writes the outputs, metrics last."""
    paths = job.paths
    params: RewardModelParams = job.sections["reward_model"]
    trainer_params: TrainerParams = job.sections["trainer"]
    seed = job.seed
    scorer = load_trainable_scorer(paths.scorer)
    preferences = _preferences(paths, scorer.config.image_size)
    add_reward_head(scorer, params.head, params.head_initialisation, derive_seed(seed, "reward_head"))
    freeze(scorer, params.frozen_fraction)
    if trainer_params.gradient_checkpointing:
        # The pictures' places are most of the memory, and BlipTextModel refuses.
        scorer.vision.gradient_checkpointing_enable({"use_reentrant": False})
    model = reward_model(scorer, derive_seed(seed, "rating_head"))
    trainer = build_trainer(trainer_params, params.optimizer, params.max_gradient_norm, model)
    attempt = job.attempt(round=job.item)
    checkpoints = Checkpoints(attempt.scratch)
    with track(attempt) as run:
        curve, best = learn(params, job.item, seed, scorer, trainer, preferences, checkpoints, run)
        normalised = _normalised(best, preferences, params.micro_batch_images)
        metrics = _metrics(curve, preferences, normalised)
        run.summary(metrics)
        with replace_folder_together(trainer, paths.out) as folder:
            if trainer.rank == 0:
                save_scorer(normalised, folder)
        if trainer.rank == 0:
            shown = {"loss": "loss/validation_best", "accuracy": "accuracy/validation_best"}
            write_curves(paths.curves, curve)
            write_metrics(paths.metrics, metrics, {paths.headline: shown})
        checkpoints.clear()
    trainer.close()


def _preferences(paths: Namespace, side: int) -> Preferences:
    pairs = require_rows(
        read_table(paths.pairs / "pairs.parquet", PAIR),
        paths.pairs / "pairs.parquet",
        "loosen the rules of preferences, or annotate more",
    )
    learnt = pairs[pairs["split"].isin(["train", "validation"])]
    ratings = read_table(paths.pairs / "ratings.parquet", RATING)
    train = pairs[pairs["split"] == "train"]
    scale = standardised(ratings, {*train["better_image_id"], *train["worse_image_id"]})
    groups = {split: groups_of(rows, scale) for split, rows in learnt.groupby("split")}
    for split in ("train", "validation"):
        if split not in groups:
            raise UserError(
                f"{paths.pairs} has no pairs of split {split}: the best epoch is chosen by validation, so "
                "raise preferences.validation_fraction or t2i_prompts.validation_prompts"
            )
    pools = list(dict.fromkeys([paths.pool, paths.earlier_pool]))  # the same twice where no earlier round counts
    ids = {*learnt["better_image_id"], *learnt["worse_image_id"]}
    return Preferences(groups["train"], groups["validation"], load_pictures(pools, ids, side))


def _normalised(best: Path, preferences: Preferences, at_once: int) -> ImageScorer:
    """The best model, with the mean and spread of its rewards on validation pictures as its normalisation."""
    # On every rank, on the CPU and in float32: nothing is to be shared, and evaluation scores in float32 too.
    scorer = load_scorer(best, "cpu")
    ids = [name for group in preferences.validation for name in group.image_ids]
    # Raw rewards still: a model that was just trained has mean 0 and spread 1 in its config.
    rewards = score_pictures(scorer, ["reward"], preferences.pictures, ids, at_once)["reward"]
    spread = float(rewards.std())
    scorer.config = scorer.config.model_copy(
        update={"reward_mean": float(rewards.mean()), "reward_std": spread if spread > 0 else 1.0}
    )
    return scorer


def _metrics(curve: Curve, preferences: Preferences, scorer: ImageScorer) -> dict[str, float]:
    best = best_row(curve)
    return {
        "loss/train_last": curve[-1]["loss/train"],
        "loss/validation_best": best["loss/validation"],
        "accuracy/validation_best": best["accuracy/validation"],
        "progress/steps": len(curve),
        "progress/best_step": best["step"],
        "normalisation/mean": scorer.config.reward_mean,
        "normalisation/std": scorer.config.reward_std,
        "groups/train": len(preferences.train),
        "pairs/train": sum(len(group.better) for group in preferences.train),
        "groups/validation": len(preferences.validation),
        "pairs/validation": sum(len(group.better) for group in preferences.validation),
    }
