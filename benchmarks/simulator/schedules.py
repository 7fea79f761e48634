"""The six RL schedules that are compared, and the best split of the GPUs for each.

One batch after the other; every replica is empty before a batch is complete:

synchronous: generation, then training (on the same GPUs, or on others that wait).
one_step: training on a batch, while the next one is generated with the weights before that step (verl's one-step
off-policy).
stream: training on each mini-batch as soon as its groups have ended; the next batch waits for the last.

partial: replicas never wait for each other, and continue a response with new weights (AReaL).
After each step all replicas stop for a collective, load the weights and read the prefixes of trajectories in flight
again. New groups start while the outstanding ones stay within (eta + 1) batches; each goes to the replica with the
fewest trajectories. Source: AReaL (arXiv 2505.24298), section 5.1 (bound) and 4.1 (interruption).

asynchronous, with and without repack: an empty replica takes a share of groups, with the newest weights.
The trainer takes a batch when `ExperienceWindow` gives one, pushes its weights and continues; the relays have them at
the end of the broadcast. Every few seconds, and when new weights are there, `repack` empties replicas into others of
the same weights. Both decisions are made by the code of the real loop. Source: Laminar (arXiv 2510.12633).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any

from benchmarks.simulator.replica import ClusterSplit, SimulatedReplica, SimulatedTrajectory, SimulationResult, Tally
from stages.algorithms.rollout_schedule import ExperienceWindow, repack
from stages.algorithms.rollout_schedule import Replica as Load


def synchronous(machine: ClusterSplit, lengths: Any, steps: int) -> SimulationResult:
    """No step depends on the one before, so no warm-up is needed."""
    replicas = machine.new_replicas()
    tally, time, generating = Tally(replicas), 0.0, 0.0
    tally.begin(time)
    for step in range(steps):
        ended = _generate(machine, replicas, lengths, step, step, time, tally)
        end = max(time for time, _ in ended)
        for _ in ended:
            tally.end(0)
        batch = [trajectory for _, trajectory in ended]
        tally.train(step, batch)
        generating += end - time
        time = end + machine.training_seconds(machine.tokens(batch)) + machine.switch_seconds
    return tally.outcome(time, steps, machine.rollout_gpus, generating, there_seconds=generating)


def one_step(machine: ClusterSplit, lengths: Any, steps: int) -> SimulationResult:
    """The first step trains on responses of the current weights, and is not measured."""
    replicas = machine.new_replicas()
    tally, time, generating = Tally(replicas), 0.0, 0.0
    ready = _generate(machine, replicas, lengths, 0, 0, time, tally)
    for _ in ready:
        tally.end(0)
    time = max(time for time, _ in ready) + machine.collective_seconds
    # One step more than is measured: the first has no batch of older weights yet.
    for step in range(steps + 1):
        if step == 1:
            tally.begin(time)
            generating = 0.0
        batch = [trajectory for _, trajectory in ready]
        tally.train(step, batch)
        trained = time + machine.training_seconds(machine.tokens(batch))
        ready = _generate(machine, replicas, lengths, step + 1, step, time, tally)
        for ended, _ in ready:
            # A response that ends after the training beside it is one step older than the newest weights.
            tally.end(int(ended > trained))
        generated = max(time for time, _ in ready)
        generating += generated - time
        time = max(generated, trained) + machine.collective_seconds
    return tally.outcome(time, steps, machine.rollout_gpus, generating)


def stream(machine: ClusterSplit, lengths: Any, steps: int) -> SimulationResult:
    """A mini-batch is a part of the step's tokens, of whole groups in the order in which they ended."""
    replicas = machine.new_replicas()
    tally, time, generating = Tally(replicas), 0.0, 0.0
    tally.begin(time)
    for step in range(steps):
        ended = _generate(machine, replicas, lengths, step, step, time, tally)
        ended.sort(key=lambda one: one[0])
        for _ in ended:
            tally.end(0)
        tally.train(step, (trajectory for _, trajectory in ended))
        free = time
        for ready, tokens in _minibatches(machine, ended):
            free = max(free, ready) + machine.update_seconds(tokens)
        generating += ended[-1][0] - time
        time = free + machine.collective_seconds
    return tally.outcome(time, steps, machine.rollout_gpus, generating)


def _minibatches(machine: ClusterSplit, ended: list[tuple[float, SimulatedTrajectory]]) -> list[tuple[float, int]]:
    """Returns (time of completion, tokens) of each mini-batch; their tokens are as equal as whole groups allow."""
    ends: dict[int, float] = {}
    tokens: dict[int, int] = {}
    for time, trajectory in ended:
        ends[trajectory.group] = time
        tokens[trajectory.group] = tokens.get(trajectory.group, 0) + machine.tokens([trajectory])
    quota = sum(tokens.values()) / machine.minibatches
    cut: list[tuple[float, int]] = []
    taken = before = 0
    for group, time in sorted(ends.items(), key=lambda one: one[1]):
        taken += tokens[group]
        # The quota is a quotient: rounding must not swallow the last mini-batch.
        if taken >= quota * (len(cut) + 1) - 1e-6:
            cut.append((time, taken - before))
            before = taken
    return cut


