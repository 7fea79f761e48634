"""asynchronous, with and without repack: a replica takes a share of groups when it is empty, with the newest weights.

The trainer takes a batch when `ExperienceWindow` gives one, pushes its weights and goes on; a relay has them when the
broadcast is over. Every few seconds `repack` empties replicas into others of the same weights. Both decisions are
those of the loop itself. Source: Laminar (arXiv 2510.12633).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from pipelines.simulating.machine import GroupLengths, Machine
from pipelines.simulating.outcome import Outcome, Tally
from pipelines.simulating.partial import ENDLESS
from pipelines.simulating.replica import Replica, Trajectory
from stages.algorithms.experience_window import ExperienceWindow
from stages.algorithms.trajectory_schedule import Replica as Load
from stages.algorithms.trajectory_schedule import repack


@dataclass(frozen=True)
class Schedule:
    """What a schedule decides."""

    is_repacked: bool
    share: float = 1.0
    """Groups that an empty replica takes, as a multiple of batch / replicas."""
    window: int | None = None
    """Of staleness at consumption; None bounds nothing, as in the paper."""


def asynchronous(
    machine: Machine, lengths: GroupLengths, warm_up: int, steps: int, schedule: Schedule
) -> Outcome:
    """Figures are those of the last `steps` steps."""
    return _Loop(machine, lengths, schedule).run(warm_up, steps)


class _Loop:
    """Events in order of time: a replica is empty, a group is whole, weights are there, a look at all replicas."""

    def __init__(self, machine: Machine, lengths: GroupLengths, schedule: Schedule) -> None:
        self.machine, self.lengths, self.schedule = machine, lengths, schedule
        self.replicas = machine.new_replicas()
        self.tally = Tally(self.replicas)
        self.window = ExperienceWindow(machine.groups, schedule.window, ENDLESS)
        self.published = 0
        """Version that the relays have."""
        self.is_training = False
        self.next_look = machine.repack_seconds
        self._share = schedule.share * machine.groups / machine.replicas
        self._left_of_share = [0.0] * machine.replicas
        """Parts of a group: shares are whole groups, and right on average."""
        self._issued = 0
        self._members: dict[int, list[Trajectory]] = {}
        self._ends: dict[int, list[float]] = {}
        self._idle: list[Replica] = []
        """Empty replicas that the window lets begin nothing."""
        self._trained_at: list[float] = []
        self._ended: list[tuple[float, int]] = []
        """(time, version) since the last look."""
        self._events: list[tuple[float, int, Any, Any]] = []
        self._order = count()

    def run(self, warm_up: int, steps: int) -> Outcome:
        for replica in self.replicas:
            self._at(0.0, self._begin, replica)
        self._at(self.next_look, self._look, None)
        is_begun = warm_up == 0
        if is_begun:
            self.tally.begin(0.0)
        time = 0.0
        while len(self._trained_at) < warm_up + steps:
            time, _, act, what = heappop(self._events)
            act(time, what)
            if not is_begun and len(self._trained_at) == warm_up:
                is_begun = True
                self._count_ended()
                self.tally.begin(time)
        self._count_ended()
        return self.tally.outcome(time, steps, self.machine.rollout_gpus)

    def _at(self, time: float, act: Any, what: Any) -> None:
        heappush(self._events, (time, next(self._order), act, what))

    def _begin(self, time: float, replica: Replica) -> None:
        """An empty replica pulls newer weights and takes its share."""
        replica.wait_until(time)
        if self.published > replica.version:
            replica.version = self.published
            replica.time += self.machine.pull_seconds
        wanted = self._left_of_share[replica.name] + self._share
        groups = min(max(1, int(wanted)), self.window.may_begin(replica.version))
        if not groups:
            self._idle.append(replica)
            return
        self._left_of_share[replica.name] = max(0.0, wanted - max(1, int(wanted)))
        for _ in range(groups):
            group, self._issued = self._issued, self._issued + 1
            self.window.begin(group, replica.version)
            self._members[group] = self.machine.group(group, self.lengths)
            self.tally.issued += len(self._members[group])
            replica.submit(self._members[group])
        self._decode(replica)

    def _decode(self, replica: Replica) -> None:
        """Until it is empty, and at most to the next look."""
        for time, trajectory in replica.run_until(self.next_look):
            self._ended.append((time, trajectory.version))
            ends = self._ends.setdefault(trajectory.group, [])
            ends.append(time)
            if len(ends) == len(self._members[trajectory.group]):
                self._at(max(self._ends.pop(trajectory.group)), self._whole, trajectory.group)
        if not replica.trajectories:
            self._at(replica.time, self._begin, replica)

    def _whole(self, time: float, group: int) -> None:
        self.window.mark_ready(group)
        self._train(time)

    def _train(self, time: float) -> None:
        if self.is_training or (batch := self.window.next_batch()) is None:
            return
        members = [trajectory for group in batch for trajectory in self._members.pop(group)]
        self.tally.train(self.window.steps_done, members)
        self.window.take(batch)
        self.is_training = True
        self._at(time + self.machine.training_seconds(self.machine.tokens(members)), self._trained, None)

    def _trained(self, time: float, _: None) -> None:
        self._trained_at.append(time)
        self._at(time + self.machine.push_seconds, self._pushed, len(self._trained_at))

    def _pushed(self, time: float, version: int) -> None:
        self.is_training = False
        self._at(time + self.machine.broadcast_seconds, self._publish, version)
        self._train(time)

    def _publish(self, time: float, version: int) -> None:
        self.published = version
        idle, self._idle = self._idle, []
        for replica in idle:
            self._begin(time, replica)

    def _look(self, time: float, _: None) -> None:
        self._count_ended()
        if self.schedule.is_repacked:
            self._repack(time)
        self.next_look = time + self.machine.repack_seconds
        self._at(self.next_look, self._look, None)
        for replica in self.replicas:
            if replica.trajectories:
                self._decode(replica)

    def _repack(self, time: float) -> None:
        sizes = self.machine.sizes
        loads = [
            Load(replica.name, replica.version, replica.kv, replica.previous_kv, replica.trajectories)
            for replica in self.replicas
            if replica.trajectories
        ]
        for source, destination in repack(loads, sizes.admitted_tokens, self.machine.batch_bound):
            self.replicas[destination].submit(self.replicas[source].withdraw())
            self._at(time, self._begin, self.replicas[source])
        for replica in self.replicas:
            replica.previous_kv = replica.kv

    def _count_ended(self) -> None:
        for time, version in self._ended:
            self.tally.end(bisect_right(self._trained_at, time) - version)
        self._ended.clear()
