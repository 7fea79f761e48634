"""Estimates from repeated samples with their intervals, and the paired comparison that says which policy is better.

Sources: pass@k, Chen et al. (arXiv 2107.03374, equation 1); majority voting, Wang et al. (arXiv 2203.11171); the
clustered bootstrap, Cameron, Gelbach and Miller (2008). Samples of one problem are not independent, so the bootstrap
resamples problems, each with all its samples.

Deviations of the estimates:
1. `majority_at_k` with fewer votes than samples is the mean over all subsets, as pass@k is, not the vote of the first
   k. The order of samples means nothing, and the subsets together use every sample.
2. Tied answers share the point; it does not go to the answer seen first.

Two policies are compared on the same problems, without a bootstrap. A problem's score, from 0 to 1, summarises all its
responses (their mean, pass@k, a vote); problems may have different numbers of responses. So each problem counts once,
and the correlation among its responses needs no model. The result is the mean of independent differences between -1
and 1. Source for right or wrong: Agresti and Min (Statistics in Medicine 24, 2005, 729-740). They add to the observed
pairs half a pair that is won, half a pair that is lost, and one that is even. Student's t and Welch's test are from
scipy. Holm's correction is not in scipy. The bootstrap is drawn here: scipy draws other samples from the same seed, and
published intervals would change.

Deviations of the comparison:
1. The comparison adds 1.25 won and 1.25 lost pairs, and no even pair. This is the smallest multiple of a quarter that
   keeps 94% coverage for right or wrong, with 30 to 2,000 problems and every difference. That holds even where no
   problem can be lost; half a pair keeps only 87% there (benchmarks/interval_coverage.py).
2. For scores that are shares (avg@k) the added pairs have the size of a typical differing problem. That is the root
   mean square of the observed nonzero differences and eight differences of 1. Few differing problems show too little
   spread: a sample of 100 problems may miss those on which the policies differ completely. For right or wrong the size
   is 1.
3. Student's quantile replaces the normal one. The p-value comes from the same statistic, so the interval and the test
   never contradict each other.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from math import comb, sqrt
from typing import Any, Literal, NamedTuple

import numpy
from numpy.typing import ArrayLike, NDArray

# 32 MB of counts in float64.
_CELLS_AT_ONCE = 4_000_000
"""Bound on draws times problems held in memory; the result does not depend on it."""


Verdict = Literal["better", "worse", "not separated"]


class Interval(NamedTuple):
    """A point estimate and its interval."""

    estimate: float
    low: float
    high: float

    def verdict(self, margin: float = 0.0) -> Verdict:
        """Returns the verdict on a difference: better or worse where the whole interval is beyond the margin."""
        if self.low > margin:
            return "better"
        return "worse" if self.high < -margin else "not separated"


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> float | NDArray[numpy.float64]:
    """Returns the chance that at least one of `k` samples is correct, unbiased, from `c` correct among `n` samples.

    `n` and `c` may be arrays with one entry for each problem; then the result is an array, else a float.
    The result is 1 - C(n-c, k) / C(n, k), computed as a product that does not overflow. It is 1 where fewer than `k`
    samples are wrong. ValueError when k < 1, k > n, or c is not between 0 and n.
    """
    samples, correct = numpy.broadcast_arrays(numpy.asarray(n, dtype=float), numpy.asarray(c, dtype=float))
    if k < 1 or (samples < k).any() or (correct < 0).any() or (correct > samples).any():
        raise ValueError(f"pass_at_k needs 1 <= k <= n and 0 <= c <= n: n={n}, c={c}, k={k}")
    steps = numpy.arange(k)
    # Fewer than k wrong samples: a factor of 0 makes the product 0, and pass@k is 1.
    wrong_left = numpy.clip((samples - correct)[..., None] - steps, 0, None)
    all_wrong = numpy.prod(wrong_left / (samples[..., None] - steps), axis=-1)
    return float(1 - all_wrong) if all_wrong.ndim == 0 else 1 - all_wrong


def majority_at_k(answers: Sequence[Hashable | None], gold: Hashable, k: int) -> float:
    """Returns the chance that the most frequent of `k` answers, drawn from `answers` without replacement, is `gold`.

    Answers are compared with ==, so the caller maps equivalent answers to one value first. None is a response without
    an answer: it can be drawn, and does not vote. A tie of m answers gives 1/m; no vote at all gives 0. With k equal to
    the number of answers this is plain majority voting. ValueError when k < 1 or k exceeds the number of answers.
    """
    total = len(answers)
    if not 1 <= k <= total:
        raise ValueError(f"majority_at_k needs 1 <= k <= {total} answers: k={k}")
    votes = Counter(answer for answer in answers if answer is not None)
    for_gold = votes.pop(gold, 0)
    abstentions = sum(answer is None for answer in answers)
    # Gold wins with `gold_votes` when no rival has more; with m rivals tied it gets 1/(m + 1) of the point.
    share = 0.0
    for gold_votes in range(1, min(for_gold, k) + 1):
        ways = _ways_of_the_rest(list(votes.values()), abstentions, gold_votes, k - gold_votes)
        share += comb(for_gold, gold_votes) * sum(count / (ties + 1) for ties, count in ways.items())
    # Sums of shares may exceed 1 by rounding.
    return min(1.0, share / comb(total, k))


def _ways_of_the_rest(rivals: list[int], abstentions: int, limit: int, seats: int) -> dict[int, int]:
    """Counts the ways to fill `seats` with no rival above `limit` votes, by how many rivals have exactly `limit`.

    Dynamic programme over rivals; a state is (seats taken, rivals that tie with `limit`).
    """
    states: dict[tuple[int, int], int] = {(0, 0): 1}
    for count in rivals:
        following: dict[tuple[int, int], int] = {}
        for (taken, ties), ways in states.items():
            # With more than `limit` votes a rival would win: such ways are left out.
            for votes in range(min(count, limit, seats - taken) + 1):
                state = (taken + votes, ties + (votes == limit))
                following[state] = following.get(state, 0) + ways * comb(count, votes)
        states = following
    result: dict[int, int] = {}
    for (taken, ties), ways in states.items():
        result[ties] = result.get(ties, 0) + ways * comb(abstentions, seats - taken)
    return result


def clustered_bootstrap(
    scores: ArrayLike, clusters: ArrayLike | None = None, draws: int = 2_000, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """The mean of `scores` and its percentile interval when whole problems are resampled.

    scores: one number for each response. clusters: the problem id of each response (any values that can be sorted;
    None: every score is its own problem). draws: the number of bootstrap samples. Each sample draws as many problems as
    there are, with replacement, and averages over all their responses. The same seed gives the same interval.
    Fewer than two problems, or equal scores everywhere, give an interval of width 0. It says nothing about other
    problems; use `with_width` there. ValueError on no scores, on lengths that differ and on NaN.
    """
    sums, counts = _by_cluster(scores, clusters)
    means = numpy.empty(draws)
    generator = numpy.random.default_rng(seed)
    rows = max(1, _CELLS_AT_ONCE // len(sums))
    evenly = numpy.full(len(sums), 1 / len(sums))
    for start in range(0, draws, rows):
        size = min(rows, draws - start)
        # Counts of each problem's draws replace the list of drawn problems: one matrix product gives all means.
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
    """Returns the mean of `second - first` and its interval. Entry i of both is measured on the same problem.

    Arguments as in `clustered_bootstrap`. Others report this percentile bootstrap; here it is only measured beside
    `compare_paired`. With few problems, or few that differ, it leaves out 0 too often, so no policy is called
    better because of it. ValueError when the lengths differ.
    """
    first_scores, second_scores = numpy.asarray(first, dtype=float), numpy.asarray(second, dtype=float)
    if first_scores.shape != second_scores.shape:
        raise ValueError(f"paired scores must have one shape: {first_scores.shape} and {second_scores.shape}")
    return clustered_bootstrap(second_scores - first_scores, clusters, draws, seed, confidence)


def with_width(interval: Interval, problems: int, minimum: float, maximum: float, confidence: float = 0.95) -> Interval:
    """Returns `interval`; if its width is 0 because all `problems` scored the same, the bound that still holds.

    When n problems all score v, the share of problems that score otherwise is below q = 1 - (tail)^(1/n) at this
    confidence. Those score at least `minimum` and at most `maximum`, so the bound is [v - q (v - minimum), v + q
    (maximum - v)]. For v = 0 or 1 that is the interval of Clopper and Pearson (1934): 0 of 32 gives 0 to 0.109.
    """
    if interval.low < interval.high:
        return interval
    score, _, _ = interval
    # (1 - q)^n is the chance that n problems show no other score; at this q it equals one tail.
    others = 1 - ((1 - confidence) / 2) ** (1 / problems)
    return Interval(score, score - others * (score - minimum), score + others * (maximum - score))


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


# ------------------------------------------------------------------------------------------------- comparisons
ADDED = 1.25
"""Problems won, and as many problems lost, that are added to the observed ones."""
WHOLE_ONES = 8
"""Differences of 1 that count in the size of an added problem. With five, coverage fell to 93.6% for pass@4 where two
policies solve nearly everything; more than eight made every interval wider."""
FEWEST_PROBLEMS = 10
"""With fewer problems, no policy is called better or worse, however clear the difference: they are no benchmark."""
LARGEST_P = 0.05


class PairedDifference(NamedTuple):
    """The second policy minus the first, on the same problems."""

    interval: Interval
    """The mean difference and its 95% interval over problems."""
    p_value: float
    """Two-sided; below 0.05 exactly where the interval excludes 0."""
    wins: int
    """Problems on which the second scores higher."""
    losses: int
    ties: int

    @property
    def problems(self) -> int:
        return self.wins + self.losses + self.ties

    @property
    def verdict(self) -> Verdict:
        """Returns the verdict on the second policy. For one of several comparisons, call `called` with the corrected
        p-value instead."""
        return self.called(self.p_value)

    def called(self, p_value: float) -> Verdict:
        """The verdict that `p_value` allows."""
        if p_value >= LARGEST_P or self.problems < FEWEST_PROBLEMS:
            return "not separated"
        return "better" if self.interval.estimate > 0 else "worse"


def compare_paired(first: ArrayLike, second: ArrayLike) -> PairedDifference:
    """Compares `second` with `first`; entry i of both is the score of problem i, from 0 to 1.

    Where all differences are 0 the interval still has a width: 30 problems without a difference leave room for 10.1
    points. Differences below 1e-12 are rounding and count as ties. ValueError on no problem, on lengths that differ and
    on scores that are NaN or outside 0 to 1.
    """
    from scipy.special import stdtr, stdtrit  # imported here: callers that only need `Interval` skip its 0.4 s

    scores = [numpy.asarray(side, dtype=float) for side in (first, second)]
    if scores[0].ndim != 1 or not len(scores[0]) or scores[0].shape != scores[1].shape:
        shapes = " and ".join(str(side.shape) for side in scores)
        raise ValueError(f"a paired comparison needs a score of each problem for both policies: {shapes}")
    if not all(((side >= 0) & (side <= 1)).all() for side in scores):
        raise ValueError("a paired comparison needs scores from 0 to 1")
    differences = scores[1] - scores[0]
    # Means of 3 and of 4 samples can differ by rounding where the shares are equal.
    differences[abs(differences) < 1e-12] = 0.0
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    squares = float((differences**2).sum())
    # Deviation 2: the mean square of the differences that are not 0, with eight of size 1 counted in.
    added = 2 * ADDED * (squares + WHOLE_ONES) / (wins + losses + WHOLE_ONES)  # their squares; their sum is 0
    total = len(differences) + 2 * ADDED
    # The added pairs cancel in the sum and pull the mean towards 0 only by their number.
    middle = float(differences.sum()) / total
    error = sqrt(((squares + added) / total - middle**2) / (total - 1))
    reach = float(stdtrit(total - 1, 0.975)) * error
    return PairedDifference(
        # The estimate is the plain mean; the interval is around the mean with the added pairs.
        Interval(float(differences.mean()), max(middle - reach, -1.0), min(middle + reach, 1.0)),
        2 * float(stdtr(total - 1, -abs(middle) / error)),
        wins,
        losses,
        len(differences) - wins - losses,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p-values corrected for their number, in the same order.

    If the corrected value is below a bound, so is the chance of even one false finding. Source: Holm (1979). The least
    value is multiplied by their number, the next by one less, and so on; none falls below the one before or exceeds 1.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        # Never below the p-value before, so that the correction keeps their order.
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def seed_interval(values: Sequence[float]) -> Interval | None:
    """Returns the mean of one number per seed (a score, or a difference of two runs) and its 95% t-interval.

    Returns None below two seeds. With three seeds the interval is wide, as it should be.
    """
    if len(values) < 2:
        return None
    from scipy.stats import ttest_1samp  # here and below: the import takes more than a second

    return _t_interval(numpy.mean(values), [values], lambda: ttest_1samp(values, 0.0))


def welch_interval(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Returns the mean of `second` minus that of `first` at 95%, for runs of different seeds and spreads (Welch, 1947).

    If neither group has any spread, the interval has width 0. ValueError below two values in a group.
    """
    if min(len(first), len(second)) < 2:
        raise ValueError("welch_interval needs two values in each group")
    from scipy.stats import ttest_ind

    difference = numpy.mean(second) - numpy.mean(first)
    return _t_interval(difference, [first, second], lambda: ttest_ind(second, first, equal_var=False))


def _t_interval(estimate: float, groups: Sequence[Sequence[float]], test: Callable[[], Any]) -> Interval:
    # Without a spread, rounding aside, scipy's interval may be NaN.
    if all(numpy.ptp(values) < 1e-12 for values in groups):
        return Interval(float(estimate), float(estimate), float(estimate))
    with warnings.catch_warnings():
        # scipy warns where one of two groups has no spread. Welch's interval is right there too.
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = test().confidence_interval()
    return Interval(float(estimate), float(low), float(high))
