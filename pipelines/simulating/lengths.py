"""Response lengths of groups, in the order in which groups are issued: the same for every schedule of a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pipelines.simulating.constants import WITHIN_GROUP


@dataclass(frozen=True)
class LogNormal:
    """Log-normal lengths in tokens, cut to `shortest`..`longest`; part of the variance is that of the prompts."""

    median: float
    sigma: float
    shortest: int
    longest: int
    within_group: float = WITHIN_GROUP

    def group(self, rng: random.Random, size: int) -> list[int]:
        """Lengths of one group's responses."""
        among = math.log(self.median) + self.sigma * math.sqrt(1 - self.within_group) * rng.gauss(0, 1)
        within = self.sigma * math.sqrt(self.within_group)
        drawn = (round(math.exp(among + within * rng.gauss(0, 1))) for _ in range(size))
        return [min(max(length, self.shortest), self.longest) for length in drawn]

    @classmethod
    def of_mean(cls, mean: float, sigma: float, longest: int) -> LogNormal:
        """The distribution whose mean, cut to `longest`, is `mean`; one token is the shortest."""
        low, high = 1e-3, 1e3 * longest
        for _ in range(100):
            median = math.sqrt(low * high)
            low, high = (median, high) if _cut_mean(median, sigma, longest) < mean else (low, median)
        return cls(low, sigma, 1, longest)


def _cut_mean(median: float, sigma: float, longest: int) -> float:
    """Mean of a log-normal variable of which all above `longest` count as `longest`."""
    at = (math.log(longest) - math.log(median)) / sigma
    below = NormalDist().cdf(at - sigma)
    return median * math.exp(sigma**2 / 2) * below + longest * (1 - NormalDist().cdf(at))


@dataclass(frozen=True)
class MeasuredGroups:
    """Lengths of the groups of an earlier run; they come again in an order of chance."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> int:
        return max(max(group) for group in self.groups)

    def group(self, rng: random.Random, size: int) -> list[int]:
        """One of the groups; its lengths are drawn again where it is of another size."""
        group = rng.choice(self.groups)
        return list(group) if len(group) == size else rng.choices(group, k=size)


class DrawnLengths:
    """Groups without end, drawn when they are first asked for."""

    def __init__(self, distribution: LogNormal | MeasuredGroups, group_size: int, seed: int) -> None:
        self._distribution, self._group_size = distribution, group_size
        self._rng, self._groups = random.Random(seed), []

    def __getitem__(self, group: int) -> list[int]:
        while len(self._groups) <= group:
            self._groups.append(self._distribution.group(self._rng, self._group_size))
        return self._groups[group]


class GivenLengths:
    """The groups of a list, from its start again when it is at its end."""

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self._groups = [list(group) for group in groups]

    def __getitem__(self, group: int) -> list[int]:
        return self._groups[group % len(self._groups)]
