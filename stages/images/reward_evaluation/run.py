"""Scores the held-out pictures by every scorer, and measures how well each agrees with people.

Each scorer encodes each picture once. An accuracy is reported with chance and the agreement of two annotators.

Everything is clustered by prompt: pairs of one prompt share images and are not independent. Accuracy pools the pairs,
as the paper does; scorers are compared with each other by the prompts' accuracies, paired.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations
from pathlib import Path

import numpy
import pandas
import torch

from stages.algorithms.estimators import Interval, clustered_bootstrap, compare_paired
from stages.engines.devices import pick_device
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.tables import IMAGE_SCORE, PAIR, RANKING, read_table, write_table
from stages.images.algorithms.preference_agreement import pair_points, rank_correlation, recall_and_filter
from stages.images.algorithms.shape_world import scene_of, true_score
from stages.images.algorithms.text_to_image_losses import pairs_from_ranking
from stages.images.engines.image_scorers.aesthetic import load_aesthetic
from stages.images.engines.image_scorers.config import Variant
from stages.images.engines.image_scorers.scorer import ImageScorer, Pictures, load_pictures, load_scorer, score_pictures
from stages.images.engines.pictures.shards import pixels_of, read_image_rows, read_images
from stages.images.reward_evaluation.stage import RewardEvaluationParams
from stages.observe.tracking import track

LEARNT, TRUTH, BEFORE = "reward", "truth", "reward_before"
"""Scorers by their names in tables and metrics; the last is the reward model of the previous round."""
NOTICED = 0.03
"""Pictures with a smaller difference of truth are equally good: the simulated panel lets them share a slot."""


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
    # Each scorer sees the picture at its input size.
    fitted = cache(partial(load_pictures, pools, ids))
    pictures = fitted(scorer.config.image_size)
    # The scores that the base scorer has heads for; ImageReward's released file has neither.
    variants: list[Variant] = ["clip"] if base.config.projection_size is not None else []
    variants += ["blip"] if base.config.has_matching_head else []

    def scores_by(one: ImageScorer, *variants: Variant) -> dict[str, pandas.Series]:
        shown = fitted(one.config.image_size)
        order = shown.rows.index.tolist()
        values_of = score_pictures(one, variants, shown, order, params.images_per_batch)
        return {variant: pandas.Series(values, index=order) for variant, values in values_of.items()}

    scores = scores_by(base, *variants) | scores_by(scorer, LEARNT)
    if params.aesthetic is not None:
        judge = load_aesthetic(params.aesthetic, device)
        shown = fitted(judge.image_size)
        starts = range(0, len(ids), params.images_per_batch)
        parts = [ids[start : start + params.images_per_batch] for start in starts]
        values = torch.cat([judge.score(shown.images(part).to(device)) for part in parts])
        scores["aesthetic"] = pandas.Series(values.double().cpu().numpy(), index=ids)
    # The first round has no model before its own.
    if paths.before != paths.scorer:
        scores[BEFORE] = scores_by(load_scorer(paths.before, device), LEARNT)[LEARNT]
    if (truth := truths(pools, pictures)) is not None:
        scores[TRUTH] = truth
    of_this_round = frozenset(read_image_rows(paths.pool)["image_id"])
    return scores, pictures, of_this_round


def truths(pools: Sequence[Path], pictures: Pictures) -> pandas.Series | None:
    """Returns the true score by image id; None unless all prompts are of the shape world."""
    if any(scene_of(prompt) is None for prompt in pictures.rows["prompt"].unique()):
        return None
    # From the shards: `pictures` are cropped to the scorer's square, and the truth is of the whole picture.
    images = read_images(pools, pictures.rows.index)
    scores = {row.image_id: true_score(pixels_of(row.png), row.prompt).overall for row in images}
    return pandas.Series(scores).reindex(pictures.rows.index)


@dataclass(frozen=True)
class HeldOut:
    """People's judgements on the test prompts."""

    pairs: pandas.DataFrame
    """`pair` table"""
    rankings: pandas.DataFrame
    """`ranking` table"""
    generators: pandas.Series
    """Generator by image id"""
    own_images: frozenset[str]
    """Images of this round; the others are an earlier round's."""


