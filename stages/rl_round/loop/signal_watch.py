"""Tells, while a round runs, that its problems teach nothing: all groups are right throughout, or wrong throughout.

Such a round trains on zeros (or, with dynamic sampling, draws in vain) and ends where it began, hours later.
"""

from __future__ import annotations

from collections.abc import Sequence

from stages.algorithms.answers.verdicts import Verdict
from stages.rl_round.rollouts.records import Group

STEPS_IN_VAIN = 3
"""One step may be chance; after as many the round says so, and again each time their number has doubled."""
SMALLEST_SHARE = 0.05
"""Of a step's groups that have signal; with fewer the rest decides what the step costs."""


class SignalWatch:
    """Counts steps in a row in which hardly a group had signal."""

    def __init__(self) -> None:
        self._forget()

    def see(self, drawn: Sequence[Group]) -> str | None:
        """Takes down what a step drew; a sentence when it is time to say one. A step that drew nothing is no step."""
        if not drawn:
            return None
        if sum(group.has_signal for group in drawn) >= SMALLEST_SHARE * len(drawn):
            self._forget()
            return None
        self._steps += 1
        self._groups += drawn
        if self._steps < self._next:
            return None
        self._next *= 2
        return _told(self._groups, self._steps)

    def _forget(self) -> None:
        self._groups: list[Group] = []
        self._steps = 0
        self._next = STEPS_IN_VAIN


def _told(groups: Sequence[Group], steps: int) -> str:
    """What was seen, and what to change on the side that most groups are on."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    right = sum(
        all(rollout.verdict is Verdict.CORRECT for rollout in group.rollouts) for group in groups
    ) / len(groups)
    cut = sum(rollout.sample.is_truncated for rollout in rollouts) / len(rollouts)
    unparsed = sum(rollout.verdict is Verdict.UNPARSED for rollout in rollouts) / len(rollouts)
    seen = (
        f"no signal: for {steps} steps hardly a group had right and wrong responses "
        f"({len(groups)} groups: {right:.0%} all right; {cut:.0%} of responses cut off, {unparsed:.0%} without an "
        "answer). There is nothing to learn from them"
    )
    if right > 0.5:
        return (
            f"{seen}: the problems are too easy for this policy. Give harder ones (`sources`: larger sizes or more "
            "steps), or leave out what it can do (rl_rounds.<round>.prompt_selection: {kind: pass_rate, ...})"
        )
    if cut > 0.5:
        return (
            f"{seen}: responses do not end within the limit. Raise rl.max_response_tokens, or teach the policy to "
            "end (more sft.steps, shorter demonstrations)"
        )
    return (
        f"{seen}: the problems are too hard for this policy. Give easier ones (`sources`: smaller sizes or fewer "
        "steps), more sft.steps, or a larger rl.group_size, in which a rare right response is found"
    )