def _generate(
    machine: ClusterSplit,
    replicas: list[SimulatedReplica],
    lengths: Any,
    step: int,
    version: int,
    time: float,
    tally: Tally,
) -> list[tuple[float, SimulatedTrajectory]]:
    """Generates the batch of `step`, its groups assigned in turn from `time` on; (end, trajectory) of all."""
    ended = []
    for place, replica in enumerate(replicas):
        replica.wait_until(time)
        replica.version = version
        for number in range(place, machine.groups, machine.replicas):
            members = machine.group(step * machine.groups + number, lengths)
            tally.issued += len(members)
            replica.submit(members)
        # The replicas do not interact before the batch is complete, so each runs to its end alone.
        ended += replica.run_until(float("inf"))
    return ended


ENDLESS = 10**9
"""Steps of a round that does not end during the simulation."""


def partial(machine: ClusterSplit, lengths: Any, warm_up: int, steps: int, eta: int) -> SimulationResult:
    """Staleness is counted from the weights that generated a response's first token."""
    run = _PartialLoop(machine, lengths, eta)
    for step in range(warm_up + steps):
        if step == warm_up:
            run.tally.begin(run.time)
        run.step(step)
    return run.tally.outcome(run.time, steps, machine.rollout_gpus)


class _Groups:
    """Groups in progress, for schedules whose replicas do not wait for each other."""

    def __init__(self, machine: ClusterSplit, lengths: Any, window: int | None) -> None:
        self.machine, self.lengths = machine, lengths
        self.replicas = machine.new_replicas()
        self.tally = Tally(self.replicas)
        self.window = ExperienceWindow(machine.groups, window, ENDLESS)
        self._issued = 0
        self._members: dict[int, list[SimulatedTrajectory]] = {}
        self._ends: dict[int, list[float]] = {}

    def _submit_next(self, replica: SimulatedReplica, version: int) -> int:
        """Starts the next group at a replica; returns its trajectories."""
        # In the order of issue, which is the order of the lengths: each schedule meets the same responses.
        group, self._issued = self._issued, self._issued + 1
        self.window.begin(group, version)
        members = self._members[group] = self.machine.group(group, self.lengths)
        self.tally.issued += len(members)
        replica.submit(members)
        return len(members)

    def _whole_with(self, time: float, trajectory: SimulatedTrajectory) -> tuple[float, int] | None:
        """Returns the time when its group is complete, and the group, if that trajectory was the last one."""
        ends = self._ends.setdefault(trajectory.group, [])
        ends.append(time)
        if len(ends) < len(self._members[trajectory.group]):
            return None
        return max(self._ends.pop(trajectory.group)), trajectory.group

    def _take(self, step: int, batch: list[int]) -> float:
        """Trains on the batch; returns the seconds that this takes."""
        # Popped, because a group is trained on once: a long run must not keep all of its trajectories.
        members = [trajectory for group in batch for trajectory in self._members.pop(group)]
        self.tally.train(step, members)
        self.window.take(batch)
        return self.machine.training_seconds(self.machine.tokens(members))


class _PartialLoop(_Groups):
    def __init__(self, machine: ClusterSplit, lengths: Any, eta: int) -> None:
        super().__init__(machine, lengths, eta)
        self.time = 0.0
        """Time at which the trainer is free."""
        self._ready: list[tuple[float, int]] = []
        """Heap of groups that will be complete, with the time."""
        # No update takes less time than this: replicas may be run this far ahead of a waiting trainer.
        self._ahead = machine.training_seconds(0.0)
        self._issue(0)

    def step(self, step: int) -> None:
        """Waits for the batch `step`, trains on it and gives all replicas the weights."""
        batch = self._next_batch(step)
        trained = self.time + self._take(step, batch)
        self._run(trained, step)
        for replica in self.replicas:
            replica.wait_until(trained)
            replica.time += self.machine.collective_seconds
            replica.read_again()
            replica.version = step + 1
        self.time = trained + self.machine.collective_seconds
        self._issue(step + 1)

    def _next_batch(self, step: int) -> list[int]:
        """Moves the trainer's time to the completion of the batch."""
        horizon = self.time
        while True:
            self._mark(self.time)
            if (batch := self.window.next_batch()) is not None:
                return batch
            while self._ready and self._ready[0][0] <= horizon:
                self.time = max(self.time, self._ready[0][0])
                self._mark(self.time)
                if (batch := self.window.next_batch()) is not None:
                    return batch
            horizon += self._ahead
            self._run(horizon, step)

    def _mark(self, time: float) -> None:
        while self._ready and self._ready[0][0] <= time:
            self.window.mark_ready(heappop(self._ready)[1])

    def _run(self, limit: float, version: int) -> None:
        for replica in self.replicas:
            for time, trajectory in replica.run_until(limit):
                self.tally.end(version - trajectory.version)
                if whole := self._whole_with(time, trajectory):
                    heappush(self._ready, whole)

    def _issue(self, version: int) -> None:
        loads = [(replica.trajectories, replica.name) for replica in self.replicas]
        heapify(loads)
        for _ in range(self.window.may_begin(version)):
            trajectories, name = loads[0]
            heapreplace(loads, (trajectories + self._submit_next(self.replicas[name], version), name))


