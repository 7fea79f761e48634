"""How well scores agree with people's preferences: by pairs, by the best and worst of a ranking, by generators.

Source: ImageReward (arXiv 2304.05977, tables 1 to 3): preference accuracy, recall@k and filter@k, rank correlation of
generators.

Deviations:
1. A pair that the scores tie is half right. `test.py` of ImageReward counts it as wrong; `tie_points=0` does so too.
2. Recall with tied scores is the chance under a random order of the tied, and with several best images any one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from stages.algorithms.estimators import Interval


def pair_points(better: ArrayLike, worse: ArrayLike, tie_points: float = 0.5) -> NDArray[numpy.float64]:
    """1 for each pair whose preferred image scores higher, 0 where the other does, `tie_points` where they tie."""
    first, second = numpy.asarray(better, dtype=float), numpy.asarray(worse, dtype=float)
    return numpy.where(first == second, tie_points, first > second).astype(float)


def hit_chance(scores: Sequence[float], is_wanted: Sequence[bool], k: int) -> float:
    """The chance that at least one wanted image is among the `k` with the highest scores, ties in random order.

    Equal scores give chance level. With fewer than `k` images it is 1. ValueError where none is wanted, or k < 1.
    """
    values, wanted = numpy.asarray(scores, dtype=float), numpy.asarray(is_wanted, dtype=bool)
    if k < 1 or not wanted.any():
        raise ValueError(f"hit_chance needs k >= 1 and an image that is wanted: k={k}, {wanted.sum()} wanted")
    if k >= len(values):
        return 1.0
    edge = numpy.sort(values)[::-1][k - 1]
    if (wanted & (values > edge)).any():
        return 1.0
    tied, places = values == edge, k - int((values > edge).sum())
    return 1 - comb(int((tied & ~wanted).sum()), places) / comb(int(tied.sum()), places)


def recall_and_filter(scores: Sequence[float], ranks: Sequence[float], k: int) -> tuple[float, float]:
    """`hit_chance` of the best images (lowest rank) from above, and of the worst ones from below."""
    values, places = numpy.asarray(scores, dtype=float), numpy.asarray(ranks, dtype=float)
    return (hit_chance(values, places == places.min(), k), hit_chance(-values, places == places.max(), k))


def rank_correlation(
    scores: NDArray[numpy.float64], wins: NDArray[numpy.float64], draws: int = 2_000, seed: int = 0
) -> Interval | None:
    """Spearman's correlation over generators of mean score and mean share of pairs won, with a 95% bootstrap interval.

    scores, wins: float[prompts, generators], NaN where a generator has no image of a prompt. Prompts are drawn with
    replacement, with both their numbers. Draws in which a mean is missing, or all are equal, are left out. None below
    three generators, or where the correlation does not exist.
    """
    if scores.shape[1] < 3:
        return None
    generator = numpy.random.default_rng(seed)
    count = len(scores)
    weights = numpy.vstack(
        [numpy.ones(count), generator.multinomial(count, numpy.full(count, 1 / count), size=draws)]
    )
    ranked = [_ranked_means(weights, values) for values in (scores, wins)]
    found = _correlations(*ranked)
    drawn = found[1:][numpy.isfinite(found[1:])]
    if not numpy.isfinite(found[0]) or not len(drawn):
        return None
    low, high = numpy.quantile(drawn, [0.025, 0.975])
    return Interval(float(found[0]), float(low), float(high))


def _ranked_means(weights: NDArray, values: NDArray) -> NDArray:
    """Ranks [draws, generators] of the weighted means over prompts; NaN rows where one is missing."""
    known = numpy.isfinite(values)
    with numpy.errstate(invalid="ignore", divide="ignore"):
        means = (weights @ numpy.where(known, values, 0.0)) / (weights @ known)
    # equal up to rounding is equal: or generators with the same images would have an order
    return rankdata(numpy.round(means, 12), axis=1, nan_policy="propagate")


def _correlations(first: NDArray, second: NDArray) -> NDArray:
    one, other = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (first, second))
    with numpy.errstate(invalid="ignore", divide="ignore"):
        return (one * other).sum(1) / numpy.sqrt((one**2).sum(1) * (other**2).sum(1))
