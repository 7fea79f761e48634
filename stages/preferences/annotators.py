"""Quality control: every annotator is measured in four ways, and is kept or dropped with the reasons.

1. Agreement with the others on tasks that several did, leaving the annotator's own ranking out.
2. Agreement of the ranks with the annotator's own overall ratings.
3. Agreement with the reference answers of gold tasks.
4. Seconds for a task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations

import numpy
import pandas

from stages.algorithms.preference_agreement import (
    Share,
    agreement_with_others,
    ordinal_alpha,
    pair_agreement,
    rank_consistency,
)
from stages.foundations.tables import ANNOTATOR, ASPECTS
from stages.preferences.stage import AnnotatorRules

CHANCE = 0.5
Ratings = Mapping[tuple[str, str], Mapping[str, float]]
"""(task, annotator) -> image -> overall rating."""


def overall_ratings(ratings: pandas.DataFrame) -> Ratings:
    """The overall ratings that were given, by task and annotator."""
    rated = ratings.dropna(subset=["overall"])
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    columns = (rated[name] for name in ("task_id", "annotator_id", "image_id", "overall"))
    for task, annotator, image, overall in zip(*columns, strict=True):
        found[task, annotator][image] = overall
    return dict(found)


def ranks_of(row: pandas.Series | Mapping[str, object]) -> dict[str, float]:
    """Image -> rank of a row of the ranking table."""
    return {image: float(rank) for image, rank in zip(row["image_ids"], row["ranks"], strict=True)}


def judge_annotators(rankings: pandas.DataFrame, ratings: pandas.DataFrame, rules: AnnotatorRules) -> pandas.DataFrame:
    """The annotator table, sorted by name. Reference answers are nobody's work, anonymous votes have no annotator."""
    judged = rankings[~rankings["is_gold"] & (rankings["annotator_id"] != "")]
    references = {row["task_id"]: ranks_of(row) for row in rankings[rankings["is_gold"]].to_dict("records")}
    tasks: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for row in judged.to_dict("records"):
        tasks[row["task_id"]][row["annotator_id"]] = ranks_of(row)
    agreement = agreement_with_others(done for task, done in tasks.items() if task not in references)
    rated = overall_ratings(ratings)
    rows = []
    for annotator, done in judged.groupby("annotator_id", sort=True):
        work = [(task, tasks[task][annotator]) for task in done["task_id"]]
        consistency = _total(rank_consistency(one, rated.get((task, annotator), {})) for task, one in work)
        gold = _total(_against_reference(one, references[task]) for task, one in work if task in references)
        seconds = done["seconds"].dropna()
        with_others = agreement.get(annotator, Share(0, 0))
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
    table["reason"] = pandas.Series(reasons, dtype=object)  # a text too where all votes are anonymous
    table["is_kept"] = table["reason"] == ""
    return table


def _broken_rules(row: Mapping[str, float], rules: AnnotatorRules, median: float) -> list[str]:
    """Names of the rules; a measure that is missing (NaN) is below nothing."""
    # Against the median and not a fixed bound: where the pictures are hard to tell apart, nobody agrees by much.
    least = CHANCE + rules.min_agreement_over_chance * (median - CHANCE)
    found = {
        "low_agreement": row["agreement"] < least,
        "contradicts_own_ratings": row["consistency"] < rules.min_consistency,
        "fails_gold": row["gold_accuracy"] < rules.min_gold_accuracy,
        "too_fast": row["median_seconds"] < rules.min_median_seconds,
    }
    return [name for name, is_broken in found.items() if is_broken]


def agreement_measures(rankings: pandas.DataFrame, ratings: pandas.DataFrame) -> dict[str, float]:
    """`alpha_rank`, and `alpha_overall` and so on: Krippendorff's alpha of slots and of ratings; absent if undefined.

    A unit is one image in one task: slots of lists of different images do not compare. Gold tasks are left out: they
    were chosen to be easy. `annotator_pairs`: how often two annotators of one task order two images alike, a tie being
    half.
    """
    compared = rankings[~rankings["task_id"].isin(rankings.loc[rankings["is_gold"], "task_id"])]
    ranks: dict[tuple[str, str], list[float]] = defaultdict(list)
    tasks: dict[str, list[dict[str, float]]] = defaultdict(list)
    for row in compared.to_dict("records"):
        slots = ranks_of(row)
        tasks[row["task_id"]].append(slots)
        # Of two images the second one's slot follows from the first one's: it is no judgement of its own.
        for image in sorted(slots)[: 1 if len(slots) == 2 else None]:
            ranks[row["task_id"], image].append(slots[image])
    measures = {"alpha_rank": ordinal_alpha(ranks.values())}
    compared_ratings = ratings_of(ratings, compared)
    for aspect in ASPECTS:
        rated = compared_ratings.dropna(subset=[aspect]).groupby(["task_id", "image_id"])[aspect]
        measures[f"alpha_{aspect}"] = ordinal_alpha(values.tolist() for _, values in rated)
    measures["annotator_pairs"] = _total(
        pair_agreement(one, other) for several in tasks.values() for one, other in combinations(several, 2)
    ).share
    return {name: value for name, value in measures.items() if value is not None}


def ratings_of(ratings: pandas.DataFrame, rankings: pandas.DataFrame) -> pandas.DataFrame:
    """The ratings that the same annotator gave in the same task as one of the rankings."""
    done = set(zip(rankings["task_id"], rankings["annotator_id"], strict=True))
    keys = zip(ratings["task_id"], ratings["annotator_id"], strict=True)
    return ratings[numpy.fromiter((key in done for key in keys), dtype=bool)].reset_index(drop=True)


def _against_reference(ranks: dict[str, float], reference: dict[str, float]) -> Share:
    """Agreement on the pairs that the reference orders: what it ties, it does not ask."""
    return _total(
        pair_agreement({name: ranks[name] for name in pair}, {name: reference[name] for name in pair})
        for pair in combinations(reference, 2)
        if reference[pair[0]] != reference[pair[1]] and set(pair) <= ranks.keys()
    )


def _total(shares: Iterable[Share]) -> Share:
    points, pairs = 0.0, 0
    for one in shares:
        points, pairs = points + one.points, pairs + one.pairs
    return Share(points, pairs)


def _measured(share: Share, rules: AnnotatorRules) -> float | None:
    return share.share if share.pairs >= rules.min_pairs else None
