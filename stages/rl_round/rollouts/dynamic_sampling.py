"""Which problems a round draws, and which groups make the batch of a step.

1. A round draws from a slice of the problem table, in an endless random order.
2. `prompt_selection` may keep only problems of middling difficulty. The starting policy answers every problem a few
   times before the first step, drawn as in training. The counts are kept in the scratch folder piece by piece, so a run
   that was killed samples nothing twice.
3. Dynamic sampling leaves out groups without signal, and throws no finished work away.

Source of 3: DAPO (arXiv 2503.14476), section 3.2. Deviations: 1. groups beyond the batch wait for the next step with
their version stamp instead of being discarded; 2. a draw is sized by the share of groups that had signal lately;
3. after `max_draws` the batch may be smaller, instead of an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.pieces import are_whole, remove_piece, seal
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.foundations.seeds import endless_order, permutation
from stages.observe.progress import progress
from stages.rl_round.methods import DynamicSampling, NoDynamicSampling, PassRateSelection, ProblemSlice
from stages.rl_round.params import RlParams
from stages.rl_round.rollouts.group_drawing import GroupDrawing, ProblemDraw
from stages.rl_round.rollouts.records import Batch, Group, Problem, newest_version

SMALLEST_SIGNAL_FRACTION = 0.25
"""A draw is at most 4 times what is missing, however few groups had signal."""


def slice_problems(problems: Sequence[Problem], part: ProblemSlice, seed: int) -> list[Problem]:
    """Part `index` of `count` of the problems in the order of the run's seed; parts are disjoint and cover all."""
    order = permutation(len(problems), seed, "problem_slice")
    return [problems[index] for index in order[part.index :: part.count]]


def problems_in_order(problems: Sequence[Problem], first: int, count: int, *seed_parts: int | str) -> list[ProblemDraw]:
    """Draws `first` to `first + count` of the round: all problems in random order, then all again in another."""
    order = endless_order(first, first + count, len(problems), *seed_parts, "problems")
    return [ProblemDraw(problems[index], (first + place) // len(problems)) for place, index in enumerate(order)]


PROBLEMS_AT_ONCE = 128
"""Problems of a piece; at most this many are sampled again after a kill."""
PIECE = "pass_counts-{}.json"
"""File in the scratch folder with the counts of the problems from a number on."""
UPPER_ENDS = {"to_25": 0.25, "to_50": 0.5, "to_75": 0.75, "below_100": 1.0}


@dataclass(frozen=True)
class PassCount:
    """How one problem's responses were judged."""

    correct: int
    decided: int

    @property
    def rate(self) -> float | None:
        """Share of correct responses among the decided; None when none was decided."""
        return self.correct / self.decided if self.decided else None


def count_passes(
    problems: Sequence[Problem],
    samples: int,
    params: RlParams,
    drawing: GroupDrawing,
    scratch: Path,
    *seed_parts: int | str,
) -> list[PassCount]:
    """Each problem's count over `samples` responses of the sampler's present weights, or what `scratch` remembers.

    Collective; rank 0 has the counts.
    """
    ranks = drawing.share.ranks
    counts: list[PassCount] = []
    starts = range(0, len(problems), PROBLEMS_AT_ONCE)
    study = params.study and params.study.model_copy(update={"rollout_distributions": None})  # verdicts only
    params = params.model_copy(update={"study": study})
    for start in progress(starts, label=f"{seed_parts[-1]}: pass rates", unit="pieces"):
        place = scratch / PIECE.format(start)
        if not ranks.broadcast(ranks.rank == 0 and are_whole(place)):
            piece = [ProblemDraw(problem, 0) for problem in problems[start : start + PROBLEMS_AT_ONCE]]
            groups = drawing.draw(piece, params, *seed_parts, "pass_rates", group_size=samples)
            if ranks.rank == 0:
                write_json(place, [[count.correct, count.decided] for count in map(_count, groups)])
                seal(place)
        if ranks.rank == 0:
            counts += [PassCount(*pair) for pair in json.loads(place.read_bytes())]
    return counts


def _count(group: Group) -> PassCount:
    decided = [rollout for rollout in group.rollouts if rollout.is_decided]
    return PassCount(sum(rollout.verdict is Verdict.CORRECT for rollout in decided), len(decided))


def forget_passes(scratch: Path) -> None:
    """Removes what `count_passes` keeps: the outputs are written."""
    for file in scratch.glob(PIECE.format("*")):
        remove_piece(file)


def select_by_pass_rate(
    problems: Sequence[Problem], counts: Sequence[PassCount], selection: PassRateSelection, wanted: int
) -> list[Problem]:
    """The problems with a pass rate in [min, max], in their order; UserError when fewer than `wanted` remain."""
    kept = [
        problem
        for problem, count in zip(problems, counts, strict=True)
        if count.rate is not None and selection.min <= count.rate <= selection.max
    ]
    if len(kept) < wanted:
        shares = ", ".join(
            f"{name.removeprefix('selection/pass_rate_')} {value:.2f}"
            for name, value in selection_metrics(counts, len(kept)).items()
            if "/pass_rate_" in name
        )
        raise UserError(
            f"prompt_selection keeps {len(kept)} of {len(problems)} problems (pass rate in [{selection.min}, "
            f"{selection.max}]; {shares}), fewer than rl.problems_per_step {wanted}: widen min and max, use fewer "
            "problem slices, or prompt_selection.kind all"
        )
    return kept


def selection_metrics(counts: Sequence[PassCount], kept: int) -> dict[str, float]:
    """Share of problems kept, mean pass rate, and the histogram of pass rates in per cent."""
    rates = [count.rate for count in counts if count.rate is not None]
    total = max(1, len(counts))
    metrics = {
        "selection/problems": len(counts),
        "selection/kept": kept,
        "selection/kept_fraction": kept / total,
        "selection/undecided_fraction": (len(counts) - len(rates)) / total,
        "selection/pass_rate_mean": sum(rates) / max(1, len(rates)),
        "selection/pass_rate_0_fraction": sum(rate == 0 for rate in rates) / total,
        "selection/pass_rate_100_fraction": sum(rate == 1 for rate in rates) / total,
    }
    lower = 0.0
    for name, upper in UPPER_ENDS.items():
        inside = sum(lower < rate <= upper and rate < 1 for rate in rates)
        metrics[f"selection/pass_rate_{name}_fraction"] = inside / total
        lower = upper
    return metrics


@dataclass
class DrawState:
    """What drawing carries from step to step."""

    cursor: int = 0
    """Problems drawn so far in this round."""
    signal_fraction: float = 1.0
    """Share of the last step's groups that had signal."""
    carried: list[Group] = field(default_factory=list)
    """Surplus groups with signal, oldest first."""


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


def draw_size(missing: int, signal_fraction: float) -> int:
    """Problems to draw so that about `missing` groups have signal."""
    return math.ceil(missing / max(SMALLEST_SIGNAL_FRACTION, signal_fraction))


def signal_fraction(groups: Sequence[Group], of_none: float) -> float:
    """Share of the groups that teach something; `of_none` where there is no group."""
    return sum(group.has_signal for group in groups) / len(groups) if groups else of_none
