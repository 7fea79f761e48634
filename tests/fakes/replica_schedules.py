"""An asynchronous round without processes: replicas, verifier and trainer as random schedules on a fake clock.

The coordinator is the real one. Replicas here sample tokens that encode their trajectory, version and position. So
these tokens show whether a trajectory was moved wrongly or mixed from two policies.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.replicas.replica import Orders, Report
from stages.engines.samplers.protocol import Episode, Load, PartialResponse, Sample, StopReason
from stages.rl_round.asynchronous.coordinator import Coordinator, StepBatch
from stages.rl_round.asynchronous.journal import Record, record_from_json, record_to_json
from stages.rl_round.drawing import make_rollout


def token(name: tuple[int, int], version: int, position: int) -> int:
    """Returns the token that a replica samples; all of them differ."""
    group, member = name
    return ((group * 64 + member) * 64 + version) * 1024 + position


def spans(start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Returns the observations of an observing replica among these positions: every fifth token."""
    return tuple((place, place + 1) for place in range(start, end) if place % 5 == 3)


@dataclass
class ScriptedReplica:
    """One replica; `lengths` gives the final length of each response."""

    lengths: Callable[[tuple[int, int], int], int]
    observes: bool = False
    """True lets an environment write tokens in between."""
    version: int | None = None
    flights: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def advance(self, orders: Orders, steps: int, published: list[int]) -> Report:
        """Acts like a real replica, with a fixed number of decode steps instead of time."""
        withdrawn = {name: self._part(self.flights.pop(name)) for name in orders.withdraw if name in self.flights}
        failed, pulled = None, None
        if orders.pull is not None:
            assert not self.flights, "weights change only while nothing is in flight"
            if orders.pull in published:
                self.version = pulled = orders.pull
            else:
                failed = "gone"
        for name, trajectory in orders.begin.items():
            self.flights[name] = list(trajectory.begun.token_ids)
            assert trajectory.begun == self._part(self.flights[name]), "tokens move with their spans"
        before = {name: len(tokens) for name, tokens in self.flights.items()}
        ended = {}
        for _ in range(steps):
            for name in list(self.flights):
                tokens = self.flights[name]
                tokens.append(token(name, self.version, len(tokens)))
                if len(tokens) >= self.lengths(name, self.version):
                    episode = Episode(spans(0, len(tokens)), 2, "", reward=1 / 3) if self.observes else None
                    reason = StopReason.END_OF_SEQUENCE
                    ended[name] = Sample(tokens, [-1.0] * len(tokens), reason, self.version, episode)
                    del self.flights[name]
        fresh = {name: self._part(tokens, before[name]) for name, tokens in self.flights.items()}
        load = Load(len(self.flights), 0, sum(map(len, self.flights.values())))
        return Report(self.version, ended, fresh, withdrawn, load, steps, pulled=pulled, pull_failed=failed)

    def _part(self, tokens: list[int], start: int = 0) -> PartialResponse:
        observed = spans(start, len(tokens)) if self.observes else ()
        return PartialResponse(tokens[start:], [-1.0] * (len(tokens) - start), observed)


@dataclass
class Schedule:
    """Runs one coordinator to the end of its round, in an order that the random generator decides."""

    coordinator: Coordinator
    generator: random.Random
    replicas: int
    lengths: Callable[[tuple[int, int], int], int]
    is_right: Callable[[tuple[int, int]], bool]
    death_rate: float = 0.0
    keep: int = 8
    values: Callable[[tuple[int, int]], dict] = lambda name: {}
    """Values of custom functions for a response."""
    observes: bool = False
    """As in `ScriptedReplica`."""
    now: float = 0.0
    trained: list[StepBatch] = field(default_factory=list)
    ready_since: dict[int, int] = field(default_factory=dict)
    longest_wait: int = 0
    published: list[int] = field(default_factory=lambda: [0])

    def run(self, stop_after: float = float("inf")) -> None:
        """Runs until the round has ended, or the clock reaches `stop_after`."""
        fleet = {number: ScriptedReplica(self.lengths, self.observes) for number in range(self.replicas)}
        for name in fleet:
            self.coordinator.pool.join(name)
        pending: list[tuple[int, Report]] = []
        training: StepBatch | None = None
        idle = 0
        while len(self.trained) < self.coordinator.steps and self.now < stop_after:
            self.now += 1
            name = self.generator.randrange(self.replicas)
            if self.generator.random() < self.death_rate:
                self.coordinator.lose(name, self.now)
                self.coordinator.pool.join(name)
                fleet[name] = ScriptedReplica(self.lengths, self.observes)
                pending = [(other, report) for other, report in pending if other != name]
            elif all(other != name for other, _ in pending):
                orders = self.coordinator.orders(name, self.published[-1], self.published)
                if orders is not None or fleet[name].flights:
                    told = orders or Orders()
                    pending.append((name, fleet[name].advance(told, self.generator.randint(1, 12), self.published)))
            if pending and self.generator.random() < 0.7:
                who, report = pending.pop(self.generator.randrange(len(pending)))
                self._judge(self.coordinator.receive(who, report))
            if self.generator.random() < 0.1:
                newest = self.published[-1]
                self.coordinator.pool.plan_repack(newest, self.coordinator.window.may_begin(newest))
                self.coordinator.write_partials()
            if not self._repeats():
                if training is None:
                    training = self.coordinator.next_batch(self.now)
                    idle = 0 if training else idle + 1
                    assert idle < 20_000, "nothing moves any more"
                    if training:
                        self._note(training)
                elif self.generator.random() < 0.3:
                    self.trained.append(training)
                    self.published = [*self.published, training.step + 1][-self.keep :]
                    training = None
            self.coordinator.check_conservation()

    def _repeats(self) -> bool:
        """After a kill of the hub, the trainer first repeats the steps after its checkpoint."""
        if self.published[-1] >= len(self.trained):
            return False
        if self.generator.random() < 0.02:
            self.published = [*self.published, self.published[-1] + 1][-self.keep :]
        return True

    def _judge(self, samples: dict[tuple[int, int], Sample]) -> None:
        judged = {}
        for name, sample in samples.items():
            verdict = Verdict.CORRECT if self.is_right(name) else Verdict.WRONG
            judged[name] = make_rollout(sample, "", verdict, self.coordinator.params, self.values(name))
        self.coordinator.write_judged(judged)
        self.coordinator.judged(judged, self.now)
        for number in self.coordinator.window.ready_groups():
            self.ready_since.setdefault(number, self.coordinator.window.steps_done)

    def _note(self, batch: StepBatch) -> None:
        for number in batch.numbers:
            self.longest_wait = max(self.longest_wait, batch.step - self.ready_since.get(number, batch.step))


def through_json(records: list[Record]) -> list[Record]:
    """Returns the records as a journal would return them."""
    return [record_from_json(record_to_json(record)) for record in records]
