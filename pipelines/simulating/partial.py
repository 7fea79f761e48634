"""partial: replicas never wait for each other, and go on with new weights in the middle of a response (AReaL).

After each step all replicas stop for a collective, take the weights and read the prefixes of what is in flight again.
New groups begin while those outstanding stay within (eta + 1) batches; each goes to the replica with the fewest
trajectories. Source: AReaL (arXiv 2505.24298), section 5.1 (bound) and 4.1 (interruption).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from pipelines.simulating.machine import GroupLengths, Machine
from pipelines.simulating.outcome import Outcome, Tally
from pipelines.simulating.replica import Trajectory
from stages.algorithms.experience_window import ExperienceWindow

ENDLESS = 10**9
"""Steps of a round that does not end while it is looked at."""


def partial(machine: Machine, lengths: GroupLengths, warm_up: int, steps: int, eta: int) -> Outcome:
    """Staleness is counted from the weights that drew a response's first token."""
    run = _Partial(machine, lengths, eta)
    for step in range(warm_up + steps):
        if step == warm_up:
            run.tally.begin(run.time)
        run.step(step)
    return run.tally.outcome(run.time, steps, machine.rollout_gpus)


class _Partial:
    def __init__(self, machine: Machine, lengths: GroupLengths, eta: int) -> None:
        self.machine, self.lengths = machine, lengths
        self.replicas = machine.new_replicas()
        self.tally = Tally(self.replicas)
        self.window = ExperienceWindow(machine.groups, eta, ENDLESS)
        self.time = 0.0
        """At which the trainer is free."""
        self._issued = 0
        self._members: dict[int, list[Trajectory]] = {}
        self._ends: dict[int, list[float]] = {}
        self._ready: list[tuple[float, int]] = []
        """Heap of groups that will be whole, with the time."""
        # No update is over sooner than this after it has begun: replicas may be run so far ahead of a waiting trainer.
        self._ahead = machine.training_seconds(0.0)
        self._issue(0)

    def step(self, step: int) -> None:
        """Waits for the batch `step`, trains on it and gives all replicas the weights."""
        batch = self._next_batch(step)
        members = [trajectory for group in batch for trajectory in self._members.pop(group)]
        self.window.take(batch)
        self.tally.train(step, members)
        trained = self.time + self.machine.training_seconds(self.machine.tokens(members))
        self._run(trained, step)
        for replica in self.replicas:
            replica.wait_until(trained)
            replica.time += self.machine.collective_seconds
            replica.read_again()
            replica.version = step + 1
        self.time = trained + self.machine.collective_seconds
        self._issue(step + 1)

    def _next_batch(self, step: int) -> list[int]:
        """Moves the trainer's time to when the batch is there."""
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
                ends = self._ends.setdefault(trajectory.group, [])
                ends.append(time)
                if len(ends) == len(self._members[trajectory.group]):
                    heappush(self._ready, (max(self._ends.pop(trajectory.group)), trajectory.group))

    def _issue(self, version: int) -> None:
        loads = [(replica.trajectories, replica.name) for replica in self.replicas]
        heapify(loads)
        for _ in range(self.window.may_begin(version)):
            group, self._issued = self._issued, self._issued + 1
            self.window.begin(group, version)
            self._members[group] = self.machine.group(group, self.lengths)
            count, name = loads[0]
            self.replicas[name].submit(self._members[group])
            self.tally.issued += len(self._members[group])
            heapreplace(loads, (count + len(self._members[group]), name))
