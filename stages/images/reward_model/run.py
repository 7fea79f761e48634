"""Trains the reward model on preferences: batches of groups, a validation after each epoch, the best epoch's weights.

A group is one prompt: its pictures once each, the pairs among them, and people's ratings. A reward head on top of the
base scorer learns, with the first layers frozen. Source: ImageReward (arXiv 2304.05977, section 3.1 and appendix B;
code at c1392c6d).

Deviations from it:
1. `fan_in` as the head's initialisation. The released one, N(0, 1/769) over five linear layers, gives gradients below
   Adam's epsilon. At a learning rate of 1e-5 the loss stays at 0.69315 for hundreds of steps (ImageReward#45).
2. Whole layers are frozen. In ImageReward, freezing 70% stops inside the layer after the last one.
3. Dropout comes from the batch's seed, so that a resumed run repeats it.
4. Ratings may be learnt beside the ranking, from the same state, by a head that is not saved.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy
import pandas
import torch
from torch import Tensor, nn

from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.protocol import LossFunction, Ranks, TrainedModel, Trainer, replace_folder_together
from stages.engines.trainers.training_loop import Curve, Schedule, best_row, train_and_keep_best
from stages.foundations.errors import UserError
from stages.foundations.files import write_curves, write_metrics
from stages.foundations.job import Job
from stages.foundations.seeds import derive_seed, endless_order
from stages.foundations.tables import ASPECTS, PAIR, RATING, read_table, require_rows
from stages.images.algorithms.text_to_image_losses import pairwise_ranking_loss
from stages.images.engines.image_scorers.config import RewardHeadSizes
from stages.images.engines.image_scorers.scorer import (
    ImageScorer,
    Pictures,
    PicturesBatch,
    Tokens,
    load_pictures,
    load_scorer,
    reward_head,
    save_scorer,
    score_pictures,
)
from stages.images.reward_model.stage import RewardModelParams
from stages.observe.tracking import Run, track


def main(job: Job) -> None:
    """Reads the inputs, trains, and writes the outputs, metrics last."""
    paths = job.paths
    params: RewardModelParams = job.sections["reward_model"]
    trainer_params: TrainerParams = job.sections["trainer"]
    seed = job.seed
    scorer = load_scorer(paths.scorer, "cpu").train().requires_grad_(True)
    preferences = _preferences(paths, scorer.config.image_size)
    add_reward_head(scorer, params.head, params.head_initialisation, derive_seed(seed, "reward_head"))
    freeze(scorer, params.frozen_fraction)
    if trainer_params.gradient_checkpointing:
        # The pictures' activations are most of the memory, and BlipTextModel rejects checkpointing.
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
    # The same twice where no earlier round counts.
    pools = list(dict.fromkeys([paths.pool, paths.earlier_pool]))
    ids = {*learnt["better_image_id"], *learnt["worse_image_id"]}
    return Preferences(groups["train"], groups["validation"], load_pictures(pools, ids, side))


def _normalised(best: Path, preferences: Preferences, at_once: int) -> ImageScorer:
    """Returns the best model, normalised by the mean and spread of its rewards on validation pictures."""
    # On every rank, on the CPU and in float32: nothing is shared, and evaluation scores in float32 too.
    scorer = load_scorer(best, "cpu")
    ids = [name for group in preferences.validation for name in group.image_ids]
    # Still raw rewards: a newly trained model has mean 0 and spread 1 in its config.
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


@dataclass(frozen=True)
class Group:
    """The preferences of one prompt."""

    image_ids: tuple[str, ...]
    better: tuple[int, ...]
    """Places in `image_ids`, one for each pair."""
    worse: tuple[int, ...]
    weights: tuple[float, ...]
    ratings: numpy.ndarray
    """float[images, 3], NaN where not rated"""


@dataclass(frozen=True)
class Preferences:
    """The training and validation data."""

    train: list[Group]
    validation: list[Group]
    pictures: Pictures


def learn(
    params: RewardModelParams,
    round_name: str,
    seed: int,
    scorer: ImageScorer,
    trainer: Trainer,
    preferences: Preferences,
    checkpoints: Checkpoints,
    run: Run,
) -> tuple[Curve, Path]:
    """Returns one row per update, and the folder of the model with the lowest validation loss; `scorer` learns."""
    train, pictures = preferences.train, preferences.pictures
    an_epoch = -(-len(train) // params.groups_per_batch)

    def update(step: int, scale: float) -> dict[str, float]:
        first, last = step * params.groups_per_batch, (step + 1) * params.groups_per_batch
        order = endless_order(first, last, len(train), seed, "reward_model", round_name)
        groups = [train[index] for index in order]
        stream = (seed, "reward_model", round_name, step)
        done = trainer.update(
            micro_batches(groups, pictures, scorer, params.micro_batch_images, trainer, *stream),
            # The totals are those of all ranks' groups, so that the ranks' shares add up to one loss.
            reward_loss(*_totals(groups), params.rating_weight),
            scale,
        )
        shown = done.diagnostics
        row = {
            "loss/train": shown["ranking"],
            "accuracy/train": shown["right"],
            "optim/gradient_norm": done.gradient_norm,
        }
        return row | ({"loss/rating": shown["rating"]} if params.rating_weight else {})

    def validate() -> dict[str, float]:
        return _validated(params, scorer, trainer, preferences)

    schedule = Schedule(
        steps=params.epochs * an_epoch,
        warmup_steps=params.warmup_steps,
        final_learning_rate_fraction=params.final_learning_rate_fraction,
        validate_every_steps=an_epoch,
        checkpoint_every_steps=params.checkpoint_every_steps,
    )
    return train_and_keep_best("reward_model", schedule, trainer, checkpoints, run, update, validate)


def _validated(
    params: RewardModelParams, scorer: ImageScorer, trainer: Trainer, preferences: Preferences
) -> dict[str, float]:
    """Mean pairwise loss and share of pairs in the right order, over all ranks."""
    groups = preferences.validation
    # Only of the ranking: the epoch is chosen by the model's purpose.
    share_of = reward_loss(*_totals(groups), 0.0)
    total = torch.zeros(2, dtype=torch.float64)
    for batch in micro_batches(groups, preferences.pictures, scorer, params.micro_batch_images, trainer, 0):
        # Under ZeRO 3 every rank must evaluate as often: one whose share is used up gets a group that does not count.
        seen = reward_batch(groups[:1], preferences.pictures, scorer, 0) if batch.is_empty else batch
        outputs = trainer.evaluate(seen)
        if batch.is_empty:
            continue
        share, shown = share_of(outputs, batch.to(trainer.device))
        total += torch.stack([share, shown["right"]]).double().cpu()
    loss, right = trainer.sum_over_ranks(total).tolist()
    return {"loss/validation": loss, "accuracy/validation": right}


def _totals(groups: Sequence[Group]) -> tuple[float, int]:
    """Returns the weight of all pairs, and the number of ratings."""
    weight = sum(sum(group.weights) for group in groups)
    return weight, int(sum(numpy.isfinite(group.ratings).sum() for group in groups))


def groups_of(pairs: pandas.DataFrame, ratings: pandas.DataFrame) -> list[Group]:
    """A group for each prompt of a `pair` table, by prompt id; ratings by image id as `standardised` returns."""
    groups = []
    for _, rows in pairs.groupby("prompt_id", sort=True):
        image_ids = sorted({*rows["better_image_id"], *rows["worse_image_id"]})
        place = {name: number for number, name in enumerate(image_ids)}
        groups.append(
            Group(
                tuple(image_ids),
                tuple(rows["better_image_id"].map(place)),
                tuple(rows["worse_image_id"].map(place)),
                tuple(rows["weight"]),
                ratings.reindex(image_ids).to_numpy(dtype=float),
            )
        )
    return groups


def standardised(ratings: pandas.DataFrame, train_images: set[str]) -> pandas.DataFrame:
    """The mean rating of each image by aspect, with mean 0 and spread 1 on the training images; indexed by id."""
    means = ratings.groupby("image_id", sort=True)[list(ASPECTS)].mean()
    known = means[means.index.isin(train_images)]
    spread = known.std(ddof=0)
    # If all ratings are equal they become 0, which teaches nothing.
    return (means - known.mean()) / spread.where(spread > 0, 1.0)


def micro_batches(
    groups: Sequence[Group], pictures: Pictures, scorer: ImageScorer, most_images: int, ranks: Ranks, *seed: int | str
) -> list[RewardBatch]:
    """Returns this rank's micro-batches of `groups`, as many as every other rank's; empty ones where it has fewer."""
    # Every rank cuts every rank's share, which costs nothing, and so knows the number of passes without communication.
    chunks = [_chunks(groups[each :: ranks.world_size], most_images) for each in range(ranks.world_size)]
    mine = [
        reward_batch(chunk, pictures, scorer, derive_seed(*seed, ranks.rank, number))
        for number, chunk in enumerate(chunks[ranks.rank])
    ]
    return mine + [NOTHING] * (max(map(len, chunks)) - len(mine))


def reward_batch(groups: Sequence[Group], pictures: Pictures, scorer: ImageScorer, seed: int) -> RewardBatch:
    ids = [name for group in groups for name in group.image_ids]
    starts = numpy.cumsum([0, *(len(group.image_ids) for group in groups)])[:-1]
    better, worse = (
        [start + place for start, group in zip(starts, groups, strict=True) for place in getattr(group, side)]
        for side in ("better", "worse")
    )
    return RewardBatch(
        pictures.images(ids),
        *scorer.encode_prompts(pictures.prompts(ids)),
        torch.tensor(better),
        torch.tensor(worse),
        torch.tensor([weight for group in groups for weight in group.weights], dtype=torch.float32),
        torch.from_numpy(numpy.concatenate([group.ratings for group in groups])).float(),
        seed,
    )


def _chunks(groups: Sequence[Group], most_images: int) -> list[list[Group]]:
    chunks: list[list[Group]] = []
    room = 0
    for group in groups:
        # A group is never cut: its pairs need all of its pictures in one pass.
        if len(group.image_ids) > room:
            chunks.append([])
            room = most_images
        chunks[-1].append(group)
        room -= len(group.image_ids)
    return chunks


MATCHING_SCALE = 0.2
"""Log-odds of a match are more certain than preferences: this scales a difference of 5 to 1, 73% of pairs."""


@dataclass(frozen=True)
class RewardBatch(PicturesBatch):
    """Pictures of some prompts, each picture once with its prompt, and the pairs among them."""

    better: Tensor
    """[pairs]: rows of the preferred images"""
    worse: Tensor
    weights: Tensor
    """[pairs]"""
    ratings: Tensor
    """[images, 3], standardised; NaN where not rated"""
    seed: int
    """Seed of the dropout."""


NOTHING = RewardBatch(*[torch.zeros(0)] * 7, seed=0)
"""Keeps a rank in step with others that have one micro-batch more."""


class RewardOutputs(NamedTuple):
    """Scores of a batch's images."""

    rewards: Tensor
    """[images], before normalisation"""
    ratings: Tensor
    """[images, 3]"""


