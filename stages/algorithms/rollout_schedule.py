"""Admission control and repacking: which groups may start, which groups the next step trains on, and which replica
hands its last trajectories to which other replica.

Admission control bounds staleness to `window` steps. A group that the weights of version `v` generate has the deadline
`v + window`: the last step (from 0) that may train on it. Outstanding groups have started, and were neither trained on
nor dropped. After `steps_done` steps they are feasible when, for every step `d`, at most
`(d - steps_done + 1) * groups_per_step` of them have a deadline of `d` or earlier. Batches that take the earliest
deadlines first then meet all deadlines. A group may start when all groups stay feasible with it. A batch may be taken
when all remaining groups stay feasible. So the start of work bounds staleness, and no finished group is discarded
for its age.

Batches take ready groups in the order in which they started. A younger group overtakes an older one that is not ready,
but only as far as the deadlines allow. So training prefers short responses for at most the length of the window.

Source: pacing by issue as in AReaL (arXiv 2505.24298, section 5.1); order and window are ours. The last step of the
round is a deadline for all groups. So no group starts that no step could train on, except replacements of dropped
groups.

Repacking frees whole replicas for newer weights. Source: Laminar (arXiv 2510.12633), dynamic repack. The authors have
published no code.
Deviations:
1. A plan never empties a replica that is already a destination. Otherwise the trajectories promised to it would have
   to move twice, and the load planned for them would be counted on a replica that they have left.
2. A replica without trajectories is no destination: a move there empties one replica and fills another.
3. Equal footprints and equal loads are taken in the order in which the replicas are given, so that a plan depends only
   on its inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class _Outstanding:
    deadline: float
    is_ready: bool = False


class ExperienceWindow:
    """The outstanding groups of a round, under any hashable names; versions are counts of steps trained."""

    def __init__(self, groups_per_step: int, window: int | None, steps: int, steps_done: int = 0) -> None:
        """A `window` of None does not bound staleness (Laminar's rule)."""
        self.groups_per_step, self.window, self.steps = groups_per_step, window, steps
        self.steps_done = steps_done
        self._outstanding: dict[Hashable, _Outstanding] = {}
        """In the order of issue."""
        self._by_deadline: Counter[float] = Counter()
        self._ready_by_deadline: Counter[float] = Counter()
        self._ready = 0

    def __len__(self) -> int:
        return len(self._outstanding)

    def __contains__(self, group: Hashable) -> bool:
        return group in self._outstanding

    @property
    def ready(self) -> int:
        """Groups that wait for a step."""
        return self._ready

    def deadline(self, version: int) -> float:
        """Returns the last step that may train on a group that `version` generates."""
        # With any window, no step trains after the end of the round.
        last = self.steps - 1
        return last if self.window is None else min(version + self.window, last)

    def may_begin(self, version: int) -> int:
        """Returns how many groups a replica with the weights of `version` may start now."""
        deadline = self.deadline(version)
        if self.steps_done >= self.steps:
            return 0
        # A group with this deadline counts against its own step and every later one.
        later = {step for step in self._by_deadline if step >= deadline} | {deadline}
        return max(0, min(self._room(step) for step in later))

    def begin(self, group: Hashable, version: int) -> None:
        """Records that `version` generates `group`. ValueError when the group is outstanding already."""
        if group in self._outstanding:
            raise ValueError(f"group {group} is outstanding already")
        deadline = self.deadline(version)
        self._outstanding[group] = _Outstanding(deadline)
        self._by_deadline[deadline] += 1

    def mark_ready(self, group: Hashable) -> None:
        """Records that `group` can be trained on; KeyError when it is not outstanding."""
        outstanding = self._outstanding[group]
        if not outstanding.is_ready:
            self._ready += 1
            self._ready_by_deadline[outstanding.deadline] += 1
            outstanding.is_ready = True

    def leave_out(self, group: Hashable) -> None:
        """Drops `group` from training; another may start in its place. KeyError when it is not outstanding."""
        self._remove(group)

    def next_batch(self) -> list[Hashable] | None:
        """Returns the groups that the next step should train on, oldest first; None while it must wait for others."""
        # The cheap test first; `_can_step` checks whether any batch at all is possible.
        if self._ready < self.groups_per_step or not self._can_step():
            return None
        chosen: list[Hashable] = []
        # The oldest ready groups, in the order of issue; taken if the remaining groups can still meet their deadlines.
        left = self._by_deadline.copy()
        for group, outstanding in self._outstanding.items():
            if outstanding.is_ready:
                chosen.append(group)
                left[outstanding.deadline] -= 1
                if len(chosen) == self.groups_per_step:
                    break
        if self._is_feasible(left, self.steps_done + 1):
            return chosen
        # Issue order is not enough when a replica with an older version has started a younger group.
        return self._earliest_deadlines()

    def short_batch(self) -> list[Hashable] | None:
        """Returns all ready groups even if a step should have more; None while the batch must wait for others.

        For a round whose policy yields no more groups to learn from: the batch may be empty.
        """
        ready = self.ready_groups()[: self.groups_per_step]
        left = self._by_deadline.copy()
        left.subtract(self._outstanding[group].deadline for group in ready)
        return ready if self._is_feasible(left, self.steps_done + 1) else None

    def take(self, groups: Iterable[Hashable]) -> None:
        """Records the next step's `groups`: those of `next_batch`, or fewer if the round continues with what it has."""
        for group in groups:
            self._remove(group)
        self.steps_done += 1

    def ready_groups(self) -> list[Hashable]:
        """Every group that waits for a step, in the order of issue."""
        return [group for group, outstanding in self._outstanding.items() if outstanding.is_ready]

    def _can_step(self) -> bool:
        """Whether some batch leaves all others feasible: the batch with the earliest deadlines is the best one."""
        due = ready = 0
        for deadline in sorted(self._by_deadline):
            due += self._by_deadline[deadline]
            ready += self._ready_by_deadline[deadline]
            taken = min(ready, self.groups_per_step)
            # The groups due up to this deadline, less those that the next batch can take, must fit in the steps that
            # remain after it.
            if due - taken > max(0, deadline - self.steps_done) * self.groups_per_step:
                return False
        return True

    def _earliest_deadlines(self) -> list[Hashable]:
        # Chosen by deadline, returned in the order of issue, as `next_batch` promises.
        order = {group: place for place, group in enumerate(self._outstanding)}
        urgent = sorted(self.ready_groups(), key=lambda group: self._outstanding[group].deadline)
        return sorted(urgent[: self.groups_per_step], key=order.__getitem__)

    def _room(self, deadline: float) -> int:
        """Groups that may still be added with this deadline or before."""
        # Groups with an earlier deadline need places before this one too.
        due = sum(count for step, count in self._by_deadline.items() if step <= deadline)
        return math.floor((deadline - self.steps_done + 1) * self.groups_per_step) - due

    def _is_feasible(self, by_deadline: Counter[float], steps_done: int) -> bool:
        due = 0
        for step in sorted(by_deadline):
            due += by_deadline[step]
            if due > max(0, (step - steps_done + 1)) * self.groups_per_step:
                return False
        return True

    def _remove(self, group: Hashable) -> None:
        outstanding = self._outstanding.pop(group)
        self._ready -= outstanding.is_ready
        self._ready_by_deadline[outstanding.deadline] -= outstanding.is_ready
        self._by_deadline[outstanding.deadline] -= 1
        # Empty deadlines are deleted, or the loops over deadlines would grow with the round.
        if not self._by_deadline[outstanding.deadline]:
            del self._by_deadline[outstanding.deadline], self._ready_by_deadline[outstanding.deadline]


# ------------------------------------------------------------------------------------------------------ repack
@dataclass(frozen=True, slots=True)
class Replica:
    """The manager's view of a rollout replica; KV cache in tokens, or in any unit that `kv_capacity` shares."""

    replica_id: Hashable
    policy_version: int
    kv_used: float
    previous_kv_used: float
    """At the previous check."""
    trajectories: int
    """Still in flight."""


class Move(NamedTuple):
    """All trajectories of `source` continue on `destination`."""

    source: Hashable
    destination: Hashable


def repack(replicas: Sequence[Replica], kv_capacity: float, batch_bound: int) -> list[Move]:
    """Plans best-fit moves that empty idle replicas into others of the same policy version, in the order to execute.

    A replica is idle if three conditions hold. It has trajectories, but fewer than `batch_bound`, at which memory
    bandwidth stops limiting generation. Its KV cache is not full. Its KV cache is not as full as at the last check.
    Idle replicas are taken from the smallest footprint up. Each goes to the idle replica that is fullest afterwards,
    within `kv_capacity` and `batch_bound`, counting all moves planned before it. No replica is both a source and a
    destination, and none is a source twice. Returns an empty list where nothing fits. ValueError for two replicas with
    the same id.
    """
    if len({replica.replica_id for replica in replicas}) < len(replicas):
        raise ValueError(f"two replicas have one id: {[replica.replica_id for replica in replicas]}")
    moves = []
    for version in sorted({replica.policy_version for replica in replicas}):
        idle = [
            replica
            for replica in replicas
            if replica.policy_version == version and _is_idle(replica, kv_capacity, batch_bound)
        ]
        # Only within a version: a trajectory continues with the weights that it started with.
        moves += _best_fit(idle, kv_capacity, batch_bound)
    return moves


def _is_idle(replica: Replica, kv_capacity: float, batch_bound: int) -> bool:
    # A cache that still grows, or is full, belongs to a replica with work left.
    is_draining = replica.kv_used < min(kv_capacity, replica.previous_kv_used)
    return is_draining and 0 < replica.trajectories < batch_bound


def _best_fit(idle: Sequence[Replica], kv_capacity: float, batch_bound: int) -> list[Move]:
    kv_used = {replica.replica_id: replica.kv_used for replica in idle}
    trajectories = {replica.replica_id: replica.trajectories for replica in idle}
    emptied, filled, moves = set(), set(), []
    for source in sorted(idle, key=lambda replica: replica.kv_used):
        if source.replica_id in filled:
            continue
        fitting = [
            name
            for name in kv_used
            if name != source.replica_id
            and name not in emptied
            and kv_used[name] + source.kv_used <= kv_capacity
            and trajectories[name] + source.trajectories <= batch_bound
        ]
        if fitting:
            # The fullest that still fits leaves the emptier ones to be emptied themselves.
            destination = max(fitting, key=kv_used.__getitem__)
            kv_used[destination] += source.kv_used
            trajectories[destination] += source.trajectories
            # Both sets together keep a replica from being source and destination (deviation 1).
            emptied.add(source.replica_id)
            filled.add(destination)
            moves.append(Move(source.replica_id, destination))
    return moves
