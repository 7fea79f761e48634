"""Turns annotations into preferences: judges annotators, keeps rankings, makes pairs of images, splits them by prompt.

Quality control measures every annotator in four ways, and keeps or drops the annotator with the reasons:

1. Agreement with the others on shared tasks, leaving the annotator's own ranking out.
2. Agreement of the ranks with the annotator's own overall ratings.
3. Agreement with the reference answers of gold tasks.
4. Seconds for a task.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy
import pandas

from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import (
    ANNOTATOR,
    ASPECTS,
    DROPPED,
    PAIR,
    PROMPT,
    RANKING,
    RATING,
    Funnel,
    read_table,
    write_table,
)
from stages.images.algorithms.preference_agreement import (
    Share,
    agreement_with_others,
    circular_triads,
    ordinal_alpha,
    pair_agreement,
    rank_consistency,
)
from stages.images.algorithms.text_to_image_losses import pairs_from_ranking
from stages.images.preferences.stage import AnnotatorRules, PreferencesParams
from stages.observe.tracking import track


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
        # Anonymous rankings of two images: only for these the upper limit of predicting votes is computed.
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
    """Returns the rankings that pairs are made of, and the reasons against the others."""
    funnel, kept = Funnel("preferences", len(rankings)), []
    reasons = dict(zip(annotators["annotator_id"], annotators["reason"], strict=True))
    rated = overall_ratings(ratings)
    gold = set(rankings.loc[rankings["is_gold"], "task_id"])
    for row in rankings.to_dict("records"):
        row |= {"image_ids": list(row["image_ids"]), "ranks": [int(rank) for rank in row["ranks"]]}
        row_id = f"{row['task_id']}/{row['annotator_id']}"
        consistency = rank_consistency(ranks_of(row), rated.get((row["task_id"], row["annotator_id"]), {})).share
        # The first reason counts. Gold comes first: the reference itself has no annotator to judge.
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
    """Returns prompt id -> train, validation or test. A hash of the id moves a share of the train prompts to
    validation.

    So all pairs of a prompt are in one split, in every round, independent of other prompts.
    """
    splits = {}
    for prompt_id, split in zip(prompts["prompt_id"], prompts["split"], strict=True):
        drawn = derive_seed(seed, "validation", prompt_id) / 2**63  # a seed has 63 bits: this is in [0, 1)
        splits[prompt_id] = "validation" if split == "train" and drawn < validation_fraction else split
    return splits


def pairs_of(rankings: Sequence[Row], splits: Mapping[str, str]) -> pandas.DataFrame:
    """Returns a row for each two images that a ranking orders, in the rankings' order; ties give none."""
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
    """Keeps at most `most` pairs of each prompt, sampled by the seed, in their order."""
    if most is None:
        return pairs
    kept: list[int] = []
    # A stream for each prompt: a round with more prompts keeps the same pairs of the others.
    for prompt_id, of_prompt in pairs.groupby("prompt_id", sort=True):
        numbers = of_prompt.index.tolist()
        kept += random.Random(derive_seed(seed, "pairs", prompt_id)).sample(numbers, min(most, len(numbers)))
    return pairs.loc[sorted(kept)].reset_index(drop=True)


def count_ties(rankings: Sequence[Row]) -> int:
    """Pairs of images in one slot."""
    return sum(one == other for row in rankings for one, other in combinations(row["ranks"], 2))


