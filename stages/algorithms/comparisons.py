"""Whether one policy is better than another: the one paired comparison that everything here uses.

Two policies answer the same problems. A problem's score, from 0 to 1, is what all its responses together say (their
mean, pass@k, a vote; how many there are may differ from problem to problem), so a problem counts once and the
correlation among its responses needs no model. What is left is the mean of independent differences between -1 and 1.

Source: Agresti and Min (Statistics in Medicine 24, 2005, 729-740) for right or wrong: to the pairs that were seen, add
half a pair that is won and half a pair that is lost, and one that is even. Student's t is from scipy.

Deviations:
1. 1.25 pairs are added on either side, and none that is even. It is the fewest, in quarters, that keeps 94% coverage
   for right or wrong with 30 to 2,000 problems and every difference, even where no problem can be lost; half a pair
   keeps 87% there (benchmarks/interval_coverage.py).
2. For scores that are shares (avg@k) the added pairs have the size of an unequal problem: the root mean square of the
   differences seen that are not 0, with eight whole ones counted in. Where policies differ on three problems of 100,
   and there a little, those on which they differ wholly may not be among the 100, and the spread cannot tell; where
   they differ on 50, it can. For right or wrong the size is 1.
3. Student's quantile in place of the normal one, and the same statistic gives the p-value, so that interval and test
   never contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Literal, NamedTuple

import numpy
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from stages.algorithms.estimators import Interval

ADDED = 1.25
"""Problems won, and as many lost, that are added to those seen."""
WHOLE_ONES = 8
"""Differences of 1 that count in the size of an added problem. With five, coverage fell to 93.6% for pass@4 where two
policies solve nearly everything; more cost width everywhere."""
FEWEST_PROBLEMS = 10
"""With fewer, no policy is called better or worse: they stand for no benchmark, however clear they are."""
LARGEST_P = 0.05
Verdict = Literal["better", "worse", "not separated"]


class PairedDifference(NamedTuple):
    """The second policy minus the first, on the same problems."""

    interval: Interval
    """The mean difference and its 95% interval over problems."""
    p_value: float
    """Two-sided; below 0.05 exactly where the interval leaves out 0."""
    wins: int
    """Problems on which the second scores higher."""
    losses: int
    ties: int

    @property
    def problems(self) -> int:
        return self.wins + self.losses + self.ties

    @property
    def verdict(self) -> Verdict:
        """What the second policy is; for one of several comparisons, give `called` the corrected p-value instead."""
        return self.called(self.p_value)

    def called(self, p_value: float) -> Verdict:
        """The verdict that `p_value` allows."""
        if p_value >= LARGEST_P or self.problems < FEWEST_PROBLEMS:
            return "not separated"
        return "better" if self.interval.estimate > 0 else "worse"


def compare_paired(first: ArrayLike, second: ArrayLike) -> PairedDifference:
    """`second - first`, entry i of both being the scores of problem i, from 0 to 1.

    Where all differences are 0 the interval still has a width: 30 problems without a difference leave room for 10.1
    points. Differences below 1e-12 are rounding, and ties. ValueError on no problem, on lengths that differ and on
    scores that are NaN or outside 0 to 1.
    """
    scores = [numpy.asarray(side, dtype=float) for side in (first, second)]
    if scores[0].ndim != 1 or not len(scores[0]) or scores[0].shape != scores[1].shape:
        shapes = " and ".join(str(side.shape) for side in scores)
        raise ValueError(f"a paired comparison needs a score of each problem for both policies: {shapes}")
    if not all(((side >= 0) & (side <= 1)).all() for side in scores):
        raise ValueError("a paired comparison needs scores from 0 to 1")
    differences = scores[1] - scores[0]
    differences[abs(differences) < 1e-12] = 0.0
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    squares = float((differences**2).sum())
    added = 2 * ADDED * (squares + WHOLE_ONES) / (wins + losses + WHOLE_ONES)  # their squares; their sum is 0
    total = len(differences) + 2 * ADDED
    middle = float(differences.sum()) / total
    error = sqrt(((squares + added) / total - middle**2) / (total - 1))
    reach = float(stdtrit(total - 1, 0.975)) * error
    return PairedDifference(
        Interval(float(differences.mean()), max(middle - reach, -1.0), min(middle + reach, 1.0)),
        2 * float(stdtr(total - 1, -abs(middle) / error)),
        wins,
        losses,
        len(differences) - wins - losses,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number: below a bound, the chance of even one false finding is below it too.

    Source: Holm (1979). The smallest is multiplied by their number, the next by one less, and so on, never below the
    one before and never above 1. Order is kept.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def seed_interval(values: Sequence[float]) -> Interval | None:
    """The mean of one number a seed (a score, or a difference of two runs with that seed) and its 95% t-interval.

    None below two seeds. Three seeds make it wide, rightly.
    """
    if len(values) < 2:
        return None
    found = numpy.asarray(values, dtype=float)
    middle = float(found.mean())
    reach = float(stdtrit(len(found) - 1, 0.975)) * float(found.std(ddof=1)) / sqrt(len(found))
    return Interval(middle, middle - reach, middle + reach)


def welch_interval(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Mean of `second` minus mean of `first`, runs of different seeds with spreads of their own (Welch, 1947), at 95%.

    Groups without any spread give an interval of no width. ValueError below two values in a group.
    """
    groups = [numpy.asarray(values, dtype=float) for values in (first, second)]
    if min(map(len, groups)) < 2:
        raise ValueError("welch_interval needs two values in each group")
    squares = [float(values.var(ddof=1)) / len(values) for values in groups]
    middle = float(groups[1].mean() - groups[0].mean())
    if not sum(squares):
        return Interval(middle, middle, middle)
    parts = sum(square**2 / (len(values) - 1) for square, values in zip(squares, groups, strict=True))
    reach = float(stdtrit(sum(squares) ** 2 / parts, 0.975)) * sqrt(sum(squares))
    return Interval(middle, middle - reach, middle + reach)
