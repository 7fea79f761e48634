"""An asynchronous round in one process: hub, journal, trainer and replicas are the real ones, and there is no Ray.

Verdicts come at once and replicas decode a token in each turn, so that an equal round takes equal batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from stages.engines.distributed.ranked_actors import RanksLost
from stages.engines.replicas.fleet import Reported, Started
from stages.engines.replicas.replica import Orders, Replica
from stages.rl_round.asynchronous import hub, trainers
from stages.rl_round.asynchronous import round as asynchronous_round

NODE = "node"
TURNS = 20
"""Turns of the replicas while the trainer is busy with a call: enough for a response."""
IsLost = Callable[[str, int | None], bool]
"""(method, step) -> whether the trainer dies in that call, with its work done and not reported."""


def play_in_one_process(monkeypatch, weights: Path, is_lost: IsLost = lambda method, step: False) -> list[float]:
    """Lets the next rounds run here; `weights` is a new folder for versions. Returns the patience with each call."""
    patience: list[float] = []
    weights.mkdir()
    monkeypatch.setattr(trainers, "RankedActors", partial(ActorsHere, patience, is_lost))
    monkeypatch.setattr(hub, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(hub, "weights_folder", lambda *_: weights)
    monkeypatch.setattr(asynchronous_round, "Fleet", partial(FleetHere, weights))
    monkeypatch.setattr(asynchronous_round, "Judge", JudgeHere)
    monkeypatch.setattr(asynchronous_round, "RelayChain", NoRelays)
    monkeypatch.setattr(asynchronous_round, "ray_session", no_session)
    monkeypatch.setattr(asynchronous_round, "this_node", lambda: NODE)
    monkeypatch.setattr(asynchronous_round, "total_gpus", lambda: 0.0)
    return patience


class ActorsHere:
    """Like `RankedActors`, with one rank. A call is carried out when its result has been requested a few times."""

    calls = ()
    seconds = 0.0

    def __init__(self, patience, is_lost, actor_class, arguments, *_):
        self._patience, self._is_lost, self._new = patience, is_lost, partial(actor_class, *arguments)
        self._actor, self._call, self._turns = self._new(), None, 0

    @property
    def is_busy(self):
        return self._call is not None

    def call(self, method, *arguments):
        self._call = method, arguments

    def result(self, patience_seconds):
        self._turns += 1
        if self._turns % TURNS:
            return None
        self._patience.append(patience_seconds)
        (method, arguments), self._call = self._call, None
        answer = getattr(self._actor, method)(*arguments)
        if self._is_lost(method, arguments[0] if arguments else None):
            raise RanksLost("it died")
        return answer

    def start_again(self):
        self._actor = self._new()

    def close(self):
        self._actor = None


class FleetHere:
    """Like `Fleet`, with replicas that take turns."""

    def __init__(self, weights, spec, count, *_):
        self._replicas = [Replica(spec.build, weights) for _ in range(count)]
        self._orders = [deque() for _ in range(count)]
        self._started = []

    def started(self):
        return self._started

    def node(self, _):
        return NODE

    def order(self, replica, orders):
        self._orders[replica].append(orders)

    def poll(self, *_):
        if not self._started:
            self._started = list(range(len(self._replicas)))
            return [Started(replica, NODE, 0) for replica in self._started]
        told = [orders.popleft() if orders else Orders() for orders in self._orders]
        return [
            Reported(number, replica.advance(replace(orders, report_seconds=0.0)))
            for number, (replica, orders) in enumerate(zip(self._replicas, told, strict=True))
        ]

    def close(self):
        for replica in self._replicas:
            replica.close()


class JudgeHere(hub.Judge):
    """Judges at once and not in a thread."""

    def ask(self, samples):
        self._waiting.put(samples)
        self._waiting.put(None)
        self._work()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class NoRelays:
    """Like `RelayChain`, on one node."""

    def __init__(self, *_):
        pass

    def ensure(self, _):
        pass

    def announce(self, _):
        pass

    def poll(self):
        return []

    def close(self):
        pass


@contextmanager
def no_session(*_):
    yield "here"
