"""Keeps the problems of medium difficulty, before a round's first step (`prompt_selection: {kind: pass_rate}`).

The starting policy answers every problem a few times, sampled as in training. The counts are saved in the scratch
folder piece by piece, so a killed run samples at most one piece again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.pieces import are_whole, remove_piece, seal
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.observe.progress import progress
from stages.rl_round.drawing import GroupDrawing
from stages.rl_round.methods import PassRateSelection
from stages.rl_round.params import RlParams
from stages.rl_round.problem_order import ProblemDraw
from stages.rl_round.records import Group, Problem
from stages.rl_round.round import Round

PROBLEMS_AT_ONCE = 128
"""Problems of a piece; at most this many are sampled again after a kill."""
PIECE = "pass_counts-{}.json"
"""File in the scratch folder with the counts of one piece; its first problem's number is in the name."""
UPPER_ENDS = {"to_25": 0.25, "to_50": 0.5, "to_75": 0.75, "below_100": 1.0}


def select_problems(this_round: Round, drawing: GroupDrawing) -> tuple[Round, dict[str, float]]:
    """Returns the round with the problems that `prompt_selection` keeps, and its metrics; collective.

    Every rank selects, so that all of them stop when too few problems are left.
    """
    selection, problems = this_round.settings.prompt_selection, this_round.problems
    if not isinstance(selection, PassRateSelection):
        return this_round, {}
    seed_path = this_round.seed, this_round.name
    with this_round.run.phase("select"):
        counts = count_passes(problems, selection.samples, this_round.params, drawing, this_round.scratch, *seed_path)
    counts = drawing.share.ranks.broadcast(counts)
    kept = select_by_pass_rate(problems, counts, selection, this_round.params.problems_per_step)
    metrics = selection_metrics(counts, len(kept))
    this_round.run.log(metrics, step=0)
    return replace(this_round, problems=kept), metrics


@dataclass(frozen=True)
class PassCount:
    """Counts of how one problem's responses were judged."""

    correct: int
    decided: int

    @property
    def rate(self) -> float | None:
        """Returns the share of correct responses among the decided ones; None when none was decided."""
        return self.correct / self.decided if self.decided else None


def count_passes(
    problems: Sequence[Problem],
    samples: int,
    params: RlParams,
    drawing: GroupDrawing,
    scratch: Path,
    *seed_path: int | str,
) -> list[PassCount]:
    """Counts passes in `samples` responses per problem from the sampler's current weights, or reads them in `scratch`.

    Collective; rank 0 has the counts.
    """
    ranks = drawing.share.ranks
    counts: list[PassCount] = []
    starts = range(0, len(problems), PROBLEMS_AT_ONCE)
    for start in progress(starts, label=f"{seed_path[-1]}: pass rates", unit="pieces"):
        place = scratch / PIECE.format(start)
        # Only rank 0 looks at the disk: ranks that decide separately could disagree and then wait forever.
        if not ranks.broadcast(ranks.rank == 0 and are_whole(place)):
            piece = [ProblemDraw(problem, 0) for problem in problems[start : start + PROBLEMS_AT_ONCE]]
            groups = drawing.draw(piece, params.without_distributions(), *seed_path, "pass_rates", group_size=samples)
            if ranks.rank == 0:
                write_json(place, [[count.correct, count.decided] for count in map(_count, groups)])
                seal(place)
        if ranks.rank == 0:
            counts += [PassCount(*pair) for pair in json.loads(place.read_bytes())]
    return counts


def _count(group: Group) -> PassCount:
    # A failure of the verifier says nothing about how hard a problem is.
    decided = [rollout for rollout in group.rollouts if rollout.is_decided]
    return PassCount(sum(rollout.verdict is Verdict.CORRECT for rollout in decided), len(decided))


def select_by_pass_rate(
    problems: Sequence[Problem], counts: Sequence[PassCount], selection: PassRateSelection, wanted: int
) -> list[Problem]:
    """Returns the problems with a pass rate in [min, max], in order; UserError when fewer than `wanted` remain."""
    kept = [
        problem
        for problem, count in zip(problems, counts, strict=True)
        # A problem without decided responses has no rate: nothing is known about it.
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
    """Returns the share of problems kept, the mean pass rate, and the histogram of pass rates in per cent."""
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
    # 0 and 1 have separate bars: problems without a learning signal must not hide among the others.
    lower = 0.0
    for name, upper in UPPER_ENDS.items():
        inside = sum(lower < rate <= upper and rate < 1 for rate in rates)
        metrics[f"selection/pass_rate_{name}_fraction"] = inside / total
        lower = upper
    return metrics


def delete_pass_counts(scratch: Path) -> None:
    """Removes the files of `count_passes`, once the outputs are written."""
    for file in scratch.glob(PIECE.format("*")):
        remove_piece(file)