def measure(
    held_out: HeldOut, scores: Mapping[str, pandas.Series], recall_at: Sequence[int], draws: int
) -> dict[str, float]:
    """All metrics of the stage; `scores` holds a score by image id for each scorer, `reward` among them."""
    on_policy = _among(held_out.pairs, held_out.own_images)
    metrics: dict[str, float] = {
        "pairs/test": len(held_out.pairs),
        "pairs/on_policy": len(on_policy),
        "prompts/test": held_out.pairs["prompt_id"].nunique(),
        "preference/accuracy/random": 0.5,
    }
    for name, of_scorer in scores.items():
        metrics |= _accuracy(f"preference/accuracy/{name}", held_out.pairs, of_scorer, draws)
        # Upstream's test.py counts a tie as wrong; for comparison with published figures only.
        released = _points(held_out.pairs, of_scorer, tie_points=0.0)
        metrics[f"preference/accuracy_as_released/{name}"] = float(released.mean())
        by_prompt = by_prompt_accuracy(held_out.pairs, of_scorer)
        metrics[f"preference/accuracy_by_prompt/{name}"] = float(by_prompt.mean())
        if len(on_policy):
            metrics |= _accuracy(f"preference/on_policy_accuracy/{name}", on_policy, of_scorer, draws)
        metrics |= _recall(held_out.rankings, name, of_scorer, recall_at, draws)
        metrics |= _interval(f"model_ranking/spearman/{name}", generator_ranking(held_out, of_scorer, draws))
    # Chance level of recall is the result of equal scores: above k of n, because several pictures may be best.
    equal = pandas.Series(0.0, index=held_out.generators.index)
    metrics |= _recall(held_out.rankings, "random", equal, recall_at, draws)
    metrics |= _interval("preference/accuracy/annotator", annotator_agreement(held_out.rankings, draws))
    metrics |= _gains("gain", held_out.pairs, scores)
    # If all pairs are this round's, or none is, a second set of figures would add nothing.
    is_mixed = len(on_policy) not in (0, len(held_out.pairs))
    if is_mixed:
        metrics |= _gains("on_policy_gain", on_policy, scores)
    if TRUTH in scores:
        # The truth is the judge here, so it is not a judged scorer.
        others = {name: of_scorer for name, of_scorer in scores.items() if name != TRUTH}
        by_truth = pairs_by_truth(held_out.rankings, scores[TRUTH])
        on_policy = _among(by_truth, held_out.own_images)
        if len(by_truth):
            metrics |= _gains("gain_by_truth", by_truth, others)
        if is_mixed and len(on_policy):
            metrics |= _gains("on_policy_gain_by_truth", on_policy, others)
    return metrics


def pairs_by_truth(rankings: pandas.DataFrame, truth: pandas.Series) -> pandas.DataFrame:
    """Returns all pairs of a prompt's ranked images whose truth is `NOTICED` apart, as columns of a `pair` table.

    More pairs than people saw, and without their noise, which pulls every scorer's accuracy towards one half.
    """
    pairs = []
    for prompt_id, of_prompt in rankings.groupby("prompt_id", sort=True):
        ids = sorted({name for row in of_prompt["image_ids"] for name in row})
        values = truth[ids].to_numpy()
        for better, worse in zip(*numpy.nonzero(values[:, None] - values > NOTICED), strict=True):
            pairs.append((prompt_id, ids[better], ids[worse]))
    return pandas.DataFrame(pairs, columns=["prompt_id", "better_image_id", "worse_image_id"])


def _among(pairs: pandas.DataFrame, images: frozenset[str]) -> pandas.DataFrame:
    return pairs[pairs["better_image_id"].isin(images) & pairs["worse_image_id"].isin(images)]


def by_prompt_accuracy(pairs: pandas.DataFrame, scores: pandas.Series) -> pandas.Series:
    """Returns the share of each prompt's pairs that the scores order as people did, ties count half, by prompt id."""
    return pandas.Series(_points(pairs, scores)).groupby(pairs["prompt_id"].to_numpy()).mean()