@dataclass(frozen=True)
class AsynchronousSchedule:
    """The choices that define a schedule."""

    is_repacked: bool
    share: float = 1.0
    """Groups that an empty replica takes, as a multiple of batch / replicas."""
    window: int | None = None
    """Bound on staleness at consumption; None sets no bound, as in the paper."""


def asynchronous(
    machine: ClusterSplit, lengths: Any, warm_up: int, steps: int, schedule: AsynchronousSchedule
) -> SimulationResult:
    """Results cover the last `steps` steps."""
    return _AsynchronousLoop(machine, lengths, schedule).run(warm_up, steps)


class _AsynchronousLoop(_Groups):
    """Events in order of time: an empty replica, a complete group, new weights, a check of all replicas."""

    def __init__(self, machine: ClusterSplit, lengths: Any, schedule: AsynchronousSchedule) -> None:
        super().__init__(machine, lengths, schedule.window)
        self.schedule = schedule
        self.published = 0
        """Version that the relays have."""
        self.is_training = False
        self.next_look = machine.repack_seconds
        self._publications: deque[float] = deque()
        """Times at which the relays will have new weights: those in training, and those on their way."""
        self._share = schedule.share * machine.groups / machine.replicas
        self._left_of_share = [0.0] * machine.replicas
        """Fractions of a group: shares are whole groups, and right on average."""
        self._idle: list[SimulatedReplica] = []
        """Empty replicas that may not start a group because of the window."""
        self._trained_at: list[float] = []
        self._ended: list[tuple[float, int]] = []
        """(time, version) since the last check."""
        self._events: list[tuple[float, int, Any, Any]] = []
        # Events at one time happen in the order of their creation. Without it the heap would compare functions.
        self._order = count()

    def run(self, warm_up: int, steps: int) -> SimulationResult:
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

    def _begin(self, time: float, replica: SimulatedReplica) -> None:
        """An empty replica pulls newer weights and takes its share."""
        replica.wait_until(time)
        # Pulling the same weights again would only cost time.
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
            self._submit_next(replica, replica.version)
        self._decode(replica)

    def _decode(self, replica: SimulatedReplica) -> None:
        """Runs a replica until it is empty, and at most until the next check."""
        # No further: the next check may move trajectories in flight here to another replica.
        for time, trajectory in replica.run_until(self.next_look):
            self._ended.append((time, trajectory.version))
            if whole := self._whole_with(time, trajectory):
                self._at(whole[0], self._whole, whole[1])
        if not replica.trajectories:
            self._at(replica.time, self._begin, replica)

    def _whole(self, time: float, group: int) -> None:
        self.window.mark_ready(group)
        self._train(time)

    def _train(self, time: float) -> None:
        if self.is_training or (batch := self.window.next_batch()) is None:
            return
        self.is_training = True
        trained = time + self._take(self.window.steps_done, batch)
        self._publications.append(trained + self.machine.push_seconds + self.machine.broadcast_seconds)
        self._at(trained, self._trained, None)

    def _trained(self, time: float, _: None) -> None:
        self._trained_at.append(time)
        # The trainer waits only for the push to its relay. The broadcast to the other relays runs beside it.
        self._at(time + self.machine.push_seconds, self._pushed, len(self._trained_at))

    def _pushed(self, time: float, version: int) -> None:
        self.is_training = False
        self._at(time + self.machine.broadcast_seconds, self._publish, version)
        self._train(time)

    def _publish(self, time: float, version: int) -> None:
        self.published = version
        self._publications.popleft()
        # Not if the replicas were run beyond this moment before it was known: then the clock's check comes soon.
        if time == self.next_look:
            self._look(time, None)
        # Newer weights move the window, so replicas that were not allowed to start a group may do so now.
        idle, self._idle = self._idle, []
        for replica in idle:
            self._begin(time, replica)

    def _look(self, time: float, _: None) -> None:
        self._count_ended()
        if self.schedule.is_repacked:
            self._repack(time)
        self.next_look = time + self.machine.repack_seconds
        if self.schedule.is_repacked and self._publications and time < self._publications[0] < self.next_look:
            self.next_look = self._publications[0]  # `_publish` makes this check
        else:
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
            # The emptied replica starts again with the newest weights: this is the gain of repacking.
            self._at(time, self._begin, self.replicas[source])
        for replica in self.replicas:
            # `repack` calls a replica idle when its cache shrinks between two checks.
            replica.previous_kv = replica.kv

    def _count_ended(self) -> None:
        for time, version in self._ended:
            self.tally.end(bisect_right(self._trained_at, time) - version)
        self._ended.clear()
