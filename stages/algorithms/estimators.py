"""Estimates from repeated samples, each with the interval that says how far to trust it.

Sources: pass@k, Chen et al. (arXiv 2107.03374, equation 1); majority voting, Wang et al. (arXiv 2203.11171); the
clustered bootstrap, Cameron, Gelbach and Miller (2008), as evaluations need it: samples of one problem are not
independent, so problems are drawn, and all their samples with them. The percentile bootstrap is too narrow for few
problems (20 of them: 90-93% instead of 95%, benchmarks/interval_coverage.py), so comparisons use `paired_t_interval`:
Student's t over the problems' differences, and for few unequal problems Agresti and Min (2005). Tests: the sign-flip
permutation test of Fisher (1935); Holm (1979) for several of them.

Deviations:
1. `majority_at_k` with fewer votes than samples is the mean over all subsets, as pass@k is, and not the vote of the
   first k: the order of samples means nothing, and the subsets together use every one of them.
2. Tied answers share the point instead of going to the one seen first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import comb, cos, pi, sin, sqrt, tan
from statistics import NormalDist
from typing import NamedTuple

import numpy
from numpy.typing import ArrayLike, NDArray

_CELLS_AT_ONCE = 4_000_000
"""Bound on draws times problems held in memory; the result does not depend on it."""
_FEWEST_UNEQUAL = 10
"""With fewer problems whose scores differ, their spread says too little about that of others."""
_MOST_FLIPS_LISTED = 14
"""Up to so many unequal problems the sign-flip test goes through all 2^n patterns instead of drawing some."""


class Interval(NamedTuple):
    """A point estimate and its interval."""

    estimate: float
    low: float
    high: float


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> float | NDArray[numpy.float64]:
    """The chance that at least one of `k` samples is correct, unbiased, from `c` correct among `n` samples.

    `n` and `c` may be arrays, one entry for each problem; the result then is an array, else a float.
    It is 1 - C(n-c, k) / C(n, k), as a product that does not overflow; 1 where fewer than `k` samples are wrong.
    ValueError when k < 1, k > n, or c is not between 0 and n.
    """
    samples, correct = numpy.broadcast_arrays(numpy.asarray(n, dtype=float), numpy.asarray(c, dtype=float))
    if k < 1 or (samples < k).any() or (correct < 0).any() or (correct > samples).any():
        raise ValueError(f"pass_at_k needs 1 <= k <= n and 0 <= c <= n: n={n}, c={c}, k={k}")
    steps = numpy.arange(k)
    wrong_left = numpy.clip((samples - correct)[..., None] - steps, 0, None)
    all_wrong = numpy.prod(wrong_left / (samples[..., None] - steps), axis=-1)
    return float(1 - all_wrong) if all_wrong.ndim == 0 else 1 - all_wrong


def majority_at_k(answers: Sequence[Hashable | None], gold: Hashable, k: int) -> float:
    """The chance that the most frequent of `k` answers, drawn from `answers` without replacement, is `gold`.

    Answers are compared with ==, so the caller maps equivalent ones to one value first. None is a response without an
    answer: it can be drawn, and does not vote. A tie of m answers gives 1/m; no vote at all gives 0. With k equal to
    the number of answers it is plain majority voting. ValueError when k < 1 or k exceeds the number of answers.
    """
    total = len(answers)
    if not 1 <= k <= total:
        raise ValueError(f"majority_at_k needs 1 <= k <= {total} answers: k={k}")
    votes = Counter(answer for answer in answers if answer is not None)
    for_gold = votes.pop(gold, 0)
    abstentions = sum(answer is None for answer in answers)
    share = 0.0
    for gold_votes in range(1, min(for_gold, k) + 1):
        ways = _ways_of_the_rest(list(votes.values()), abstentions, gold_votes, k - gold_votes)
        share += comb(for_gold, gold_votes) * sum(count / (ties + 1) for ties, count in ways.items())
    return min(1.0, share / comb(total, k))


def _ways_of_the_rest(rivals: list[int], abstentions: int, limit: int, seats: int) -> dict[int, int]:
    """Ways to fill `seats` with rivals and abstentions so that no rival has more than `limit`, by how many have it.

    Dynamic programme over rivals; a state is (seats taken, rivals that tie with `limit`).
    """
    states: dict[tuple[int, int], int] = {(0, 0): 1}
    for count in rivals:
        following: dict[tuple[int, int], int] = {}
        for (taken, ties), ways in states.items():
            for votes in range(min(count, limit, seats - taken) + 1):
                state = (taken + votes, ties + (votes == limit))
                following[state] = following.get(state, 0) + ways * comb(count, votes)
        states = following
    result: dict[int, int] = {}
    for (taken, ties), ways in states.items():
        result[ties] = result.get(ties, 0) + ways * comb(abstentions, seats - taken)
    return result


def clustered_bootstrap(
    scores: ArrayLike,
    clusters: ArrayLike | None = None,
    draws: int = 2_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval:
    """The mean of `scores` and its percentile interval when whole problems are resampled.

    scores: one number for each response. clusters: the problem id of each response (any values that can be sorted;
    None: every score is its own problem). draws: bootstrap samples; each draws as many problems as there are, with
    replacement, and takes the mean over all their responses. The same seed gives the same interval.
    Fewer than two problems, or equal scores everywhere, give an interval of no width: it says nothing about
    other problems (`with_width` does). ValueError on no scores, on lengths that differ and on NaN.
    """
    sums, counts = _by_cluster(scores, clusters)
    means = numpy.empty(draws)
    generator = numpy.random.default_rng(seed)
    rows = max(1, _CELLS_AT_ONCE // len(sums))
    evenly = numpy.full(len(sums), 1 / len(sums))
    for start in range(0, draws, rows):
        size = min(rows, draws - start)
        drawn = generator.multinomial(len(sums), evenly, size=size)  # (draws, problems)
        means[start : start + size] = (drawn @ sums) / (drawn @ counts)
    tail = (1 - confidence) / 2
    low, high = numpy.quantile(means, [tail, 1 - tail])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    clusters: ArrayLike | None = None,
    draws: int = 2_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval:
    """The mean of `second - first` and its interval, both measured on the same problems: entry i belongs to entry i.

    Arguments as in `clustered_bootstrap`. The difference is real, at this confidence, when the interval leaves out 0.
    Pairing takes the difficulty of the problems out of the comparison; two overlapping separate intervals do not
    mean that two policies are equal. ValueError when the lengths differ.
    """
    first_scores, second_scores = numpy.asarray(first, dtype=float), numpy.asarray(second, dtype=float)
    if first_scores.shape != second_scores.shape:
        raise ValueError(f"paired scores must have one shape: {first_scores.shape} and {second_scores.shape}")
    return clustered_bootstrap(second_scores - first_scores, clusters, draws, seed, confidence)


def with_width(
    interval: Interval, problems: int, minimum: float, maximum: float, confidence: float = 0.95
) -> Interval:
    """`interval`, or where it has no width because all of `problems` scored the same, the bound that still holds.

    When n problems all score v, the share of problems that score otherwise is below q = 1 - (tail)^(1/n) at this
    confidence, and those score at least `minimum` and at most `maximum`: [v - q (v - minimum), v + q (maximum - v)].
    For v = 0 or 1 that is the interval of Clopper and Pearson (1934): 0 of 32 gives 0 to 0.109.
    """
    if interval.low < interval.high:
        return interval
    score, _, _ = interval
    others = 1 - ((1 - confidence) / 2) ** (1 / problems)
    return Interval(score, score - others * (score - minimum), score + others * (maximum - score))


def paired_t_interval(differences: ArrayLike, step: float, confidence: float = 0.95) -> Interval:
    """The mean of the problems' differences and its interval, right for few problems too.

    differences: second minus first score of each problem (the mean over its responses), between -1 and 1. step: the
    smallest difference that a problem can show: 1/k for the mean of k responses, 1 for right or wrong. Mean plus minus
    t(n - 1) standard errors. With fewer than 10 unequal problems the interval is widened to hold that of Agresti and
    Min, which adds a difference of +step and one of -step with weight 1/2 each, and one of 0 with weight 1; without any
    unequal problem it is `with_width`'s bound. ValueError on no differences and on NaN.
    """
    values, _ = _by_cluster(differences, None)
    count, mean = len(values), float(values.mean())
    point = Interval(mean, mean, mean)
    if count == 1 or not values.any():
        return with_width(point, count, -1.0, 1.0, confidence)
    reach = t_quantile(count - 1, confidence) * float(values.std(ddof=1)) / sqrt(count)
    low, high = mean - reach, mean + reach
    if numpy.count_nonzero(values) < _FEWEST_UNEQUAL:
        total = count + 2
        middle = float(values.sum()) / total
        variance = (float((values**2).sum()) + step**2) / total - middle**2
        reach = NormalDist().inv_cdf((1 + confidence) / 2) * sqrt(variance / total)
        low, high = min(low, middle - reach), max(high, middle + reach)
    return Interval(mean, max(low, -1.0), min(high, 1.0))


def welch_interval(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of `second` minus mean of `first`, two independent groups with spreads of their own (Welch, 1947).

    Fractional degrees of freedom are rounded down. Groups without any spread give an interval of no width. ValueError
    below two values in a group.
    """
    groups = [numpy.asarray(values, dtype=float) for values in (first, second)]
    if min(map(len, groups)) < 2:
        raise ValueError("welch_interval needs two values in each group")
    squares = [float(values.var(ddof=1)) / len(values) for values in groups]
    middle = float(groups[1].mean() - groups[0].mean())
    if not sum(squares):
        return Interval(middle, middle, middle)
    parts = sum(square**2 / (len(values) - 1) for square, values in zip(squares, groups, strict=True))
    reach = t_quantile(max(1, int(sum(squares) ** 2 / parts)), confidence) * sqrt(sum(squares))
    return Interval(middle, middle - reach, middle + reach)


