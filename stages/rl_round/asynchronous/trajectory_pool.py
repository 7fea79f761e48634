"""Unfinished trajectories: the replica that holds each, their tokens so far, and the next orders for each replica.

One version of the policy generates a trajectory. When its replica dies, or repack empties that replica, it continues
from its tokens on another that holds the version, or that can still load it. When the version is gone everywhere, it
starts again from its prompt under another.
No Ray, no clock and no torch here: the hub brings reports in and takes orders out.

Source: Laminar (arXiv 2510.12633), partial response pool and rollout manager. As there, weights change only while
nothing is in flight, so no trajectory mixes two policies. Deviations: 1. a repack is planned only when the freed
replica would have work; 2. `takes_groups: while_newest` fills replicas up while they decode.
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
"""Replicas that may die with a trajectory before it counts as the cause. Fewer than the fleet's restarts of a replica
(5 in a row): a trajectory that kills replicas is given up before the round."""


@dataclass
class InFlightTrajectory:
    trajectory: Trajectory
    """As it was first issued."""
    version: int | None
    """Version that generates it; None before it starts, or starts again."""
    issued: int = 0
    """The version that the window assumes: no older one may generate it."""
    destination: ReplicaId | None = None
    """Destination that repack chose."""
    deaths: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    written: int = 0
    """Number of tokens in the journal."""
    observed: tuple[tuple[int, int], ...] = ()
    """Spans of these tokens that an environment wrote."""

    def add(self, more: PartialResponse) -> None:
        self.token_ids += more.token_ids
        self.logprobs += more.logprobs
        self.observed += more.observed

    def so_far(self) -> Trajectory:
        """Returns the data that another replica needs to continue it."""
        return replace(self.trajectory, begun=PartialResponse(self.token_ids, self.logprobs, self.observed))


@dataclass
class _Replica:
    version: int | None = None
    pulling: int | None = None
    flights: dict[Name, InFlightTrajectory] = field(default_factory=dict)
    is_emptying: bool = False
    """Repack has chosen it as a source."""
    is_withdrawing: bool = False
    """The order to withdraw its trajectories is on its way."""
    kv_tokens: int = 0
    kv_at_check: float = 0.0
    """KV tokens at the last check of repack: a replica that has started since is filling up and not idle."""
    has_received: bool = False
    """Repack has moved trajectories here since the last check: it stays as it is for one interval."""


BeginGroups = Callable[[int, int], Mapping[Name, Trajectory]]
"""(version, at most so many groups) -> the trajectories of the groups that the window lets start under that version."""


class TrajectoryPool:
    """All trajectories in flight and the replicas that generate them."""

    def __init__(
        self, loop: AsynchronousLoop, groups_at_once: int, kv_capacity: int, settings: SamplingSettings
    ) -> None:
        """Takes `kv_capacity`: the most tokens of the sequences that a replica decodes at once.

        A report of a smaller cache lowers it.
        """
        self.loop, self.groups_at_once, self.settings = loop, groups_at_once, settings
        self.kv_capacity = kv_capacity
        self._replicas: dict[ReplicaId, _Replica] = {}
        self.waiting: dict[Name, InFlightTrajectory] = {}
        """Flights that no replica holds, in order of arrival."""
        self.given_up: list[Name] = []
        """Trajectories with which too many replicas died, until the caller takes them."""
        self.faults, self.repacked = Faults(), Repacked()
        """Counts since the last step; the caller resets them."""

    # Joining and leaving.

    def join(self, replica: ReplicaId) -> None:
        """Adds a replica that has started, or restarted: it holds nothing."""
        self._replicas[replica] = _Replica()

    def lose(self, replica: ReplicaId) -> None:
        """Removes a replica: its trajectories wait for another one. It may have died before it had joined."""
        lost = self._replicas.pop(replica, _Replica())
        for name, flight in lost.flights.items():
            # A death counts for all trajectories it held, since the cause among them is unknown.
            flight.deaths += 1
            flight.destination = None
            if flight.deaths >= MOST_DEATHS:
                self.given_up.append(name)
            else:
                self.waiting[name] = flight

    # Reports from replicas.

    def receive(self, replica: ReplicaId, report: Report) -> dict[Name, Sample]:
        """Processes a report; returns the samples that it ends, each once."""
        state = self._replicas[replica]
        # The report decides, not the order: after a failed pull it serves the reported version, or nothing.
        if report.version != state.version or report.pull_failed:
            state.version, state.pulling = report.version, None
        elif state.pulling == report.version:
            state.pulling = None
        state.kv_tokens = report.load.kv_tokens
        # The smallest cache counts for all: what fits there fits everywhere.
        self.kv_capacity = min(self.kv_capacity, report.load.kv_capacity or self.kv_capacity)
        for name, begun in report.new_tokens.items():
            if name in state.flights:
                state.flights[name].add(begun)
        for name, begun in report.withdrawn.items():
            flight = state.flights.pop(name, None)
            if flight:
                # The whole response, not the newest part: it replaces the tokens that were reported piece by piece.
                flight.token_ids, flight.logprobs = list(begun.token_ids), list(begun.logprobs)
                flight.observed = begun.observed
                self.waiting[name] = flight
        if report.withdrawn or not state.flights:
            state.is_emptying = state.is_withdrawing = False
        # A trajectory that continued elsewhere no longer belongs to this replica: its end is not counted twice.
        return {name: sample for name, sample in report.ended.items() if state.flights.pop(name, None)}

    # Orders to replicas.

    def orders(self, replica: ReplicaId, newest: int, kept: Collection[int], begin: BeginGroups) -> Orders | None:
        """Returns new orders for the replica; None when there are none.

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
            # Weights change only here, with nothing in flight: no response mixes two policies.
            if wanted != state.version:
                state.pulling, state.kv_at_check = wanted, 0.0
                return self._order(pull=wanted)
        begun = self._begin_waiting(replica, newest)
        may_take = not state.flights or self.loop.takes_groups == "while_newest"
        if state.version == newest and may_take:
            # Resumed groups take room too: a replica that took over many starts fewer.
            room = self.groups_at_once - len({group for group, _ in (*state.flights, *begun)})
            fresh = begin(newest, room) if room > 0 else {}
            begun |= {name: InFlightTrajectory(trajectory, newest, newest) for name, trajectory in fresh.items()}
        state.flights |= begun
        if not begun:
            return None
        trajectories = {name: flight.so_far() for name, flight in begun.items()}
        return self._order(begin=trajectories, under=state.version, settings=self.settings)

    def plan_repack(self, newest: int, may_begin: int) -> int:
        """Chooses replicas to empty into others, as their next orders; returns how many. Call it at intervals, and when
        there are newer weights."""
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
            # A freed replica helps only when it can load newer weights, or start a group under its version.
            if (state.version < newest or may_begin > 0) and not self._expects(name)
        ]
        moves = [
            move
            for move in repack(seen, self.kv_capacity, self.loop.repack.batch_bound)
            if not states[move.source].has_received
        ]
        for state in states.values():
            # Every replica is measured, even one that may not move now: the next check compares with this one.
            state.kv_at_check, state.has_received = float(state.kv_tokens), False
        for move in moves:
            states[move.source].is_emptying = True
            states[move.destination].has_received = True
            for flight in states[move.source].flights.values():
                flight.destination = move.destination
        self.repacked.freed_replicas += len(moves)
        return len(moves)

    # Views for other modules.

    def flights(self) -> Iterator[tuple[Name, InFlightTrajectory]]:
        """Yields every trajectory in flight or waiting."""
        for held in (self.waiting, *(replica.flights for replica in self._replicas.values())):
            yield from held.items()

    def versions(self) -> dict[ReplicaId, int | None]:
        return {name: state.version for name, state in self._replicas.items()}

    def is_busy(self, replica: ReplicaId) -> bool:
        """Returns True while the replica holds trajectories or loads weights."""
        state = self._replicas[replica]
        return bool(state.flights) or state.pulling is not None

    def kv_fraction(self) -> float:
        """Returns the mean share of the replicas' KV cache in use."""
        used = [state.kv_tokens / self.kv_capacity for state in self._replicas.values()]
        return sum(used) / len(used) if used else 0.0

    # Internals.

    def _order(self, **orders) -> Orders:
        return Orders(**orders, report_seconds=self.loop.report_seconds)

    def _settle_waiting(self, kept: Collection[int]) -> None:
        """Frees flights whose destination is gone to go anywhere, and restarts those whose version is gone."""
        held = {state.version for state in self._replicas.values()}
        held |= {state.pulling for state in self._replicas.values()}
        for flight in self.waiting.values():
            target = self._replicas.get(flight.destination)
            # The destination may have died, or have loaded other weights before the trajectory arrived.
            if target is None or target.version != flight.version:
                flight.destination = None
            # The tokens are dropped with their version: continued under another they would mix two policies.
            if flight.version is not None and flight.version not in held and flight.version not in kept:
                self.faults.restarted_from_prompt += 1
                self.faults.tokens_lost += len(flight.token_ids)
                flight.token_ids, flight.logprobs, flight.version, flight.written = [], [], None, 0
                flight.observed = ()

    def _version_for(self, replica: ReplicaId, newest: int, kept: Collection[int]) -> int | None:
        """Returns the version that an empty replica should hold: the newest, unless trajectories wait for another."""
        state = self._replicas[replica]
        if self._expects(replica):
            return state.version
        others = [other for name, other in self._replicas.items() if name != replica]
        served = {other.version for other in others} | {other.pulling for other in others}
        for flight in self.waiting.values():
            if flight.version is not None and flight.version not in served:
                # Older weights are loaded again only to finish their trajectories.
                return flight.version if flight.version in kept else state.version
        return newest

    def _expects(self, replica: ReplicaId) -> bool:
        """Returns True while a trajectory that repack moved is on its way to this replica."""
        emptying = (state.flights for state in self._replicas.values() if state.is_emptying)
        held = (self.waiting, *emptying)
        return any(flight.destination == replica for flights in held for flight in flights.values())

    def _begin_waiting(self, replica: ReplicaId, newest: int) -> dict[Name, InFlightTrajectory]:
        version = self._replicas[replica].version
        if version is None:
            return {}
        begun: dict[Name, InFlightTrajectory] = {}
        for name, flight in list(self.waiting.items()):
            # Never under older weights than the window assumed at issue, and never under old ones at all.
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
    """Trajectories that continued on another replica."""
    tokens_recomputed: int = 0
    """Prompt and response tokens that were read again there."""
    freed_replicas: int = 0
    seconds: float = 0.0
    """Seconds from withdrawal to continuation, summed."""


@dataclass(slots=True)
class Faults:
    """Since the last step."""

    restarts: int = 0
    """Processes that died or hung and were restarted."""
    stalled: int = 0
    """Of these, the processes that had to be killed because they reported nothing."""
    redirected: int = 0
    """Trajectories that continued on another replica of their version."""
    restarted_from_prompt: int = 0
    """Trajectories whose version was gone."""
    tokens_lost: int = 0
    duplicates: int = 0
    """Results that came a second time, or from a replaced process."""
