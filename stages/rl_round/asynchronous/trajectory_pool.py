"""Unfinished trajectories: which replica holds each, what has been drawn of it, and what each replica is told next.

One trajectory is drawn by one version of the policy. When its replica dies, or repack empties that replica, it goes on
behind its tokens at another that holds the version, or that can still load it; when the version is gone everywhere, it
starts again from its prompt under another.
No Ray, no clock and no torch here: the hub brings reports in and takes orders out.

Source: Laminar (arXiv 2510.12633), partial response pool and rollout manager. Deviations: 1. weights
change only while nothing is in flight, so no trajectory mixes two policies; 2. a repack is planned only when somebody
could use the replica that it frees; 3. `takes_groups: while_newest` fills replicas up while they decode.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from stages.algorithms.rollout_schedule import Replica, repack
from stages.engines.replicas.replica import Orders, Report
from stages.engines.samplers.protocol import PartialResponse, Sample, SamplingSettings, Trajectory
from stages.rl_round.methods import AsynchronousLoop, NoRepack

Name = tuple[int, int]
"""Group number and sample number."""
ReplicaId = Hashable
MOST_DEATHS = 3
"""Replicas that may die with a trajectory before it is taken for the cause. Fewer than the restarts that the fleet
grants a replica (5 in a row): a trajectory that kills is given up before the round is."""


@dataclass
class InFlightTrajectory:
    """A trajectory that has not ended."""

    trajectory: Trajectory
    """As it was first begun."""
    version: int | None
    """Weights that draw it; None before it is begun, or begun again."""
    issued: int = 0
    """The version that the window reckons with: no older one may draw it."""
    destination: ReplicaId | None = None
    """Where repack sends it."""
    deaths: int = 0
    token_ids: list[int] = field(default_factory=list)
    """All that have been reported."""
    logprobs: list[float] = field(default_factory=list)
    written: int = 0
    """Tokens that the journal has."""

    def add(self, more: PartialResponse) -> None:
        self.token_ids += more.token_ids
        self.logprobs += more.logprobs

    def so_far(self) -> Trajectory:
        """What another replica needs to go on with it."""
        return replace(self.trajectory, begun=PartialResponse(self.token_ids, self.logprobs))


@dataclass
class _Replica:
    version: int | None = None
    pulling: int | None = None
    flights: dict[Name, InFlightTrajectory] = field(default_factory=dict)
    is_emptying: bool = False
    """Repack has chosen it as a source."""
    is_withdrawing: bool = False
    """The order to give up what it holds is on its way."""
    kv_tokens: int = 0
    kv_at_check: float = 0.0
    """At the last look of repack: one that has begun since is filling up and not idle."""
    has_received: bool = False
    """Repack has sent it something since the last check: it stays where it is for one interval."""


BeginGroups = Callable[[int, int], Mapping[Name, Trajectory]]
"""(version, at most so many groups) -> the trajectories of the groups that the window lets begin under that version."""


class TrajectoryPool:
    """All trajectories in flight and the replicas that draw them."""

    def __init__(
        self, loop: AsynchronousLoop, groups_at_once: int, kv_capacity: int, settings: SamplingSettings
    ) -> None:
        """`kv_capacity`: tokens of the sequences that a replica decodes at once, at most."""
        self.loop, self.groups_at_once, self.settings = loop, groups_at_once, settings
        self.kv_capacity = kv_capacity
        self._replicas: dict[ReplicaId, _Replica] = {}
        self.waiting: dict[Name, InFlightTrajectory] = {}
        """Flights that no replica holds, in the order in which they came."""
        self.given_up: list[Name] = []
        """Trajectories that too many replicas died with, until the caller takes them."""
        self.faults, self.repacked = Faults(), Repacked()
        """Since the last step; the caller puts new ones in their place."""

    # Replicas come and go.

    def join(self, replica: ReplicaId) -> None:
        """A replica has started, or another incarnation of it: it holds nothing."""
        self._replicas[replica] = _Replica()

    def lose(self, replica: ReplicaId) -> None:
        """The replica is gone: its trajectories wait for another one. It may have died before it had joined."""
        lost = self._replicas.pop(replica, _Replica())
        for name, flight in lost.flights.items():
            # Each death counts for all that it held: which of them was the cause cannot be seen.
            flight.deaths += 1
            flight.destination = None
            if flight.deaths >= MOST_DEATHS:
                self.given_up.append(name)
            else:
                self.waiting[name] = flight

    # What replicas say.

    def receive(self, replica: ReplicaId, report: Report) -> dict[Name, Sample]:
        """Takes a report in; the samples that it ends, each once."""
        state = self._replicas[replica]
        # The report decides, not the order: after a failed pull it serves what it says, or nothing.
        if report.version != state.version or report.pull_failed:
            state.version, state.pulling = report.version, None
        elif state.pulling == report.version:
            state.pulling = None
        state.kv_tokens = report.load.kv_tokens
        for name, begun in report.new_tokens.items():
            if name in state.flights:
                state.flights[name].add(begun)
        for name, begun in report.withdrawn.items():
            flight = state.flights.pop(name, None)
            if flight:
                # Whole, not the newest part: it replaces what was reported piece by piece.
                flight.token_ids, flight.logprobs = list(begun.token_ids), list(begun.logprobs)
                self.waiting[name] = flight
        if report.withdrawn or not state.flights:
            state.is_emptying = state.is_withdrawing = False
        # What another replica went on with is no flight of this one any more: its end is not counted twice.
        return {name: sample for name, sample in report.ended.items() if state.flights.pop(name, None)}

    # What replicas are told.

    def orders(self, replica: ReplicaId, newest: int, kept: Collection[int], begin: BeginGroups) -> Orders | None:
        """What the replica is to do besides going on; None when there is nothing new for it.

        `newest` is the newest version that it can load, `kept` are all that it can.
        """
        state = self._replicas[replica]
        self._settle_waiting(kept)
        # Orders wait: a replica that loads weights answers before it can do anything else.
        if state.pulling is not None:
            return None
        if state.is_emptying:
            if state.is_withdrawing:
                return None
            state.is_withdrawing = True
            return self._order(withdraw=tuple(state.flights))
        if not state.flights:
            wanted = self._version_for(replica, newest, kept)
            # The one place where weights change, with nothing in flight: no response is drawn under two policies.
            if wanted != state.version:
                state.pulling, state.kv_at_check = wanted, 0.0
                return self._order(pull=wanted)
        begun = self._begin_waiting(replica, newest)
        may_take = not state.flights or self.loop.takes_groups == "while_newest"
        if state.version == newest and may_take:
            # Groups that it goes on with take room too: a replica that took over much begins less.
            room = self.groups_at_once - len({group for group, _ in (*state.flights, *begun)})
            fresh = begin(newest, room) if room > 0 else {}
            begun |= {name: InFlightTrajectory(trajectory, newest, newest) for name, trajectory in fresh.items()}
        state.flights |= begun
        if not begun:
            return None
        trajectories = {name: flight.so_far() for name, flight in begun.items()}
        return self._order(begin=trajectories, under=state.version, settings=self.settings)

    def plan_repack(self, newest: int, may_begin: int) -> int:
        """Chooses replicas to empty into others, to be told with their next orders; how many. Call it at intervals."""
        if isinstance(self.loop.repack, NoRepack):
            return 0
        states = {
            name: state
            for name, state in self._replicas.items()
            if state.version is not None and state.pulling is None and not state.is_emptying
        }
        seen = [
            Replica(name, state.version, state.kv_tokens, state.kv_at_check, len(state.flights))
            for name, state in states.items()
            # One that is freed only helps when it can load newer weights, or begin something under its own.
            if (state.version < newest or may_begin > 0) and not self._expects(name)
        ]
        moves = [
            move
            for move in repack(seen, self.kv_capacity, self.loop.repack.batch_bound)
            if not states[move.source].has_received
        ]
        for state in states.values():
            # Every replica is measured, also one that may not move now: the next check compares with this one.
            state.kv_at_check, state.has_received = float(state.kv_tokens), False
        for move in moves:
            states[move.source].is_emptying = True
            states[move.destination].has_received = True
            for flight in states[move.source].flights.values():
                flight.destination = move.destination
        self.repacked.freed_replicas += len(moves)
        return len(moves)

    # What others look at.

    def flights(self) -> Iterator[tuple[Name, InFlightTrajectory]]:
        """Every trajectory in flight or waiting."""
        for held in (self.waiting, *(replica.flights for replica in self._replicas.values())):
            yield from held.items()

    def versions(self) -> dict[ReplicaId, int | None]:
        return {name: state.version for name, state in self._replicas.items()}

    def is_busy(self, replica: ReplicaId) -> bool:
        """True while it holds trajectories or loads weights."""
        state = self._replicas[replica]
        return bool(state.flights) or state.pulling is not None

    def kv_fraction(self) -> float:
        """Mean share of the replicas' KV cache in use."""
        used = [state.kv_tokens / self.kv_capacity for state in self._replicas.values()]
        return sum(used) / len(used) if used else 0.0

    # Inside.

    def _order(self, **orders) -> Orders:
        return Orders(**orders, report_seconds=self.loop.report_seconds)

    def _settle_waiting(self, kept: Collection[int]) -> None:
        """Flights whose destination is gone may go anywhere; those whose version is gone start from the prompt."""
        held = {state.version for state in self._replicas.values()}
        held |= {state.pulling for state in self._replicas.values()}
        for flight in self.waiting.values():
            target = self._replicas.get(flight.destination)
            # It may have died, or have loaded other weights before the trajectory came.
            if target is None or target.version != flight.version:
                flight.destination = None
            # The tokens go with their version: continued under another they would mix two policies.
            if flight.version is not None and flight.version not in held and flight.version not in kept:
                self.faults.restarted_from_prompt += 1
                self.faults.tokens_lost += len(flight.token_ids)
                flight.token_ids, flight.logprobs, flight.version, flight.written = [], [], None, 0

    def _version_for(self, replica: ReplicaId, newest: int, kept: Collection[int]) -> int | None:
        """What an empty replica should hold: the newest, unless trajectories wait for what nobody holds."""
        state = self._replicas[replica]
        if self._expects(replica):
            return state.version
        others = [other for name, other in self._replicas.items() if name != replica]
        served = {other.version for other in others} | {other.pulling for other in others}
        for flight in self.waiting.values():
            if flight.version is not None and flight.version not in served:
                # Older weights are loaded again only to finish what they began.
                return flight.version if flight.version in kept else state.version
        return newest

    def _expects(self, replica: ReplicaId) -> bool:
        """True while repack has something on its way to it."""
        emptying = (state.flights for state in self._replicas.values() if state.is_emptying)
        held = (self.waiting, *emptying)
        return any(flight.destination == replica for flights in held for flight in flights.values())

    def _begin_waiting(self, replica: ReplicaId, newest: int) -> dict[Name, InFlightTrajectory]:
        """The waiting trajectories that this replica can go on with."""
        version = self._replicas[replica].version
        if version is None:
            return {}
        begun: dict[Name, InFlightTrajectory] = {}
        for name, flight in list(self.waiting.items()):
            # Never under older weights than the window reckoned with at issue, and never under old ones at all.
            may_start = flight.version is None and version == newest >= flight.issued
            if flight.version != version and not may_start:
                continue
            if flight.destination not in (None, replica):
                continue
            if flight.destination == replica:
                self.repacked.moves += 1
                self.repacked.tokens_recomputed += len(flight.trajectory.prompt) + len(flight.token_ids)
            elif flight.version is not None:
                self.faults.redirected += 1
            flight.version, flight.destination = version, None
            begun[name] = self.waiting.pop(name)
        return begun


@dataclass(slots=True)
class Repacked:
    """Since the last step."""

    moves: int = 0
    """Trajectories that went on at another replica."""
    tokens_recomputed: int = 0
    """Prompt and response tokens that were read again there."""
    freed_replicas: int = 0
    seconds: float = 0.0
    """From withdrawing to going on, added up."""


@dataclass(slots=True)
class Faults:
    """Since the last step."""

    restarts: int = 0
    """Processes that died or hung and were started again."""
    stalled: int = 0
    """Those of them that had to be killed because they reported nothing."""
    redirected: int = 0
    """Trajectories that went on at another replica of their version."""
    restarted_from_prompt: int = 0
    """Trajectories whose version was gone."""
    tokens_lost: int = 0
    duplicates: int = 0
    """Results that came a second time, or from a process that had been replaced."""