@lru_cache(maxsize=1024)
def t_quantile(freedom: int, confidence: float = 0.95) -> float:
    """The two-sided quantile of Student's t: within plus minus this lies `confidence` of it.

    freedom: a whole number from 1. By bisection of the closed form (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    if freedom < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"t_quantile needs freedom >= 1 and a confidence within 0 and 1: {freedom}, {confidence}"
        )
    low, high = 0.0, pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_probability(middle, freedom) < confidence else (low, middle)
    return tan(low) * sqrt(freedom)


def _t_probability(angle: float, freedom: int) -> float:
    """The chance that |t| is below sqrt(freedom) * tan(angle)."""
    is_odd = freedom % 2 == 1
    term = cos(angle) if is_odd else 1.0
    total = term if freedom > 1 else 0.0
    for power in range(3 if is_odd else 2, freedom - 1, 2):
        term *= (power - 1) / power * cos(angle) ** 2
        total += term
    return 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total


def sign_flip_test(differences: ArrayLike, draws: int = 20_000, seed: int = 0) -> float:
    """Two-sided p-value of the mean difference when the two sides of each problem could as well be swapped.

    differences: one for each problem, so responses of one problem stay together; for right or wrong it is the exact
    test of McNemar. All patterns are listed up to 14 unequal problems; beyond, `draws` are drawn and p is
    (1 + as extreme) / (1 + draws), never 0. No unequal problem gives 1. ValueError on no differences and on NaN.
    """
    values, _ = _by_cluster(differences, None)
    unequal = values[values != 0]
    if not len(unequal):
        return 1.0
    bound = abs(unequal.sum()) - 1e-9
    if len(unequal) <= _MOST_FLIPS_LISTED:
        sums = numpy.zeros(1)
        for value in unequal:
            sums = numpy.concatenate([sums - value, sums + value])
        return float((abs(sums) >= bound).mean())
    generator, rows, extreme = numpy.random.default_rng(seed), max(1, _CELLS_AT_ONCE // len(unequal)), 0
    for start in range(0, draws, rows):
        size = (min(rows, draws - start), len(unequal))
        flips = generator.integers(0, 2, size=size, dtype=numpy.int8)
        extreme += int((abs(unequal.sum() - 2 * (flips @ unequal)) >= bound).sum())
    return (1 + extreme) / (1 + draws)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number: below a bound, the chance of even one false finding is below it too.

    The smallest is multiplied by their number, the next by one less, and so on, never below the one before and never
    above 1. Order is kept.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _by_cluster(scores: ArrayLike, clusters: ArrayLike | None) -> tuple[NDArray, NDArray]:
    """Sum and number of scores for each problem, problems in sorted order."""
    values = numpy.asarray(scores, dtype=float)
    if values.ndim != 1 or not len(values) or numpy.isnan(values).any():
        raise ValueError("scores must be a list of numbers with at least one entry and no NaN")
    if clusters is None:
        return values, numpy.ones(len(values))
    ids = numpy.asarray(clusters)
    if ids.shape != values.shape:
        raise ValueError(f"{len(values)} scores need as many cluster ids: {ids.shape}")
    index = numpy.unique(ids, return_inverse=True)[1]
    return numpy.bincount(index, weights=values), numpy.bincount(index).astype(float)
