"""The comparison itself: differences on the same problems, their intervals and tests, and when one is called better.

A problem's score is averaged over its responses and, where a side was trained with several seeds, over the seeds; the
interval and the p-value then take whole problems (stages/algorithms/comparisons.py). They say whether the difference
would stand with other problems, for these trained policies. Beside them stands how far seeds lie apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import stdev
from typing import Literal

import numpy
import pandas

from pipelines.comparing.scoring import Benchmark, problem_scores, shared_benchmarks
from pipelines.comparing.sides import Side
from stages.algorithms.comparisons import (
    PairedDifference,
    Verdict,
    compare_paired,
    holm,
    seed_interval,
    welch_interval,
)
from stages.algorithms.estimators import Interval


@dataclass(frozen=True)
class Comparison:
    """`second - first` on one metric of one benchmark."""

    benchmark: str
    metric: str
    first: str
    second: str
    first_score: float
    second_score: float
    difference: PairedDifference
    """Over problems."""
    corrected: float
    """Its p-value after Holm, over all comparisons of the table."""
    first_seed_sd: float | None
    """Sample standard deviation of the seeds' scores; None below two seeds."""
    second_seed_sd: float | None
    by_seed: dict[int, float]
    """Differences of the seeds that both sides have; empty when they share none."""
    over_seeds: Interval | None
    """Paired by seed where two are shared, else Welch's; None below two seeds on a side."""
    is_same_side: bool
    """True when no seed, or pair of seeds, contradicts the sign of the difference."""

    @property
    def claim(self) -> str:
        """What the finding is about: the setting needs an interval over seeds, that leaves out 0."""
        holds = self.over_seeds is not None and not self.over_seeds.low <= 0 <= self.over_seeds.high
        return "the setting" if holds else "these two policies"

    @property
    def verdict(self) -> Verdict | Literal["higher", "lower"]:
        """`better` and `worse` are about the setting, and need both intervals; the others are about policies."""
        called = self.difference.called(self.corrected) if self.is_same_side else "not separated"
        if called == "not separated":
            return called
        if self.claim == "the setting":
            return called
        return "higher" if called == "better" else "lower"


@dataclass(frozen=True)
class Findings:
    """A whole table."""

    sides: tuple[Side, ...]
    benchmarks: tuple[Benchmark, ...]
    comparisons: tuple[Comparison, ...]
    restrictions: tuple[str, ...]
    """What was left out so that all sides are measured on the same; empty when nothing was."""
    scores: dict[tuple[str, str], pandas.DataFrame]
    """(side, benchmark) -> scores of problems, averaged over seeds."""
    is_clean: bool
    """Problems that the training data of a side contain were left out."""


def compare(
    sides: Sequence[Side],
    families: Sequence[str],
    is_common: bool,
    is_all_pairs: bool,
    is_clean: bool = False,
) -> Findings:
    """Every side against the first one, or all pairs. UserError as in `shared_benchmarks`."""
    benchmarks, restrictions = shared_benchmarks(sides, is_common, is_clean)
    by_seed = {
        (side.name, benchmark.name): [problem_scores(own, benchmark, families) for own in side.answers]
        for side in sides
        for benchmark in benchmarks
    }
    pairs = list(combinations(sides, 2)) if is_all_pairs else [(sides[0], side) for side in sides[1:]]
    planned = [
        (benchmark, metric, first, second)
        for first, second in pairs
        for benchmark in benchmarks
        for metric in benchmark.metrics(families)
    ]
    found = [
        _compare(benchmark, metric, (first, second), by_seed) for benchmark, metric, first, second in planned
    ]
    corrected = holm([one.difference.p_value for one in found])
    scores = {key: sum(tables) / len(tables) for key, tables in by_seed.items()}
    return Findings(
        tuple(sides),
        tuple(benchmarks),
        tuple(replace(one, corrected=value) for one, value in zip(found, corrected, strict=True)),
        tuple(restrictions),
        scores,
        is_clean,
    )


def _compare(
    benchmark: Benchmark,
    metric: str,
    pair: tuple[Side, Side],
    by_seed: dict[tuple[str, str], list[pandas.DataFrame]],
) -> Comparison:
    tables = [[table[metric].to_numpy() for table in by_seed[side.name, benchmark.name]] for side in pair]
    first, second = (sum(own) / len(own) for own in tables)
    seed_scores = [
        {
            answers.seed if answers.seed is not None else -1 - place: float(table.mean())
            for place, (answers, table) in enumerate(zip(side.answers, own, strict=True))
        }
        for side, own in zip(pair, tables, strict=True)
    ]
    shared, over_seeds, is_same_side = _over_seeds(*seed_scores)
    sds = [stdev(own.values()) if len(own) > 1 else None for own in seed_scores]
    difference = compare_paired(first, second)
    return Comparison(
        benchmark.name,
        metric,
        pair[0].name,
        pair[1].name,
        float(first.mean()),
        float(second.mean()),
        difference,
        difference.p_value,
        sds[0],
        sds[1],
        shared,
        over_seeds,
        is_same_side,
    )


def _over_seeds(
    first: dict[int, float], second: dict[int, float]
) -> tuple[dict[int, float], Interval | None, bool]:
    """Differences of shared seeds, the interval over seeds, and whether the seeds agree on the sign."""
    shared = {seed: second[seed] - first[seed] for seed in first if seed in second and seed >= 0}
    signs = numpy.sign(list(shared.values()))
    if len(shared) == len(first) == len(second):
        return shared, seed_interval(list(shared.values())), len(set(signs)) == 1
    apart = min(second.values()) > max(first.values()) or max(second.values()) < min(first.values())
    if min(len(first), len(second)) < 2:
        return shared, None, apart
    return shared, welch_interval(list(first.values()), list(second.values())), apart