class RewardLearner(nn.Module):
    """A scorer and, only for training, a head for the ratings."""

    def __init__(self, scorer: ImageScorer, seed: int) -> None:
        super().__init__()
        self.scorer = scorer
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.rating_head = nn.Linear(scorer.config.text.hidden_size, len(ASPECTS))


def add_reward_head(
    scorer: ImageScorer, sizes: RewardHeadSizes, initialisation: Literal["fan_in", "released", "matching"], seed: int
) -> None:
    """Gives the scorer a reward head, replacing an existing one; equal seeds give equal heads.

    `matching` starts from the matching head: the reward is the log-odds of a match times `MATCHING_SCALE`. UserError
    where there is none, or where the reward head has more than one layer.
    """
    width = scorer.config.text.hidden_size
    head = reward_head(width, sizes)
    generator = torch.Generator().manual_seed(seed)
    if initialisation == "matching":
        if not scorer.config.has_matching_head or sizes.widths or sizes.dropouts:
            raise UserError(
                "reward_model.head_initialisation is matching: set `head: {widths: [], dropouts: []}` and take a base "
                "scorer that has a matching head, or use fan_in"
            )
        with torch.no_grad():
            for mine, matching in zip(head[0].parameters(), scorer.matching_head.parameters(), strict=True):
                # Log-odds: the logit of a match minus that of no match.
                mine.copy_(MATCHING_SCALE * (matching[1:] - matching[:1]))
    for layer in head:
        if isinstance(layer, nn.Linear) and initialisation != "matching":
            # The released code initialises every layer as if it had the first one's width.
            spread = layer.in_features**-0.5 if initialisation == "fan_in" else 1 / (width + 1)
            nn.init.normal_(layer.weight, std=spread, generator=generator)
            nn.init.zeros_(layer.bias)
    # Not normalised while it learns: mean and spread are those of the best epoch, measured at the end.
    scorer.reward_head = head
    scorer.config = scorer.config.model_copy(update={"reward_head": sizes, "reward_mean": 0.0, "reward_std": 1.0})


