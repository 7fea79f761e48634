"""Which problems are drawn, and which groups make the batch: dynamic sampling that throws no finished work away.

Source: DAPO (arXiv 2503.14476), section 3.2. Deviations: 1. groups beyond the batch wait for the next step with their
version stamp instead of being discarded; 2. a draw is sized by the share of groups that had signal lately; 3. after
`max_draws` the batch may be smaller, instead of an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stages.foundations.seeds import endless_order, permutation
from stages.rl_round.params.drawing import DynamicSampling, NoDynamicSampling, ProblemSlice
from stages.rl_round.rollouts.records import Batch, Group, Problem, newest_version
from stages.rl_round.rollouts.sampling import ProblemDraw

SMALLEST_SIGNAL_FRACTION = 0.25
"""A draw is at most 4 times what is missing, however few groups had signal."""


@dataclass
class DrawState:
    """What drawing carries from step to step."""

    cursor: int = 0
    """Problems drawn so far in this round."""
    signal_fraction: float = 1.0
    """Share of the last step's groups that had signal."""
    carried: list[Group] = field(default_factory=list)
    """Surplus groups with signal, oldest first."""


def slice_problems(problems: Sequence[Problem], part: ProblemSlice, seed: int) -> list[Problem]:
    """Part `index` of `count` of the problems in the order of the run's seed; parts are disjoint and cover all."""
    order = permutation(len(problems), seed, "problem_slice")
    return [problems[index] for index in order[part.index :: part.count]]


def problems_in_order(
    problems: Sequence[Problem], first: int, count: int, *seed_parts: int | str
) -> list[ProblemDraw]:
    """Draws `first` to `first + count` of the round: all problems in random order, then all again in another."""
    order = endless_order(first, first + count, len(problems), *seed_parts, "problems")
    return [
        ProblemDraw(problems[index], (first + place) // len(problems)) for place, index in enumerate(order)
    ]


def draw_size(missing: int, signal_fraction: float) -> int:
    """Problems to draw so that about `missing` groups have signal."""
    return math.ceil(missing / max(SMALLEST_SIGNAL_FRACTION, signal_fraction))


def signal_fraction(groups: Sequence[Group], of_none: float) -> float:
    """Share of the groups that teach something; `of_none` where there is no group."""
    return sum(group.has_signal for group in groups) / len(groups) if groups else of_none


def draw_batch(
    sampling: NoDynamicSampling | DynamicSampling,
    wanted: int,
    policy_version: int,
    state: DrawState,
    draw: Callable[[int, int], list[Group]],
) -> Batch:
    """Fills a batch of `wanted` groups; `draw(first, count)` gives those of the next problems. Moves `state` on."""
    if isinstance(sampling, NoDynamicSampling):
        groups = draw(state.cursor, wanted)
        state.cursor += wanted
        return Batch(groups, groups, [], 1, 0, 0, signal_fraction(groups, 1.0), newest_version(groups))

    def is_stale(group: Group) -> bool:
        return policy_version - group.oldest_version > sampling.max_staleness

    fresh = [group for group in state.carried if not is_stale(group)]
    stale = [group for group in state.carried if is_stale(group)]
    drawn: list[Group] = []
    draws = 0
    while len(fresh) < wanted and draws < sampling.max_draws:
        fraction = signal_fraction(drawn, state.signal_fraction)
        size = draw_size(wanted - len(fresh), fraction)
        groups = draw(state.cursor, size)
        state.cursor += size
        draws += 1
        drawn += groups
        fresh += [group for group in groups if group.has_signal]
    state.signal_fraction = signal_fraction(drawn, state.signal_fraction)
    state.carried = fresh[wanted:]
    left_out = stale + [group for group in drawn if not group.has_signal]
    return Batch(
        fresh[:wanted],
        drawn,
        left_out,
        draws,
        len(stale),
        len(state.carried),
        state.signal_fraction,
        # Fresh is what this step's own weights have drawn: nothing of a batch that surplus alone has filled.
        newest_version(drawn),
    )
