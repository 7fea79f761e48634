"""Which problems of the slice a round draws from: all, or those of middling difficulty for the policy it starts from.

The starting policy answers every problem a few times before the first step, drawn as in training. What it got right is
kept in the scratch folder piece by piece, so a run that was killed samples nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.pieces import are_whole, remove_piece, seal
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.observe.progress import progress
from stages.rl_round.params.drawing import PassRateSelection
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.group_drawing import GroupDrawing
from stages.rl_round.rollouts.records import Group, Problem
from stages.rl_round.rollouts.sampling import ProblemDraw

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
