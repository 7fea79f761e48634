"""Scores the held-out pictures by every scorer, and measures how well each agrees with people.

Each scorer encodes each picture once. measures.py has the comparison.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pandas
import torch

from stages.algorithms.shape_world import scene_of, true_score
from stages.engines.devices import pick_device
from stages.engines.image_scorers.config import Variant
from stages.engines.image_scorers.scorer import ImageScorer, Pictures, load_pictures, load_scorer, score_pictures
from stages.engines.images.shards import pixels_of, read_image_rows, read_shards
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.tables import IMAGE_SCORE, PAIR, RANKING, read_table, write_table
from stages.observe.tracking import track
from stages.reward_evaluation.measures import LEARNT, TRUTH, HeldOut, measure
from stages.reward_evaluation.stage import RewardEvaluationParams

BEFORE = "reward_before"
"""The reward model of the round before, on this round's images."""


def main(job: Job) -> None:
    """Scores the test prompts' pictures and writes scores and metrics, metrics last."""
    paths = job.paths
    params: RewardEvaluationParams = job.sections["reward_evaluation"]
    torch.set_num_threads(params.threads)
    with track(job.attempt(round=job.item)) as run:
        pairs = read_table(paths.pairs / "pairs.parquet", PAIR)
        pairs = pairs[pairs["split"] == "test"].reset_index(drop=True)
        if pairs.empty:
            raise UserError(f"{paths.pairs} has no pairs of test prompts: let generators draw `splits: [..., test]`")
        rankings = read_table(paths.pairs / "rankings.parquet", RANKING)
        rankings = rankings[rankings["prompt_id"].isin(pairs["prompt_id"])].reset_index(drop=True)
        scores, pictures, of_this_round = _scores(paths, params, rankings)
        held_out = HeldOut(pairs, rankings, pictures.rows["generator"], of_this_round)
        metrics = measure(held_out, scores, params.recall_at, params.bootstrap_draws)
        run.summary(metrics)
        ids = pictures.rows.index
        table = [
            pandas.DataFrame(
                {"prompt_id": pictures.rows["prompt_id"], "image_id": ids, "scorer": name, "score": one.reindex(ids)}
            )
            for name, one in scores.items()
        ]
        write_table(pandas.concat(table, ignore_index=True), paths.scores, IMAGE_SCORE)
        key = f"preference/accuracy/{LEARNT}"
        shown = {"accuracy": key, "low": f"{key}/low", "high": f"{key}/high"}
        write_metrics(paths.metrics, metrics, {paths.headline: shown})


def _scores(
    paths: Namespace, params: RewardEvaluationParams, rankings: pandas.DataFrame
) -> tuple[dict[str, pandas.Series], Pictures, frozenset[str]]:
    """Scores by scorer and image, the pictures of the rankings, and the ids of those in this round's pool."""
    device = pick_device(params.device)
    base, scorer = load_scorer(paths.start, device), load_scorer(paths.scorer, device)
    pools = list(dict.fromkeys([paths.pool, paths.earlier_pool]))
    ids = sorted({name for row in rankings["image_ids"] for name in row})
    pictures = load_pictures(pools, ids, scorer.config.image_size)
    fitted = pictures
    if base.config.image_size != scorer.config.image_size:
        fitted = load_pictures(pools, ids, base.config.image_size)
    # What the base scorer has heads for; ImageReward's released file has neither.
    variants: list[Variant] = ["clip"] if base.config.projection_size is not None else []
    variants += ["blip"] if base.config.has_matching_head else []

    def scores_by(one: ImageScorer, variants: Sequence[Variant], shown: Pictures) -> dict[str, pandas.Series]:
        ids = shown.rows.index.tolist()
        found = score_pictures(one, variants, shown, ids, params.images_per_batch)
        return {variant: pandas.Series(values, index=ids) for variant, values in found.items()}

    scores = scores_by(base, variants, fitted) | scores_by(scorer, [LEARNT], pictures)
    if paths.before != paths.scorer:  # the first round has no model before its own
        scores[BEFORE] = scores_by(load_scorer(paths.before, device), [LEARNT], pictures)[LEARNT]
    truth = truths(pools, pictures)
    if truth is not None:
        scores[TRUTH] = truth
    of_this_round = frozenset(read_image_rows(paths.pool)["image_id"])
    return scores, pictures, of_this_round


def truths(pools: Sequence[Path], pictures: Pictures) -> pandas.Series | None:
    """The true score by image id; None unless all prompts are of the shape world."""
    if any(scene_of(prompt) is None for prompt in pictures.rows["prompt"].unique()):
        return None
    found = {}
    for pool in pools:
        for frame in read_shards(pool):
            frame = frame[frame["image_id"].isin(pictures.rows.index)]
            for name, prompt, png in zip(frame["image_id"], frame["prompt"], frame["png"], strict=True):
                found[name] = true_score(pixels_of(png), prompt).overall
    return pandas.Series(found).reindex(pictures.rows.index)