def freeze(scorer: ImageScorer, fraction: float) -> None:
    """Freezes this share of both encoders' layers, from the input on and rounded down.

    With a share above 0 the embeddings are frozen too; the contrastive and matching heads always are.
    """
    for name in ("vision_projection", "text_projection", "matching_head", "temperature"):
        if hasattr(scorer, name):
            getattr(scorer, name).requires_grad_(False)
    if fraction == 0:
        return
    for encoder, layers in ((scorer.vision, scorer.vision.encoder.layers), (scorer.text, scorer.text.encoder.layer)):
        encoder.embeddings.requires_grad_(False)
        for layer in layers[: int(fraction * len(layers))]:
            layer.requires_grad_(False)


def reward_outputs(learner: nn.Module, batch: RewardBatch) -> RewardOutputs:
    """Returns rewards and ratings; each picture is encoded once, even if it is in many pairs."""
    assert isinstance(learner, RewardLearner)
    scorer = learner.scorer
    device = batch.images.device
    # The streams outside are unchanged.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(batch.seed)
        fused = scorer.fused(scorer.encode_images(batch.images), Tokens(batch.ids, batch.mask))
        rewards = scorer.reward_head(fused)[:, 0]
    return RewardOutputs(rewards.float(), learner.rating_head(fused).float())


