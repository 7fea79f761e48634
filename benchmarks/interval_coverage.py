"""Coverage, width and power of the 95% interval of a paired comparison.

Two policies answer the problems that a benchmark drew from a population, with k responses each. A problem's pass rates
are beta distributed, so its responses are correlated. `PRECISIONS` sets how much: with 0.2 most problems are always
right or always wrong, with 8 they are alike. A Gaussian copula correlates the rates of the two policies. Scores run
from 0.01 to 0.99; the truth is the mean difference over the population. Scores are the mean of 1, 4 or 8 responses, the
vote of 4, and pass@4 of 8. Another score is the mean of a random number of responses, 1 to 8, for each policy and
problem. A second table has the worst case of single responses: no problem can be lost, and every difference is tried.

The peer is the percentile bootstrap over problems, with the bound of Clopper and Pearson where all are equal. The two
constants of `estimators.py` were not chosen on these populations. They were chosen on rates whose log-odds are normal,
on the worst case, and on beta rates of other precisions (0.3, 1 and 4).

    python -m benchmarks.interval_coverage [--draws 10000] [--bootstraps 500] [--rollouts FILE]

`--rollouts` adds real problems: JSON lines with `score`, a list of right or wrong for each response. They are the
population; a vote of three responses, drawn from the recorded ones, is compared with a single one, and a single one
with another. Exit code 1 when a setting covers less than 94%.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr
from scipy.stats import binom

from stages.algorithms.estimators import Interval, compare_paired, paired_bootstrap, pass_at_k, with_width

LOWEST = 0.94
PROBLEMS = (30, 50, 100, 300, 1000, 2000)
SECOND_SCORES = {
    0.01: (0.01, 0.02, 0.11),
    0.03: (0.03, 0.05, 0.15),
    0.1: (0.1, 0.13, 0.3),
    0.5: (0.5, 0.53, 0.7),
    0.9: (0.9, 0.92, 0.98),
    0.97: (0.97, 0.98, 0.9),
    0.99: (0.99, 0.995, 0.9),
}
"""First policy's score -> the second's: equal, a small and a large difference."""
PRECISIONS = {0.2: 0.9, 2.0: 0.7, 8.0: 0.3}
"""Sum of the beta distribution's two parameters -> correlation of the two policies' rates in the copula."""
MOST_PROBLEMS_OF_THE_PEER = 100
"""It takes minutes, and beyond there is little to see."""
POPULATION = 100_000
MOST_IN_A_CALL = 8


def mean_of(k: int) -> NDArray:
    """Returns a problem's score by the number of correct responses among k: their mean."""
    return numpy.arange(k + 1) / k


SCORES: dict[str, tuple[NDArray, ...]] = {
    "mean of 1": (mean_of(1),),
    "mean of 4": (mean_of(4),),
    "mean of 8": (mean_of(8),),
    "mean of 1 to 8": tuple(mean_of(k) for k in range(1, MOST_IN_A_CALL + 1)),
    "vote of 4": (numpy.array([0.0, 0.0, 0.5, 1.0, 1.0]),),
    "pass@4 of 8": (pass_at_k(8, numpy.arange(9), 4),),
}
"""Name -> a problem's score by the number of its correct responses; several where their number is drawn too."""


@dataclass(frozen=True)
class Population:
    """The population of problems, as the possible differences of one problem and their probabilities."""

    differences: NDArray
    probabilities: NDArray

    @property
    def truth(self) -> float:
        return float(self.differences @ self.probabilities)

    def benchmarks(self, problems: int, draws: int, seed: int) -> Iterator[tuple[NDArray, int]]:
        """Yields the differences of `problems` drawn problems, and how many of `draws` benchmarks drew them."""
        generator = numpy.random.default_rng(seed)
        counts = generator.multinomial(problems, self.probabilities, size=draws)
        for own, times in zip(*numpy.unique(counts, axis=0, return_counts=True), strict=True):
            yield numpy.repeat(self.differences, own), int(times)


