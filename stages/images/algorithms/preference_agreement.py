"""Measures how well annotators agree with each other, with themselves and beyond chance, and how scores predict them.

Sources: Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), sections C and D; Kendall and
Babington Smith, "On the method of paired comparisons" (1940), for circular triads. ImageReward (arXiv 2304.05977)
judges annotators by agreement with researchers and with each other, in shares of pairs (section 2). It judges scores by
preference accuracy, recall@k and filter@k, and rank correlation of generators (tables 1 to 3).

Deviations:
1. A pair with tied scores is half right. `test.py` of ImageReward counts it as wrong; so does `tie_points=0`.
2. Recall with tied scores is the chance under a random order of the ties; if several images are best, any one counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy
from numpy.typing import ArrayLike, NDArray

from stages.algorithms.estimators import Interval

Ranks = Mapping[str, float]
"""Item -> rank; 1 is best, equal ranks are ties."""


class Share(NamedTuple):
    """Points out of pairs; `share` is between 0 and 1, and None without pairs."""

    points: float = 0.0
    pairs: int = 0

    @property
    def share(self) -> float | None:
        return self.points / self.pairs if self.pairs else None

    def __add__(self, other: Share) -> Share:
        return Share(self.points + other.points, self.pairs + other.pairs)


def pair_agreement(first: Ranks, second: Ranks) -> Share:
    """Counts how many of the pairs that both rank are ordered alike; a tie on either side is half a point.

    So an annotator who ties everything agrees by 0.5 with all others, as chance does.
    """
    points, pairs = 0.0, 0
    for one, other in combinations(sorted(set(first) & set(second)), 2):
        product = numpy.sign(first[one] - first[other]) * numpy.sign(second[one] - second[other])
        # 1 alike, 0 opposite, 0.5 where one of them ties.
        points += (1 + float(product)) / 2
        pairs += 1
    return Share(points, pairs)


def agreement_with_others(tasks: Iterable[Mapping[str, Ranks]]) -> dict[str, Share]:
    """Returns each annotator's agreement with the mean rank of all others, over tasks that others have done too.

    tasks: for each the rankings by annotator. An annotator who never shared a task has no pairs.
    """
    shares: dict[str, Share] = defaultdict(Share)
    for rankings in tasks:
        for annotator, ranking in rankings.items():
            others = [ranks for name, ranks in rankings.items() if name != annotator]
            # Only items that all have ranked: otherwise the mean would cover different annotators from item to item.
            shared = set(ranking).intersection(*others) if others else set()
            consensus = {item: sum(ranks[item] for ranks in others) / len(others) for item in shared}
            shares[annotator] += pair_agreement(ranking, consensus)
    return dict(shares)


def rank_consistency(ranks: Ranks, ratings: Mapping[str, float]) -> Share:
    """Returns how many pairs ranks and ratings order alike, of the pairs that both of one annotator order strictly.

    A higher rating is better; unrated items are not compared.
    """
    points, pairs = 0, 0
    for one, other in combinations(sorted(set(ranks) & set(ratings)), 2):
        by_rank, by_rating = ranks[other] - ranks[one], ratings[one] - ratings[other]
        if by_rank and by_rating:
            points += (by_rank > 0) == (by_rating > 0)
            pairs += 1
    return Share(points, pairs)


def ordinal_alpha(units: Iterable[Sequence[float]]) -> float | None:
    """Krippendorff's alpha of ordinal values: 1 is full agreement, 0 is chance.

    units: for each judged thing, its values, from any number of annotators. Alpha does not depend on who gave which
    value. Units with fewer than two values do not count. Returns None if no two values differ, or no unit has two.
    """
    shared = [list(values) for values in units if len(values) > 1]
    values = sorted({value for unit in shared for value in unit})
    if len(values) < 2:
        return None
    counts = numpy.zeros((len(shared), len(values)))  # of each value in each unit
    for row, unit in enumerate(shared):
        for value in unit:
            counts[row, values.index(value)] += 1
    sizes, totals = counts.sum(axis=1), counts.sum(axis=0)
    # Ordered pairs of values within a unit. In a unit of m values each pair has the weight 1 / (m - 1), so that each
    # value counts once. Pairs of equal values are left out: their distance is 0.
    coincidences = (counts / (sizes - 1)[:, None]).T @ counts
    # The distance of two values is the number of values between them, with half of each end.
    middle = totals.cumsum() - totals / 2
    distances = (middle[:, None] - middle[None, :]) ** 2
    observed = (coincidences * distances).sum()
    expected = (numpy.outer(totals, totals) * distances).sum() / (totals.sum() - 1)
    return float(1 - observed / expected)


def circular_triads(wins: Mapping[tuple[Hashable, Hashable], float]) -> int:
    """Counts sets of three items of which each beats the next by majority: A over B, B over C, C over A.

    wins: votes (or weight) of the first item over the second.
    """
    beats = {(one, other) for (one, other), votes in wins.items() if votes > wins.get((other, one), 0.0)}
    items = sorted({item for pair in beats for item in pair}, key=str)
    return sum(
        {(a, b), (b, c), (c, a)} <= beats or {(b, a), (c, b), (a, c)} <= beats for a, b, c in combinations(items, 3)
    )


# ------------------------------------------------------------------------------------------------------ scores
def pair_points(better: ArrayLike, worse: ArrayLike, tie_points: float = 0.5) -> NDArray[numpy.float64]:
    """Returns 1 for each pair whose preferred image scores higher, 0 where it scores lower, `tie_points` for a tie."""
    first, second = numpy.asarray(better, dtype=float), numpy.asarray(worse, dtype=float)
    return numpy.where(first == second, tie_points, first > second).astype(float)


def hit_chance(scores: Sequence[float], is_wanted: Sequence[bool], k: int) -> float:
    """Returns the chance that a wanted image is among the `k` with the highest scores, with ties in random order.

    If all scores are equal, that is chance level. With fewer than `k` images it is 1. ValueError if no image is wanted,
    or k < 1.
    """
    values, wanted = numpy.asarray(scores, dtype=float), numpy.asarray(is_wanted, dtype=bool)
    if k < 1 or not wanted.any():
        raise ValueError(f"hit_chance needs k >= 1 and an image that is wanted: k={k}, {wanted.sum()} wanted")
    if k >= len(values):
        return 1.0
    # The k-th highest score: those above it are in, those equal to it share the places that are left.
    edge = numpy.sort(values)[::-1][k - 1]
    if (wanted & (values > edge)).any():
        return 1.0
    tied, places = values == edge, k - int((values > edge).sum())
    # In this share of the orders, all remaining places go to unwanted images.
    return 1 - comb(int((tied & ~wanted).sum()), places) / comb(int(tied.sum()), places)


def recall_and_filter(scores: Sequence[float], ranks: Sequence[float], k: int) -> tuple[float, float]:
    """Returns `hit_chance` of the best images (lowest rank) from the top, and of the worst images from the bottom."""
    values, places = numpy.asarray(scores, dtype=float), numpy.asarray(ranks, dtype=float)
    return (hit_chance(values, places == places.min(), k), hit_chance(-values, places == places.max(), k))


def rank_correlation(
    scores: NDArray[numpy.float64], wins: NDArray[numpy.float64], draws: int = 2_000, seed: int = 0
) -> Interval | None:
    """Spearman's correlation over generators of mean score and mean share of pairs won, with a 95% bootstrap interval.

    scores, wins: float[prompts, generators], NaN where a generator has no image of a prompt. The bootstrap resamples
    prompts, each with its score and its share. It skips samples in which a mean is missing, or all means are equal.
    Returns None below three generators, or where the correlation does not exist.
    """
    if scores.shape[1] < 3:
        return None
    generator = numpy.random.default_rng(seed)
    count = len(scores)
    weights = numpy.vstack([numpy.ones(count), generator.multinomial(count, numpy.full(count, 1 / count), size=draws)])
    ranked = [_ranked_means(weights, values) for values in (scores, wins)]
    correlations = _correlations(*ranked)
    drawn = correlations[1:][numpy.isfinite(correlations[1:])]
    if not numpy.isfinite(correlations[0]) or not len(drawn):
        return None
    low, high = numpy.quantile(drawn, [0.025, 0.975])
    return Interval(float(correlations[0]), float(low), float(high))


def _ranked_means(weights: NDArray, values: NDArray) -> NDArray:
    """Ranks [draws, generators] of the weighted means over prompts; NaN rows where one is missing."""
    from scipy.stats import rankdata  # imported here: it takes more than a second, and agreement does not need it

    known = numpy.isfinite(values)
    with numpy.errstate(invalid="ignore", divide="ignore"):
        means = (weights @ numpy.where(known, values, 0.0)) / (weights @ known)
    # Means that differ only by rounding are equal: otherwise generators with the same images would get an order.
    return rankdata(numpy.round(means, 12), axis=1, nan_policy="propagate")


def _correlations(first: NDArray, second: NDArray) -> NDArray:
    one, other = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (first, second))
    with numpy.errstate(invalid="ignore", divide="ignore"):
        return (one * other).sum(1) / numpy.sqrt((one**2).sum(1) * (other**2).sum(1))