def reward_loss(pair_weight: float, rated: int, rating_weight: float) -> LossFunction[RewardOutputs, RewardBatch]:
    """A micro-batch's share: the pairwise loss, and `rating_weight` times the mean square error of the ratings.

    pair_weight: sum of the weights of the whole batch's pairs; rated: its ratings that are not NaN.
    """

    def loss(outputs: RewardOutputs, batch: RewardBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = outputs.rewards[batch.better], outputs.rewards[batch.worse]
        ranking = pairwise_ranking_loss(better, worse, batch.weights) * batch.weights.sum() / pair_weight
        right = ((better > worse) * batch.weights).sum() / pair_weight
        shown = {"ranking": ranking.detach(), "right": right.detach()}
        if not rating_weight:
            return ranking, shown
        is_rated = batch.ratings.isfinite()
        # NaN is removed before the difference: masked after it, it would still return as a gradient of NaN.
        error = (outputs.ratings - batch.ratings.nan_to_num()).square()[is_rated].sum() / max(rated, 1)
        return ranking + rating_weight * error, {**shown, "rating": error.detach()}

    return loss


def reward_model(scorer: ImageScorer, seed: int) -> TrainedModel[RewardBatch, RewardOutputs]:
    """The scorer in the form for trainers; it is saved as a scorer folder, without the head for ratings.

    seed: of that head's initial weights.
    """
    side = scorer.config.image_size
    tokens = scorer.encode_prompts([""])
    none = torch.zeros(0, dtype=torch.long)
    filler = RewardBatch(
        torch.zeros(1, 3, side, side), *tokens, none, none, torch.zeros(0), torch.full((1, len(ASPECTS)), torch.nan), 0
    )

    def save(weights: Mapping[str, Tensor], folder: Path) -> None:
        save_scorer(scorer, folder, {name.removeprefix("scorer."): one for name, one in weights.items()})

    # Each micro-batch has the seed of its dropout.
    return TrainedModel(RewardLearner(scorer, seed), reward_outputs, save, filler, set_mode=nn.Module.train)