def population(first: NDArray, second: NDArray, shapes: tuple[tuple[NDArray, ...], ...]) -> Population:
    """Returns a population. first, second: each problem's rate of correct responses; shapes: entries of `SCORES`."""
    found: dict[float, float] = {}
    sides = [
        [(score, _outcomes(rates, len(score) - 1)) for score in own]
        for rates, own in zip((first, second), shapes, strict=True)
    ]
    for one, chances in sides[0]:
        for other, other_chances in sides[1]:
            together = chances.T @ other_chances / len(first) / len(sides[0]) / len(sides[1])
            for (row, column), chance in numpy.ndenumerate(together):
                difference = round(float(other[column] - one[row]), 12)
                found[difference] = found.get(difference, 0.0) + float(chance)
    probabilities = numpy.array(list(found.values()))
    return Population(numpy.array(list(found)), probabilities / probabilities.sum())


def _outcomes(rates: NDArray, k: int) -> NDArray:
    """Returns the probability of 0 to k correct responses: (problems, k + 1)."""
    correct = numpy.arange(k + 1)
    ways = numpy.array([comb(k, number) for number in correct])
    return ways * rates[:, None] ** correct * (1 - rates[:, None]) ** (k - correct)


def beta_rates(first: float, second: float, precision: float, correlation: float) -> tuple[NDArray, NDArray]:
    """Returns rates of correct responses of both policies on `POPULATION` problems."""
    normal = numpy.random.default_rng(0).standard_normal((2, POPULATION))
    normal[1] = correlation * normal[0] + numpy.sqrt(1 - correlation**2) * normal[1]
    grid = numpy.linspace(-5, 5, 4001)  # the quantile function is slow, and smooth in the normal score
    rates = (
        numpy.interp(own, grid, betaincinv(score * precision, (1 - score) * precision, ndtr(grid)))
        for own, score in zip(normal, (first, second), strict=True)
    )
    return tuple(rates)


@dataclass(frozen=True)
class Measured:
    """Measurements of the intervals of one setting."""

    below: float
    """Share of intervals that are entirely above the truth."""
    above: float
    width: float
    separated: float
    """Share that leaves out 0: the power, or, between equal policies, the false findings."""

    @property
    def coverage(self) -> float:
        return 1 - self.below - self.above


def ours(differences: NDArray, seed: int) -> Interval:
    return compare_paired(numpy.clip(-differences, 0, 1), numpy.clip(differences, 0, 1)).interval


def peer(differences: NDArray, seed: int) -> Interval:
    found = paired_bootstrap(0 * differences, differences, draws=500, seed=seed)
    return with_width(found, len(differences), -1.0, 1.0)


def measure(
    own: Population, problems: int, draws: int, seed: int, method: Callable[[NDArray, int], Interval]
) -> Measured:
    totals, truth = numpy.zeros(4), own.truth
    for number, (differences, times) in enumerate(own.benchmarks(problems, draws, seed)):
        _, low, high = method(differences, number)
        seen = (truth < low - 1e-12, truth > high + 1e-12, high - low, low > 0 or high < 0)
        totals += times * numpy.array(seen, dtype=float)
    return Measured(*(totals / draws))


def worst_case(problems: int) -> tuple[float, float]:
    """Returns the lowest coverage, and its difference, when the second policy wins some problems and loses none.

    Exact: the number of problems won is binomial.
    """
    won = numpy.arange(problems + 1)
    found = [ours(numpy.repeat([1.0, 0.0], [own, problems - own]), 0) for own in won]
    lows, highs = (numpy.array([getattr(own, end) for own in found]) for end in ("low", "high"))
    truths = numpy.arange(1, 1000) / 1000
    held = [binom.pmf(won[(lows <= own) & (own <= highs)], problems, own).sum() for own in truths]
    return float(min(held)), float(truths[numpy.argmin(held)])


