"""The relays of all nodes, as the process sees them that tells them of new versions. It waits for none of them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stages.engines.relays.relay import Fetched, Relay
from stages.foundations.errors import UserError
from stages.observe.progress import say

BEAT_SECONDS = 1.0
"""How often a relay is asked what it has."""
AGAIN_SECONDS = 0.5
"""After a fetch that failed."""
START_SECONDS = 300.0
"""For a relay to start, and to start again."""


@dataclass(frozen=True)
class Arrived:
    """A version is on a node, or could not be brought there now (it is tried again)."""

    node: str
    fetched: Fetched | None
    failed: str | None = None


@dataclass
class _Seat:
    actor: Any
    heard_at: float = field(default_factory=time.monotonic)
    is_up: bool = False
    have: dict[int, str] = field(default_factory=dict)
    beat: Any = None
    fetch: Any = None
    done: int = -1
    """The newest version that it has been asked for and has."""
    again_at: float = 0.0


class RelayChain:
    """One relay on each node that was asked for; the trainer's node comes first."""

    def __init__(self, run: str, keep: int, stalled_seconds: float, has_guards: bool) -> None:
        """A Ray must run. `has_guards` on a cluster whose nodes live on."""
        import ray

        self._ray, self._of_relays = ray, (run, keep, has_guards)
        self.stalled_seconds = stalled_seconds
        self._announced = -1
        self._seats: dict[str, _Seat] = {}
        """By Ray's id of the node, in the order of the chain."""

    def ensure(self, nodes: Iterable[str]) -> None:
        """Starts a relay on each of these nodes that has none; the first node of the first call is the trainer's."""
        for node in nodes:
            if node not in self._seats:
                self._seats[node] = _Seat(self._start(node))

    def announce(self, version: int) -> None:
        """A version is published on the trainer's node: all others are to fetch it. Returns at once."""
        self._announced = max(self._announced, version)
        self.poll()

    def poll(self) -> list[Arrived]:
        """What has arrived since; asks again what failed and restarts a relay that hangs. Returns at once."""
        arrived: list[Arrived] = []
        for node, seat in list(self._seats.items()):
            self._listen(node, seat)
            arrived += self._collect(node, seat)
        now = time.monotonic()
        for position, seat in enumerate(self._seats.values()):
            if seat.is_up and seat.fetch is None and now >= seat.again_at and self._lacks_newest(seat):
                before = [other.actor for other in list(self._seats.values())[:position]]
                seat.fetch = seat.actor.fetch.remote(self._announced, before[::-1])
        return arrived

    @property
    def have(self) -> dict[str, list[int]]:
        """Versions by node, as last heard."""
        return {node: sorted(seat.have) for node, seat in self._seats.items()}

    def close(self) -> None:
        """Ends the relays; the files stay for the guards."""
        for seat in self._seats.values():
            self._ray.kill(seat.actor)
        self._seats.clear()

    def _start(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        relay = self._ray.remote(num_cpus=0, max_restarts=-1, concurrency_groups={"serve": 4})(Relay)
        relay = relay.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        return relay.remote(node, *self._of_relays)

    def _listen(self, node: str, seat: _Seat) -> None:
        """A relay that answers is alive; Ray restarts one that died, and one that hangs is killed for that."""
        now = time.monotonic()
        if seat.beat is None:
            if now - seat.heard_at >= (BEAT_SECONDS if seat.is_up else 0.0):
                seat.beat, seat.heard_at = seat.actor.have.options(concurrency_group="serve").remote(), now
            return
        if not self._is_over(seat.beat):
            if now - seat.heard_at > (self.stalled_seconds if seat.is_up else START_SECONDS):
                say(f"the relay on node {node[:8]} does not answer; it is restarted")
                self._ray.kill(seat.actor, no_restart=False)
                seat.beat, seat.heard_at, seat.is_up = None, now, False
            return
        beat, seat.beat, seat.heard_at = seat.beat, None, now
        try:
            seat.have, seat.is_up = self._ray.get(beat), True
        except self._ray.exceptions.RayActorError:
            seat.is_up = False
            if not self._is_alive(node):
                del self._seats[node]

    def _collect(self, node: str, seat: _Seat) -> list[Arrived]:
        if seat.fetch is None or not self._is_over(seat.fetch):
            return []
        fetch, seat.fetch = seat.fetch, None
        try:
            fetched = self._ray.get(fetch)
        except UserError as error:
            raise UserError(f"node {node[:8]}: {getattr(error, 'cause', error)}") from error
        except self._ray.exceptions.RayError as error:
            seat.again_at = time.monotonic() + AGAIN_SECONDS
            return [Arrived(node, None, str(error).strip().splitlines()[-1][:200])]
        seat.done = fetched.version
        seat.have[fetched.version] = fetched.digest
        return [Arrived(node, fetched)]

    def _lacks_newest(self, seat: _Seat) -> bool:
        """Also when it has another policy under that number, from before the trainer went back to a checkpoint."""
        newest = self._announced
        if newest < 0 or seat.done < newest:
            return newest >= 0
        first = next(iter(self._seats.values()))
        return newest in first.have and first.have[newest] != seat.have.get(newest)

    def _is_over(self, ref: Any) -> bool:
        return bool(self._ray.wait([ref], timeout=0)[0])

    def _is_alive(self, node: str) -> bool:
        return any(one["NodeID"] == node and one["Alive"] for one in self._ray.nodes())
