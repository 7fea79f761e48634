"""Groups that have been begun, and what becomes of each: every one is trained on, left out for a reason, or carried.

A group is complete when every member is judged or has failed for good. Complete groups that nothing can be learned
from are left out, and others are begun in their place: work is never dropped because it took long.
No Ray, no clock and no torch here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from stages.rl_round.rollouts.grouping import make_group
from stages.rl_round.rollouts.records import Group, Rollout
from stages.rl_round.rollouts.sampling import ProblemDraw


class Reason(StrEnum):
    """Why nothing was learned from a group."""

    NO_SIGNAL = "no_signal"
    """All decided responses are right, or none is (dynamic sampling)."""
    TOO_FEW_DECIDED = "too_few_decided"
    """The verifier or the replicas failed on so many members that too few are left to compare."""


@dataclass
class Lengths:
    """Response tokens of many responses."""

    tokens: int = 0
    responses: int = 0

    def add(self, rollouts: Iterable[Rollout]) -> None:
        """Counts these too."""
        for rollout in rollouts:
            self.tokens += len(rollout.sample.token_ids)
            self.responses += 1


@dataclass
class _Begun:
    draw: ProblemDraw
    members: int
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    completed_at: float = 0.0


class ExperienceBuffer:
    """The outstanding groups of a round by number, and the fates of the others."""

    def __init__(self, group_size: int, needs_signal: bool) -> None:
        self.group_size, self.needs_signal = group_size, needs_signal
        self._groups: dict[int, _Begun] = {}
        self.issued = 0
        self.trained = 0
        self.left_out: Counter[Reason] = Counter()
        self.duplicates = 0
        """Results that came after the first for their member, or after their group was complete."""
        self.issued_lengths, self.trained_lengths = Lengths(), Lengths()
        """Of complete groups, whatever became of them, and of those that were trained on."""

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, number: int) -> bool:
        return number in self._groups

    def numbers(self) -> Iterable[int]:
        """Outstanding groups, in the order of issue."""
        return self._groups.keys()

    def begin(self, number: int, draw: ProblemDraw) -> None:
        """A group is issued. ValueError when its number was used."""
        if number in self._groups:
            raise ValueError(f"group {number} was issued before")
        self._groups[number] = _Begun(draw, self.group_size)
        self.issued += 1

    def draw(self, number: int) -> ProblemDraw:
        """What the group was begun for."""
        return self._groups[number].draw

    def open_members(self, number: int) -> list[int]:
        """Samples that the group still waits for."""
        group = self._groups[number]
        return [one for one in range(group.members) if one not in group.rollouts and one not in group.failed]

    def is_open(self, number: int, member: int) -> bool:
        """True while a result for this member would count."""
        group = self._groups.get(number)
        return group is not None and member not in group.rollouts and member not in group.failed

    def add(self, number: int, member: int, rollout: Rollout) -> bool:
        """A member was judged; False, and counted, when it was no longer waited for."""
        if not self.is_open(number, member):
            self.duplicates += 1
            return False
        self._groups[number].rollouts[member] = rollout
        return True

    def fail(self, number: int, member: int) -> None:
        """A member will never end; nothing happens when it is not waited for."""
        if self.is_open(number, member):
            self._groups[number].failed.add(member)

    def is_complete(self, number: int) -> bool:
        """True when nothing of the group is waited for."""
        group = self._groups[number]
        return len(group.rollouts) + len(group.failed) == group.members

    def group(self, number: int) -> Group:
        """The rollouts of a complete group, in the order of their sample numbers."""
        found = self._groups[number]
        return make_group(found.draw, [found.rollouts[one] for one in sorted(found.rollouts)])

    def reason_to_leave_out(self, number: int) -> Reason | None:
        """Why a complete group teaches nothing; None when it does."""
        rollouts = self._groups[number].rollouts.values()
        if sum(rollout.is_decided for rollout in rollouts) < min(2, self.group_size):
            return Reason.TOO_FEW_DECIDED
        if self.needs_signal and not self.group(number).has_signal:
            return Reason.NO_SIGNAL
        return None

    def complete(self, number: int, now: float) -> None:
        """Notes when the group was complete, and counts its tokens."""
        group = self._groups[number]
        group.completed_at = now
        self.issued_lengths.add(group.rollouts.values())

    def completed_at(self, number: int) -> float:
        """When `complete` was told."""
        return self._groups[number].completed_at

    def leave_out(self, number: int, reason: Reason) -> Group | None:
        """Nothing is learned from the group; its rollouts, None where it has none."""
        group = self.group(number) if self._groups[number].rollouts else None
        del self._groups[number]
        self.left_out[reason] += 1
        return group

    def train(self, numbers: Iterable[int]) -> list[Group]:
        """A step trains on these groups."""
        groups = [self.group(number) for number in numbers]
        for number, group in zip(numbers, groups, strict=True):
            del self._groups[number]
            self.trained_lengths.add(group.rollouts)
        self.trained += len(groups)
        return groups

    def check_conservation(self) -> None:
        """RuntimeError unless issued = trained + left out + outstanding."""
        accounted = self.trained + self.left_out.total() + len(self._groups)
        if self.issued != accounted:
            raise RuntimeError(
                f"{self.issued} groups were issued and {accounted} are accounted for ({self.trained} trained, "
                f"{dict(self.left_out)} left out, {len(self._groups)} outstanding): this is a fault of the loop"
            )
