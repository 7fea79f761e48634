"""Learns preferences: batches of groups, a validation after each epoch, the best epoch's weights.

A group is one prompt: its pictures once each, the pairs among them, and what people rated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import pandas
import torch

from stages.engines.image_scorers.scorer import ImageScorer, Pictures
from stages.engines.image_scorers.training import ASPECTS, RewardBatch, reward_loss
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer
from stages.engines.trainers.training_loop import Curve, Schedule, train_and_keep_best
from stages.foundations.seeds import derive_seed, endless_order
from stages.foundations.tables import ASPECTS as RATINGS
from stages.observe.tracking import Run
from stages.reward_model.stage import RewardModelParams


@dataclass(frozen=True)
class Group:
    """The preferences of one prompt."""

    image_ids: tuple[str, ...]
    better: tuple[int, ...]
    """Places in `image_ids`, one for each pair."""
    worse: tuple[int, ...]
    weights: tuple[float, ...]
    ratings: numpy.ndarray
    """float[images, 3], NaN where nobody rated"""


@dataclass(frozen=True)
class Preferences:
    """What there is to learn from."""

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
    """One row an update, and the folder of the model with the lowest validation loss; `scorer` is what learns."""
    train, pictures = preferences.train, preferences.pictures
    an_epoch = -(-len(train) // params.groups_per_batch)

    def update(step: int, scale: float) -> dict[str, float]:
        first, last = step * params.groups_per_batch, (step + 1) * params.groups_per_batch
        order = endless_order(first, last, len(train), seed, "reward_model", round_name)
        groups = [train[index] for index in order]
        done = trainer.update(
            micro_batches(
                groups,
                pictures,
                scorer,
                params.micro_batch_images,
                trainer.rank,
                trainer.world_size,
                seed,
                "reward_model",
                round_name,
                step,
            ),
            reward_loss(*_totals(groups), params.rating_weight),  # of all ranks' groups: shares add up
            scale,
        )
        shown = done.diagnostics
        row = {
            "loss/train": shown["ranking"],
            "accuracy/train": shown["right"],
            "optim/gradient_norm": done.gradient_norm,
        }
        return row | ({"loss/rating": shown["rating"]} if params.rating_weight else {})

    schedule = Schedule(
        params.epochs * an_epoch,
        params.warmup_steps,
        params.final_learning_rate_fraction,
        an_epoch,
        params.checkpoint_every_steps,
    )
    return train_and_keep_best(
        "reward_model",
        schedule,
        trainer,
        checkpoints,
        run,
        update,
        lambda: validated(params, scorer, trainer, preferences),
    )


def validated(
    params: RewardModelParams, scorer: ImageScorer, trainer: Trainer, preferences: Preferences
) -> dict[str, float]:
    """Mean pairwise loss and share of pairs in the right order, over all ranks."""
    groups = preferences.validation
    loss = reward_loss(*_totals(groups), 0.0)
    total = torch.zeros(2, dtype=torch.float64)
    for batch in micro_batches(
        groups, preferences.pictures, scorer, params.micro_batch_images, trainer.rank, trainer.world_size, 0
    ):
        # Under ZeRO 3 every rank must evaluate as often: one whose share is used up sees a group that counts nowhere.
        seen = reward_batch(groups[:1], preferences.pictures, scorer, 0) if batch.is_empty else batch
        outputs = trainer.evaluate(seen)
        if batch.is_empty:
            continue
        share, shown = loss(outputs, batch.to(trainer.device))
        total += torch.stack([share, shown["right"]]).double().cpu()
    found, right = trainer.sum_over_ranks(total).tolist()
    return {"loss/validation": found, "accuracy/validation": right}


def raw_rewards(scorer: ImageScorer, groups: Sequence[Group], pictures: Pictures, at_once: int) -> numpy.ndarray:
    """The reward head's outputs for the groups' pictures, before normalisation."""
    ids = [name for group in groups for name in group.image_ids]
    found = []
    with torch.no_grad():
        for start in range(0, len(ids), at_once):
            part = ids[start : start + at_once]
            hidden = scorer.encode_images(pictures.images(part).to(scorer.device))
            found.append(scorer.raw_reward(hidden, scorer.encode_prompts(pictures.prompts(part))).cpu())
    return torch.cat(found).double().numpy()


def _totals(groups: Sequence[Group]) -> tuple[float, int]:
    """Weight of all pairs, and number of ratings."""
    weight = sum(sum(group.weights) for group in groups)
    return weight, int(sum(numpy.isfinite(group.ratings).sum() for group in groups))


def groups_of(pairs: pandas.DataFrame, ratings: pandas.DataFrame) -> list[Group]:
    """A group for each prompt of a `pair` table, by prompt id; ratings by image id as `standardised` gives them."""
    groups = []
    for _, own in pairs.groupby("prompt_id", sort=True):
        image_ids = sorted({*own["better_image_id"], *own["worse_image_id"]})
        place = {name: number for number, name in enumerate(image_ids)}
        groups.append(
            Group(
                tuple(image_ids),
                tuple(own["better_image_id"].map(place)),
                tuple(own["worse_image_id"].map(place)),
                tuple(own["weight"]),
                ratings.reindex(image_ids).to_numpy(dtype=float),
            )
        )
    return groups


def standardised(ratings: pandas.DataFrame, train_images: set[str]) -> pandas.DataFrame:
    """Mean rating of each image by aspect, with mean 0 and spread 1 on the images to train on; the index is the id."""
    means = ratings.groupby("image_id", sort=True)[list(RATINGS)].mean()
    known = means[means.index.isin(train_images)]
    spread = known.std(ddof=0)
    return (means - known.mean()) / spread.where(spread > 0, 1.0)


def micro_batches(
    groups: Sequence[Group],
    pictures: Pictures,
    scorer: ImageScorer,
    most_images: int,
    rank: int,
    ranks: int,
    *seed: int | str,
) -> list[RewardBatch]:
    """This rank's micro-batches of `groups`, as many as every other rank's; empty ones where it has fewer."""
    # Every rank cuts every rank's share, which costs nothing, and so knows without asking how many passes there are.
    chunks = [_chunks(groups[each::ranks], most_images) for each in range(ranks)]
    count = max(map(len, chunks))
    mine = [*chunks[rank], *([[]] * (count - len(chunks[rank])))]
    return [
        reward_batch(chunk, pictures, scorer, derive_seed(*seed, rank, number)) for number, chunk in enumerate(mine)
    ]


def reward_batch(groups: Sequence[Group], pictures: Pictures, scorer: ImageScorer, seed: int) -> RewardBatch:
    """The groups' pictures in one batch; none gives an empty one."""
    ids = [name for group in groups for name in group.image_ids]
    starts = numpy.cumsum([0, *(len(group.image_ids) for group in groups)])
    pairs = {
        side: [
            start + place
            for start, group in zip(starts, groups, strict=False)  # `starts` has the end as well
            for place in getattr(group, side)
        ]
        for side in ("better", "worse")
    }
    side = scorer.config.image_size
    images = pictures.images(ids) if ids else torch.zeros(0, 3, side, side)
    ratings = numpy.concatenate([*(group.ratings for group in groups), numpy.zeros((0, ASPECTS))])
    return RewardBatch(
        images,
        *scorer.encode_prompts(pictures.prompts(ids) or [""]),  # the tokenizer has no batch of none
        torch.tensor(pairs["better"], dtype=torch.long),
        torch.tensor(pairs["worse"], dtype=torch.long),
        torch.tensor([weight for group in groups for weight in group.weights], dtype=torch.float32),
        torch.from_numpy(ratings).float(),
        seed,
    )


def _chunks(groups: Sequence[Group], most_images: int) -> list[list[Group]]:
    chunks: list[list[Group]] = []
    room = 0
    for group in groups:
        if len(group.image_ids) > room:
            chunks.append([])
            room = most_images
        chunks[-1].append(group)
        room -= len(group.image_ids)
    return chunks
