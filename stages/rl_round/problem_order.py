"""The order in which a round draws its problems: a slice of the table, endlessly, each epoch in another random order.

`prompt_selection.kind: no_positive_resampling` passes over problems that the policy solves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stages.algorithms.answers.verdicts import Verdict
from stages.foundations.seeds import endless_order, permutation
from stages.rl_round.methods import NoPositiveResampling, ProblemSlice, PromptSelectionParams
from stages.rl_round.records import Group, Problem


def slice_problems(problems: Sequence[Problem], part: ProblemSlice, seed: int) -> list[Problem]:
    """Returns part `index` of `count` of the problems, shuffled by the run's seed; parts are disjoint and cover all."""
    # Only the run's seed decides the order, not the round: rounds with different slices must share no problem.
    order = permutation(len(problems), seed, "problem_slice")
    return [problems[index] for index in order[part.index :: part.count]]


@dataclass(frozen=True)
class ProblemDraw:
    """A problem for which a group will be sampled."""

    problem: Problem
    number: int
    """How often it came before in the round's order: a second draw samples different responses."""


def problems_at(problems: Sequence[Problem], places: Iterable[int], *seed_path: int | str) -> list[ProblemDraw]:
    """Returns the draws at these places of the round's order: all problems, then all again in another order."""
    count, path = len(problems), (*seed_path, "problems")
    orders = [(place, endless_order(place, place + 1, count, *path)[0]) for place in places]
    return [ProblemDraw(problems[index], place // count) for place, index in orders]


@dataclass
class ProblemCursor:
    """How far a round has come in its order, and which problems it has solved.

    Source of the latter: no-positive resampling of ScaleRL (arXiv 2510.13786), section 3.2. The paper leaves open which
    pass rate counts: here it is that of all draws of the round.
    """

    place: int = 0
    """Draws that were made or passed over."""
    passes: dict[str, list[int]] = field(default_factory=dict)
    """Correct and decided responses, by problem that is not solved."""
    solved: dict[str, float] = field(default_factory=dict)
    """Pass rates of solved problems, which stay solved."""

    def advance(self, count: int, problems: Sequence[Problem], *seed_path: int | str) -> list[int]:
        """Returns the places of the next `count` draws, not of solved problems unless all are solved."""
        places, passes_over = list[int](), len(self.solved) < len(problems)
        while len(places) < count:
            (draw,) = problems_at(problems, [self.place], *seed_path)
            if not (passes_over and draw.problem.problem_id in self.solved):
                places.append(self.place)
            self.place += 1
        return places

    def count(self, groups: Iterable[Group], selection: PromptSelectionParams) -> None:
        """Adds the verdicts of complete groups; does nothing under a selection that solves no problem."""
        if not isinstance(selection, NoPositiveResampling):
            return
        for group in groups:
            name, (correct, decided) = group.problem_id, self.passes.pop(group.problem_id, (0, 0))
            if name in self.solved:
                continue
            # A failure of the verifier says nothing about how hard a problem is.
            verdicts = [rollout.verdict is Verdict.CORRECT for rollout in group.rollouts if rollout.is_decided]
            correct, decided = correct + sum(verdicts), decided + len(verdicts)
            if correct >= selection.pass_rate * decided > 0:
                self.solved[name] = correct / decided
            else:
                self.passes[name] = [correct, decided]
