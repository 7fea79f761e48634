"""Preferences as groups: one prompt, its pictures once each, the pairs among them and what people rated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import pandas
import torch

from stages.engines.image_scorers.pictures import Pictures
from stages.engines.image_scorers.reward_training import ASPECTS, RewardBatch
from stages.engines.image_scorers.scorer import ImageScorer
from stages.foundations.seeds import derive_seed
from stages.foundations.tables.rating import ASPECTS as RATINGS


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
        reward_batch(chunk, pictures, scorer, derive_seed(*seed, rank, number))
        for number, chunk in enumerate(mine)
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
