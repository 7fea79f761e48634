"""Schedules that generate one batch after the other: every replica is empty before a batch is complete.

synchronous: generation, then training (on the same GPUs, or on others that wait).
one_step: training on a batch while the next one is generated with the weights before it (verl's one-step off-policy).
stream: training on each mini-batch as soon as its groups have ended; the next batch waits for the last.
"""

from __future__ import annotations

from pipelines.simulating.machine import GroupLengths, Machine
from pipelines.simulating.outcome import Outcome, Tally
from pipelines.simulating.replica import Replica, Trajectory


def synchronous(machine: Machine, lengths: GroupLengths, steps: int) -> Outcome:
    """No step hangs on the one before, so that nothing has to warm up."""
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


def one_step(machine: Machine, lengths: GroupLengths, steps: int) -> Outcome:
    """The first step trains on what its own weights drew, and is not measured."""
    replicas = machine.new_replicas()
    tally, time, generating = Tally(replicas), 0.0, 0.0
    ready = _generate(machine, replicas, lengths, 0, 0, time, tally)
    for _ in ready:
        tally.end(0)
    time = max(time for time, _ in ready) + machine.collective_seconds
    for step in range(steps + 1):
        if step == 1:
            tally.begin(time)
            generating = 0.0
        batch = [trajectory for _, trajectory in ready]
        tally.train(step, batch)
        trained = time + machine.training_seconds(machine.tokens(batch))
        ready = _generate(machine, replicas, lengths, step + 1, step, time, tally)
        for ended, _ in ready:
            tally.end(int(ended > trained))
        generated = max(time for time, _ in ready)
        generating += generated - time
        time = max(generated, trained) + machine.collective_seconds
    return tally.outcome(time, steps, machine.rollout_gpus, generating)


def stream(machine: Machine, lengths: GroupLengths, steps: int) -> Outcome:
    """A mini-batch is a part of the step's tokens, of whole groups in the order in which they have ended."""
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


def _minibatches(machine: Machine, ended: list[tuple[float, Trajectory]]) -> list[tuple[float, int]]:
    """(time at which it is there, tokens) of each; the tokens of all are as equal as whole groups allow."""
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
        if taken >= quota * (len(cut) + 1) - 1e-6:
            cut.append((time, taken - before))
            before = taken
    return cut


def _generate(
    machine: Machine,
    replicas: list[Replica],
    lengths: GroupLengths,
    step: int,
    version: int,
    time: float,
    tally: Tally,
) -> list[tuple[float, Trajectory]]:
    """The batch of `step`, its groups dealt to the replicas by turns from `time` on; (end, trajectory) of all."""
    ended = []
    for place, replica in enumerate(replicas):
        replica.wait_until(time)
        replica.version = version
        for number in range(place, machine.groups, machine.replicas):
            members = machine.group(step * machine.groups + number, lengths)
            tally.issued += len(members)
            replica.submit(members)
        ended += replica.run_until(float("inf"))
    return ended
