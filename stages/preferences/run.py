"""The stage around the judging of annotators: tables of annotations in, tables of preferences out."""

from __future__ import annotations

import pandas

from stages.algorithms.annotator_agreement import rank_consistency
from stages.foundations.errors import UserError
from stages.foundations.funnel import Funnel
from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.foundations.tables.annotator import ANNOTATOR
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.pair import PAIR
from stages.foundations.tables.prompt import PROMPT
from stages.foundations.tables.ranking import RANKING
from stages.foundations.tables.rating import RATING
from stages.foundations.tables.table import read_table, write_table
from stages.observe.tracking import track
from stages.preferences.annotators import (
    agreement_measures,
    judge_annotators,
    overall_ratings,
    ranks_of,
    ratings_of,
)
from stages.preferences.pairs import count_ties, drawn_down, pairs_of, splits_of, vote_measures
from stages.preferences.params import PreferencesParams


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
        metrics = {
            **funnel.metrics(len(kept)),
            **_counts(annotators, pairs, kept),
            **_named("agreement", agreement_measures(kept_rankings, kept_ratings)),
            **_named("agreement_of_all", agreement_measures(rankings, ratings)),
            **(_named("votes", vote_measures(votes)) if votes else {}),
        }
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
        own = rank_consistency(ranks_of(row), rated.get((row["task_id"], row["annotator_id"]), {})).share
        if row["task_id"] in gold:
            funnel.drop(row, "gold_task", "checks annotators, is not learned from", row_id)
        elif row["prompt_id"] not in splits:
            funnel.drop(row, "unknown_prompt", "the table of prompts lacks it", row_id)
        elif broken := reasons.get(row["annotator_id"]):
            funnel.drop(row, "annotator_dropped", broken, row_id)
        elif own is not None and own < params.min_ranking_consistency:
            told = f"{own:.2f} of its pairs agree with the annotator's own overall ratings"
            funnel.drop(row, "rank_contradicts_rating", told, row_id)
        elif len(set(row["ranks"])) == 1:
            funnel.drop(row, "all_tied", "no image is preferred", row_id)
        else:
            kept.append(row)
    return kept, funnel


def _counts(
    annotators: pandas.DataFrame, pairs: pandas.DataFrame, kept: list[dict[str, object]]
) -> dict[str, float]:
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


def _named(thing: str, measures: dict[str, float]) -> dict[str, float]:
    return {f"{thing}/{name}": value for name, value in measures.items()}
