"""Annotations to preferences: judges annotators, keeps rankings, makes pairs of images, splits them by prompt."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas

from stages.algorithms.preference_agreement import circular_triads, rank_consistency
from stages.algorithms.text_to_image_losses import pairs_from_ranking
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import ANNOTATOR, DROPPED, PAIR, PROMPT, RANKING, RATING, Funnel, read_table, write_table
from stages.observe.tracking import track
from stages.preferences.annotators import agreement_measures, judge_annotators, overall_ratings, ranks_of, ratings_of
from stages.preferences.stage import PreferencesParams


def main(job: Job) -> None:
    """Reads a round's annotations (and an earlier one's), judges the annotators, writes pairs; metrics last.

    UserError when no pair is left to train on.
    """
    paths = job.paths
    params: PreferencesParams = job.sections["preferences"]
    seed = job.seed
    # An annotator of both rounds is one person, who is judged by all of the work.
    folders = list(dict.fromkeys([paths.annotations, paths.earlier]))
    rankings, ratings = (
        pandas.concat([read_table(folder / name, schema) for folder in folders], ignore_index=True)
        for name, schema in (("rankings.parquet", RANKING), ("ratings.parquet", RATING))
    )
    attempt = job.attempt(round=job.item)
    with track(attempt) as run:
        splits = splits_of(read_table(paths.prompts, PROMPT), params.validation_fraction, seed)
        annotators = judge_annotators(rankings, ratings, params.annotator_rules)
        for row in annotators[~annotators["is_kept"]].to_dict("records"):
            print(f"annotator {row['annotator_id']} is left out: {row['reason']}", flush=True)
        kept, funnel = keep_rankings(rankings, ratings, annotators, splits, params)
        pairs = drawn_down(pairs_of(kept, splits), params.max_pairs_per_prompt, seed)
        if not (pairs["split"] == "train").any():
            raise UserError(
                f"{paths.annotations} gives no pair of images to train on (rankings dropped: "
                f"{funnel.metrics(len(kept))}): look at the dropped rows, or lower preferences.annotator_rules"
            )
        kept_rankings = pandas.DataFrame(kept, columns=RANKING.names)
        kept_ratings = ratings_of(ratings, kept_rankings)
        votes = [row for row in kept if not row["annotator_id"] and len(row["image_ids"]) == 2]
        metrics = {**funnel.metrics(len(kept)), **_counts(annotators, pairs, kept)}
        for thing, measures in (
            ("agreement", agreement_measures(kept_rankings, kept_ratings)),
            ("agreement_of_all", agreement_measures(rankings, ratings)),
            ("votes", vote_measures(votes) if votes else {}),
        ):
            metrics |= {f"{thing}/{name}": value for name, value in measures.items()}
        write_table(pairs, paths.out / "pairs.parquet", PAIR)
        write_table(kept_rankings, paths.out / "rankings.parquet", RANKING)
        write_table(kept_ratings, paths.out / "ratings.parquet", RATING)
        write_table(annotators, paths.out / "annotators.parquet", ANNOTATOR)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)


def keep_rankings(
    rankings: pandas.DataFrame,
    ratings: pandas.DataFrame,
    annotators: pandas.DataFrame,
    splits: dict[str, str],
    params: PreferencesParams,
) -> tuple[list[dict[str, object]], Funnel]:
    """The rankings that pairs are made of, and why the others are not."""
    funnel, kept = Funnel("preferences", len(rankings)), []
    reasons = dict(zip(annotators["annotator_id"], annotators["reason"], strict=True))
    rated = overall_ratings(ratings)
    gold = set(rankings.loc[rankings["is_gold"], "task_id"])
    for row in rankings.to_dict("records"):
        row |= {"image_ids": list(row["image_ids"]), "ranks": [int(rank) for rank in row["ranks"]]}
        row_id = f"{row['task_id']}/{row['annotator_id']}"
        consistency = rank_consistency(ranks_of(row), rated.get((row["task_id"], row["annotator_id"]), {})).share
        if row["task_id"] in gold:
            funnel.drop(row, "gold_task", "checks annotators, is not learned from", row_id)
        elif row["prompt_id"] not in splits:
            funnel.drop(row, "unknown_prompt", "the table of prompts lacks it", row_id)
        elif broken := reasons.get(row["annotator_id"]):
            funnel.drop(row, "annotator_dropped", broken, row_id)
        elif consistency is not None and consistency < params.min_ranking_consistency:
            detail = f"{consistency:.2f} of its pairs agree with the annotator's own overall ratings"
            funnel.drop(row, "rank_contradicts_rating", detail, row_id)
        elif len(set(row["ranks"])) == 1:
            funnel.drop(row, "all_tied", "no image is preferred", row_id)
        else:
            kept.append(row)
    return kept, funnel


def _counts(annotators: pandas.DataFrame, pairs: pandas.DataFrame, kept: list[dict[str, object]]) -> dict[str, float]:
    splits = {f"pairs/{name}": int((pairs["split"] == name).sum()) for name in sorted(set(pairs["split"]))}
    reasons = annotators.loc[~annotators["is_kept"], "reason"].str.split(", ").explode().value_counts()
    return {
        "annotators/kept": int(annotators["is_kept"].sum()),
        "annotators/dropped": int((~annotators["is_kept"]).sum()),
        **{f"annotators/{reason}": int(count) for reason, count in reasons.items()},
        "pairs/all": len(pairs),
        "pairs/tied": count_ties(kept),
        "prompts/ranked": len({row["prompt_id"] for row in kept}),
        **splits,
    }


Row = Mapping[str, Any]


def splits_of(prompts: pandas.DataFrame, validation_fraction: float, seed: int) -> dict[str, str]:
    """Prompt id -> train, validation or test. A share of the train prompts becomes validation, by a hash of the id.

    So all pairs of a prompt are in one split, in every round, whatever other prompts there are.
    """
    splits = {}
    for prompt_id, split in zip(prompts["prompt_id"], prompts["split"], strict=True):
        drawn = derive_seed(seed, "validation", prompt_id) / 2**63  # a seed has 63 bits: this is in [0, 1)
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
    for prompt_id, of_prompt in pairs.groupby("prompt_id", sort=True):
        numbers = of_prompt.index.tolist()
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
    # Ordered pairs of two voters of a task, and those who voted alike.
    agreeing = sum(n * (n - 1) for votes in by_task.values() for n in votes.values())
    meetings = sum(votes.total() * (votes.total() - 1) for votes in by_task.values())
    weight = sum(votes.total() for votes in by_pair.values())
    found = {"votes": len(rankings), "circular_triads": sum(map(circular_triads, wins.values()))}
    if weight:
        found["ceiling"] = sum(max(votes.values()) for votes in by_pair.values()) / weight
    if meetings:
        found["agreement_of_two"] = agreeing / meetings
    return found