def annotator_agreement(rankings: pandas.DataFrame, draws: int) -> Interval | None:
    """How often an annotator orders a pair as another who saw the same images (ties: half); None without such pairs."""
    points, prompts = [], []
    for _, of_task in rankings.groupby("task_id", sort=True):
        ranks = [dict(zip(row.image_ids, map(int, row.ranks), strict=True)) for row in of_task.itertuples()]
        # In both directions: for a pair that one of them ties, only the other's order counts.
        for (_, one), (row, other) in permutations(zip(of_task.itertuples(), ranks, strict=True), 2):
            named = list(other)
            for better, worse in pairs_from_ranking([other[name] for name in named]):
                points.append(pair_points(-one[named[better]], -one[named[worse]]).item())
                prompts.append(row.prompt_id)
    return clustered_bootstrap(points, prompts, draws) if points else None


def generator_ranking(held_out: HeldOut, scores: pandas.Series, draws: int) -> Interval | None:
    """Rank correlation over generators of the mean score and the share of pairs won with people."""
    prompts, generators = sorted(held_out.pairs["prompt_id"].unique()), sorted(held_out.generators.unique())
    pairs = held_out.pairs
    # Both sides of every pair: each generator is measured by its images that people saw.
    sides = [
        pandas.DataFrame({"prompt_id": pairs["prompt_id"], "image_id": pairs[f"{side}_image_id"], "won": won})
        for side, won in (("better", 1.0), ("worse", 0.0))
    ]
    shown = pandas.concat(sides, ignore_index=True)
    shown["generator"] = shown["image_id"].map(held_out.generators)
    shown["score"] = shown["image_id"].map(scores)
    images = shown.drop_duplicates("image_id")
    tables = [
        frame.pivot_table(index="prompt_id", columns="generator", values=value, aggfunc="mean")
        .reindex(index=prompts, columns=generators)
        .to_numpy(dtype=float)
        for frame, value in ((images, "score"), (shown, "won"))
    ]
    return rank_correlation(*tables, draws)


def _points(pairs: pandas.DataFrame, scores: pandas.Series, tie_points: float = 0.5) -> numpy.ndarray:
    return pair_points(
        scores[pairs["better_image_id"]].to_numpy(), scores[pairs["worse_image_id"]].to_numpy(), tie_points
    )


def _accuracy(name: str, pairs: pandas.DataFrame, scores: pandas.Series, draws: int) -> dict[str, float]:
    return _interval(name, clustered_bootstrap(_points(pairs, scores), pairs["prompt_id"].to_numpy(dtype=str), draws))


def _recall(
    rankings: pandas.DataFrame, name: str, scores: pandas.Series, recall_at: Sequence[int], draws: int
) -> dict[str, float]:
    """Recall and filter at each k below the number of images, over rankings, clustered by prompt."""
    metrics: dict[str, float] = {}
    for k in recall_at:
        measured = [
            (row.prompt_id, *recall_and_filter(scores[list(row.image_ids)], row.ranks, k))
            for row in rankings.itertuples()
            if len(row.image_ids) > k
        ]
        if not measured:
            continue
        prompts, recalls, filters = map(list, zip(*measured, strict=True))
        for thing, values in (("recall", recalls), ("filter", filters)):
            metrics |= _interval(f"{thing}_at_{k}/{name}", clustered_bootstrap(values, prompts, draws))
    return metrics


def _gains(thing: str, pairs: pandas.DataFrame, scores: Mapping[str, pandas.Series]) -> dict[str, float]:
    """Returns the reward model's accuracy by prompt minus each other scorer's, paired by prompt."""
    accuracies = {name: by_prompt_accuracy(pairs, of_scorer) for name, of_scorer in scores.items()}
    # Chance orders half of every prompt's pairs.
    accuracies["random"] = accuracies[LEARNT] * 0 + 0.5
    metrics: dict[str, float] = {}
    for name, other in accuracies.items():
        if name == LEARNT:
            continue
        comparison = compare_paired(other.to_numpy(), accuracies[LEARNT].to_numpy())
        told = zip(("mean", "low", "high", "p_value"), (*comparison.interval, comparison.p_value), strict=True)
        metrics |= {f"{thing}/reward_model_minus_{name}/{quantity}": value for quantity, value in told}
    return metrics


def _interval(name: str, interval: Interval | None) -> dict[str, float]:
    if interval is None:
        return {}
    return {name: interval.estimate, f"{name}/low": interval.low, f"{name}/high": interval.high}