def real_populations(path: Path) -> dict[str, Population]:
    """Returns the problems of a file of recorded responses."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        rates = numpy.array([numpy.mean(json.loads(line)["score"]) for line in lines])
    one, vote = (mean_of(1),), (numpy.array([0.0, 0.0, 1.0, 1.0]),)
    return {
        "one against one": population(rates, rates, (one, one)),
        "vote of 3 against one": population(rates, rates, (one, vote)),
        "mean of 4 against mean of 4": population(rates, rates, (SCORES["mean of 4"],) * 2),
    }


def populations() -> Iterator[tuple[str, float, float, Population]]:
    """Score's name, the two policies' mean rates, and the population."""
    for precision, correlation in PRECISIONS.items():
        for first, seconds in SECOND_SCORES.items():
            for second in seconds:
                rates = beta_rates(first, second, precision, correlation)
                for name, shape in SCORES.items():
                    yield f"{name}, {precision:g}", first, second, population(*rates, (shape, shape))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000, help="simulated benchmarks for each setting")
    parser.add_argument("--bootstraps", type=int, default=500, help="of the peer; 0 leaves it out")
    parser.add_argument("--rollouts", type=Path, help="recorded responses: JSON lines with `score`")
    given = parser.parse_args(argv)
    print(f"{'score, precision':<30}{'first':>6}{'second':>7}{'problems':>9}", end="")
    print(f"{'ours':>7}{'width':>7}{'power':>7}   peer")
    settings = list(populations())
    if given.rollouts:
        settings += [(name, 0.0, 0.0, own) for name, own in real_populations(given.rollouts).items()]
    found: dict[int, list[tuple[Measured, Measured | None, bool]]] = {size: [] for size in PROBLEMS}
    for seed, (name, first, second, own) in enumerate(settings):
        for problems in PROBLEMS:
            mine = measure(own, problems, given.draws, seed, ours)
            other = None
            if given.bootstraps and problems <= MOST_PROBLEMS_OF_THE_PEER:
                other = measure(own, problems, given.bootstraps, seed, peer)
            found[problems].append((mine, other, first == second and "vote of 3" not in name))
            print(f"{name:<30}{first:>6}{second:>7}{problems:>9}{_told(mine)}", end="")
            print(_told(other) if other else "", "BELOW" if mine.coverage < LOWEST else "", flush=True)
    print(
        "\nproblems: lowest and mean coverage, settings below 94%, mean width, power, false findings, most of them",
        end="",
    )
    print("; then the peer's on the same settings")
    for problems, measured in found.items():
        print(f"{problems}: {_summed([(one, is_equal) for one, _, is_equal in measured])}", end="")
        others = [(other, is_equal) for _, other, is_equal in measured if other]
        print(f"; {_summed(others)}" if others else "")
    worst = {problems: worst_case(problems) for problems in PROBLEMS}
    print("\nworst case of single responses, no problem lost: problems, lowest coverage, at which difference")
    for problems, (held, where) in worst.items():
        print(f"{problems:>6} {100 * held:.1f}% {where:.3f}")
    lowest = min([one.coverage for own in found.values() for one, _, _ in own] + [held for held, _ in worst.values()])
    return 1 if lowest < LOWEST else 0


def _told(found: Measured) -> str:
    return f"{100 * found.coverage:>7.2f}{100 * found.width:>7.2f}{100 * found.separated:>7.1f}"


def _summed(found: list[tuple[Measured, bool]]) -> str:
    coverage = [one.coverage for one, _ in found]
    false = [one.separated for one, is_equal in found if is_equal]
    power = [one.separated for one, is_equal in found if not is_equal]
    means = (numpy.mean([one.width for one, _ in found]), numpy.mean(power), numpy.mean(false), max(false))
    told = ", ".join(f"{100 * value:.1f}" for value in means)
    few = sum(own < LOWEST for own in coverage)
    return f"{100 * min(coverage):.1f}, {100 * numpy.mean(coverage):.1f}, {few} of {len(found)}, {told}"


if __name__ == "__main__":
    sys.exit(main())