def vote_measures(rankings: Sequence[Row]) -> dict[str, float]:
    """For rankings of two images by anonymous voters: how well votes can be predicted at all.

    `ceiling`: share of the votes, by weight, for the preferred image of each pair. No scorer can agree with more of
    them, because it gives a pair one order. `agreement_of_two`: the chance that two voters of one task agree.
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
    measures = {"votes": len(rankings), "circular_triads": sum(map(circular_triads, wins.values()))}
    if weight:
        measures["ceiling"] = sum(max(votes.values()) for votes in by_pair.values()) / weight
    if meetings:
        measures["agreement_of_two"] = agreeing / meetings
    return measures


# Chance for two images in random order.
CHANCE = 0.5
Ratings = Mapping[tuple[str, str], Mapping[str, float]]
"""(task, annotator) -> image -> overall rating."""


def overall_ratings(ratings: pandas.DataFrame) -> Ratings:
    rated = ratings.dropna(subset=["overall"]).groupby(["task_id", "annotator_id"])
    return {work: dict(zip(rows["image_id"], rows["overall"], strict=True)) for work, rows in rated}


def ranks_of(row: pandas.Series | Mapping[str, object]) -> dict[str, float]:
    """Image -> rank of a row of the ranking table."""
    return {image: float(rank) for image, rank in zip(row["image_ids"], row["ranks"], strict=True)}


def judge_annotators(rankings: pandas.DataFrame, ratings: pandas.DataFrame, rules: AnnotatorRules) -> pandas.DataFrame:
    """Returns the annotator table, sorted by name. Reference answers and anonymous votes have no annotator."""
    judged = rankings[~rankings["is_gold"] & (rankings["annotator_id"] != "")]
    references = {row["task_id"]: ranks_of(row) for row in rankings[rankings["is_gold"]].to_dict("records")}
    tasks: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for row in judged.to_dict("records"):
        tasks[row["task_id"]][row["annotator_id"]] = ranks_of(row)
    # Without gold tasks: they were chosen to be easy, and they have a separate measure.
    agreement = agreement_with_others(done for task, done in tasks.items() if task not in references)
    rated = overall_ratings(ratings)
    rows = []
    for annotator, done in judged.groupby("annotator_id", sort=True):
        work = [(task, tasks[task][annotator]) for task in done["task_id"]]
        consistency = sum((rank_consistency(one, rated.get((task, annotator), {})) for task, one in work), Share())
        gold = sum((_against_reference(one, references[task]) for task, one in work if task in references), Share())
        seconds = done["seconds"].dropna()
        with_others = agreement.get(annotator, Share())
        rows.append(
            {
                "annotator_id": annotator,
                "rankings": len(done),
                "agreement": _measured(with_others, rules),
                "agreement_pairs": with_others.pairs,
                "consistency": _measured(consistency, rules),
                "gold_accuracy": _measured(gold, rules),
                "median_seconds": float(seconds.median()) if len(seconds) else None,
            }
        )
    table = pandas.DataFrame(rows, columns=ANNOTATOR.names)
    measures = ["agreement", "consistency", "gold_accuracy", "median_seconds"]
    table[measures] = table[measures].astype(float)
    median = table["agreement"].median()
    reasons = [", ".join(_broken_rules(row, rules, median)) for row in table.to_dict("records")]
    # Typed as texts: with only anonymous votes the column has no rows to infer its type from.
    table["reason"] = pandas.Series(reasons, dtype=object)
    table["is_kept"] = table["reason"] == ""
    return table


def _broken_rules(row: Mapping[str, float], rules: AnnotatorRules, median: float) -> list[str]:
    """Returns names of the rules; a measure that is missing (NaN) violates none."""
    # Relative to the median instead of a fixed bound: where pictures are hard to distinguish, agreement is low for all.
    least = CHANCE + rules.min_agreement_over_chance * (median - CHANCE)
    rules_broken = {
        "low_agreement": row["agreement"] < least,
        "contradicts_own_ratings": row["consistency"] < rules.min_consistency,
        "fails_gold": row["gold_accuracy"] < rules.min_gold_accuracy,
        "too_fast": row["median_seconds"] < rules.min_median_seconds,
    }
    return [name for name, is_broken in rules_broken.items() if is_broken]


def agreement_measures(rankings: pandas.DataFrame, ratings: pandas.DataFrame) -> dict[str, float]:
    """`alpha_rank`, `alpha_overall` and so on: Krippendorff's alpha of slots and of ratings; absent if undefined.

    A unit is one image in one task: slots in lists of different images cannot be compared. Gold tasks are left out:
    they were chosen to be easy. `annotator_pairs`: how often two annotators of one task order two images alike, a tie
    counting half.
    """
    compared = rankings[~rankings["task_id"].isin(rankings.loc[rankings["is_gold"], "task_id"])]
    ranks: dict[tuple[str, str], list[float]] = defaultdict(list)
    tasks: dict[str, list[dict[str, float]]] = defaultdict(list)
    for row in compared.to_dict("records"):
        slots = ranks_of(row)
        tasks[row["task_id"]].append(slots)
        # With two images the second one's slot follows from the first one's: it is not a separate judgement.
        for image in sorted(slots)[: 1 if len(slots) == 2 else None]:
            ranks[row["task_id"], image].append(slots[image])
    measures = {"alpha_rank": ordinal_alpha(ranks.values())}
    compared_ratings = ratings_of(ratings, compared)
    for aspect in ASPECTS:
        rated = compared_ratings.dropna(subset=[aspect]).groupby(["task_id", "image_id"])[aspect]
        measures[f"alpha_{aspect}"] = ordinal_alpha(values.tolist() for _, values in rated)
    couples = (couple for several in tasks.values() for couple in combinations(several, 2))
    measures["annotator_pairs"] = sum((pair_agreement(*couple) for couple in couples), Share()).share
    return {name: value for name, value in measures.items() if value is not None}


def ratings_of(ratings: pandas.DataFrame, rankings: pandas.DataFrame) -> pandas.DataFrame:
    """Returns the ratings that the same annotator gave in the same task as one of the rankings."""
    done = set(zip(rankings["task_id"], rankings["annotator_id"], strict=True))
    keys = zip(ratings["task_id"], ratings["annotator_id"], strict=True)
    return ratings[numpy.fromiter((key in done for key in keys), dtype=bool)].reset_index(drop=True)


def _against_reference(ranks: dict[str, float], reference: dict[str, float]) -> Share:
    """Agreement on the pairs that the reference orders; pairs that it ties do not count."""
    ordered = (pair for pair in combinations(reference, 2) if reference[pair[0]] != reference[pair[1]])
    known = (pair for pair in ordered if set(pair) <= ranks.keys())
    return sum(
        (pair_agreement(*({name: of[name] for name in pair} for of in (ranks, reference))) for pair in known), Share()
    )


def _measured(share: Share, rules: AnnotatorRules) -> float | None:
    return share.share if share.pairs >= rules.min_pairs else None
