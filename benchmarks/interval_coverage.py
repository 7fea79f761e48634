"""How often the 95% interval of a paired difference holds the true difference, for ours and the percentile bootstrap.

Two policies answer the same problems, k responses each. The log-odds of a problem are normal: `middle` is the
benchmark's difficulty, `spread` how far problems differ (2 makes many nearly always right or wrong, as real ones are),
so responses to one problem are correlated. The second policy's log-odds are shifted by `gain` and, problem by problem,
by `noise`. The truth is the mean difference over all problems there could be. Benchmarks with few problems and hardly
any unequal ones (`nearly solved`, `nearly hopeless`) are shown apart: no interval is exact there.

    python -m benchmarks.interval_coverage [--draws 1000]

Prints a line for each setting. Exit code 1 when ours covers less than 93% or more than 97% in one of the first kind.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from stages.algorithms.estimators import Interval, paired_bootstrap, paired_t_interval

LOWEST, HIGHEST = 0.93, 0.97
BOOTSTRAP_DRAWS = 500
MOST_PROBLEMS_OF_THE_BOOTSTRAP = 100
"""It agrees with ours beyond, and takes minutes."""


@dataclass(frozen=True)
class Task:
    """A benchmark and two policies."""

    name: str
    middle: float
    spread: float
    gain: float
    noise: float

    def differences(self, problems: int, samples: int, generator: numpy.random.Generator) -> NDArray:
        """Second minus first policy's share of correct responses, for each of `problems` drawn problems."""
        first, second = self._chances(problems, generator)
        return (generator.binomial(samples, second) - generator.binomial(samples, first)) / samples

    def truth(self) -> float:
        """The mean difference over 2 million problems."""
        first, second = self._chances(2_000_000, numpy.random.default_rng(1))
        return float((second - first).mean())

    def _chances(self, problems: int, generator: numpy.random.Generator) -> tuple[NDArray, NDArray]:
        odds = generator.normal(self.middle, self.spread, problems)
        moved = odds + self.gain + generator.normal(0.0, self.noise, problems)
        return 1 / (1 + numpy.exp(-odds)), 1 / (1 + numpy.exp(-moved))


REALISTIC = (
    Task("no difference", 0.8, 2.0, 0.0, 0.7),
    Task("small gain", 0.8, 2.0, 0.4, 0.7),
    Task("large gain, hard", -1.5, 2.5, 1.5, 1.0),
)
EXTREME = (Task("nearly solved", 4.0, 1.5, -0.7, 0.5), Task("nearly hopeless", -5.0, 1.5, 0.8, 0.5))
SIZES = (20, 30, 100, 400)
SAMPLES = (1, 8, 32)


def coverage(
    task: Task, problems: int, samples: int, draws: int, seed: int, is_bootstrapped: bool
) -> tuple[float, float | None]:
    """Share of `draws` in which ours, and the percentile bootstrap's, interval holds the truth."""
    generator, truth = numpy.random.default_rng(seed), task.truth()
    ours = others = 0
    for number in range(draws):
        found = task.differences(problems, samples, generator)
        ours += _holds(paired_t_interval(found, 1 / samples), truth)
        if is_bootstrapped:
            others += _holds(paired_bootstrap(0 * found, found, draws=BOOTSTRAP_DRAWS, seed=number), truth)
    return ours / draws, others / draws if is_bootstrapped else None


def _holds(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def main(argv: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1000, help="simulated comparisons for each setting")
    draws = parser.parse_args(argv).draws
    print(f"{'task':<18}{'problems':>9}{'samples':>9}{'ours':>8}{'percentile bootstrap':>22}")
    outside = 0
    for task in REALISTIC + EXTREME:
        for problems in SIZES:
            for samples in SAMPLES:
                is_few = problems <= MOST_PROBLEMS_OF_THE_BOOTSTRAP
                ours, other = coverage(task, problems, samples, draws, problems + samples, is_few)
                is_outside = task in REALISTIC and not LOWEST <= ours <= HIGHEST
                outside += is_outside
                told = "" if other is None else f"{100 * other:.1f}%"
                mark = "  OUTSIDE" if is_outside else ""
                print(
                    f"{task.name:<18}{problems:>9}{samples:>9}{100 * ours:>7.1f}%{told:>22}{mark}", flush=True
                )
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
