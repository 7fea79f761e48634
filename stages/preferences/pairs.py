"""Pairs of images out of rankings, and their split by prompt."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas

from stages.algorithms.annotator_agreement import circular_triads
from stages.algorithms.preference_ranking import pairs_from_ranking
from stages.foundations.seeds import derive_seed
from stages.foundations.tables.pair import PAIR

Row = Mapping[str, Any]


def splits_of(prompts: pandas.DataFrame, validation_fraction: float, seed: int) -> dict[str, str]:
    """Prompt id -> train, validation or test. A share of the train prompts becomes validation, by a hash of the id.

    So all pairs of a prompt are in one split, in every round, whatever other prompts there are.
    """
    splits = {}
    for prompt_id, split in zip(prompts["prompt_id"], prompts["split"], strict=True):
        drawn = derive_seed(seed, "validation", prompt_id) / 2**63
        splits[prompt_id] = "validation" if split == "train" and drawn < validation_fraction else split
    return splits


def pairs_of(rankings: Sequence[Row], splits: Mapping[str, str]) -> pandas.DataFrame:
    """A row for each two images that a ranking orders, in the rankings' order; ties give none."""
    rows = [
        {
            "prompt_id": row["prompt_id"],
            "annotator_id": row["annotator_id"],
            "better_image_id": row["image_ids"][better],
            "worse_image_id": row["image_ids"][worse],
            "weight": row["weight"],
            "split": splits[row["prompt_id"]],
        }
        for row in rankings
        for better, worse in pairs_from_ranking(row["ranks"])
    ]
    return pandas.DataFrame(rows, columns=PAIR.names)


def drawn_down(pairs: pandas.DataFrame, most: int | None, seed: int) -> pandas.DataFrame:
    """At most `most` pairs of each prompt, drawn by the seed, in the order that they had."""
    if most is None:
        return pairs
    kept: list[int] = []
    for prompt_id, own in pairs.groupby("prompt_id", sort=True):
        numbers = own.index.tolist()
        kept += random.Random(derive_seed(seed, "pairs", prompt_id)).sample(numbers, min(most, len(numbers)))
    return pairs.loc[sorted(kept)].reset_index(drop=True)


def count_ties(rankings: Sequence[Row]) -> int:
    """Pairs of images in one slot."""
    return sum(one == other for row in rankings for one, other in combinations(row["ranks"], 2))


def vote_measures(rankings: Sequence[Row]) -> dict[str, float]:
    """Of rankings of two images by anonymous voters: how far votes can be known at all.

    `ceiling`: share of the votes, by weight, that the better known image of each pair got: no scorer can agree with
    more of them, because it gives a pair one order. `agreement_of_two`: the chance that two voters of one task agree.
    `circular_triads`: A over B over C over A, by majority of all votes of a prompt; their pairs are kept.
    """
    by_task: dict[str, Counter[str]] = defaultdict(Counter)
    by_pair: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    wins: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for row in rankings:
        for better, worse in pairs_from_ranking(row["ranks"]):
            winner, loser = row["image_ids"][better], row["image_ids"][worse]
            by_task[row["task_id"]][winner] += 1
            by_pair[tuple(sorted((winner, loser)))][winner] += row["weight"]
            wins[row["prompt_id"]][winner, loser] += row["weight"]
    agreeing = sum(n * (n - 1) for votes in by_task.values() for n in votes.values())
    meetings = sum(votes.total() * (votes.total() - 1) for votes in by_task.values())
    weight = sum(votes.total() for votes in by_pair.values())
    found = {"votes": len(rankings), "circular_triads": sum(map(circular_triads, wins.values()))}
    if weight:
        found["ceiling"] = sum(max(votes.values()) for votes in by_pair.values()) / weight
    if meetings:
        found["agreement_of_two"] = agreeing / meetings
    return found
