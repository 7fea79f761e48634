"""Runs replicas in Ray actors: sends orders, collects reports, and replaces a replica that dies or hangs.

A replica has one working method, `advance`, with at most two outstanding calls. Ray carries them out in order: while
the replica works on one, the next is already there. A report is the heartbeat. Ray notices a dead process within a
second, but never a hung one, so a call that does not return in time ends its replica. The replacement is a new actor
with a new handle: late messages of an old one, even one that was stopped and continues, are ignored.

Nothing here waits for a replica, and no replica waits for another. The process that holds the fleet needs no torch.

The last part decides where replicas go: what one needs of a node (`ReplicaSpec`), and whether all of them fit before
any is started.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from platform import node as this_host
from typing import Any

from stages.engines.distributed.waiting import LONGEST_STEP, PatientClock
from stages.engines.replicas.replica import Name, Orders, ReplicaActor, Report
from stages.engines.samplers.build import build_sampler
from stages.engines.samplers.params import SamplerParams, TorchSamplerParams, VllmSamplerParams
from stages.engines.samplers.protocol import Sampler
from stages.engines.turns import with_turns
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt
from stages.observe.progress import say

OUTSTANDING_CALLS = 2
"""Outstanding calls of a replica: it works on one while the next is already there."""
START_SECONDS = 300.0
"""Time for a replica to start, and for the first call of each kind (a pull, a trajectory), in which engines compile."""
USUAL_STEPS = 20
"""A call may exceed its requested time by this many usual decode steps (and pulls)."""
REMEMBERED = 50
"""Number of durations of decode steps, and of pulls, that define the usual one."""
MOST_RESTARTS = 5
"""Deaths in a row, without a sample between them."""
LONGEST_PAUSE_SECONDS = 30.0
"""Wait between two restarts in a row: 0, 1, 2, 4, ... seconds."""


class FleetError(RuntimeError):
    """A replica cannot be kept alive."""


@dataclass(frozen=True)
class Started:
    """A replica has started, with nothing in flight and, where weights are published, without weights."""

    replica: int
    node: str
    """Ray's id of the node that it runs on."""
    pid: int


@dataclass(frozen=True)
class Reported:
    replica: int
    report: Report


@dataclass(frozen=True)
class Died:
    """A replica's process ended, or raised. A replacement is starting."""

    replica: int
    reason: str
    lost: tuple[Name, ...]
    """Trajectories that were in flight in it, or ordered."""


@dataclass(frozen=True)
class Stalled(Died):
    """A call did not return; the process has been killed. A replacement is starting."""


Event = Started | Reported | Died


@dataclass
class _Call:
    ref: Any
    patience: float
    """Seconds allowed from when it is the oldest call."""
    since: float | None = None


@dataclass
class _ReplicaSlot:
    """The place of one replica, across replacements."""

    number: int
    due: float = 0.0
    """When the next replica may be started."""
    actor: Any = None
    is_started: bool = False
    calls: deque[_Call] = field(default_factory=deque)
    orders: deque[Orders] = field(default_factory=deque)
    held: dict[Name, None] = field(default_factory=dict)
    has_pulled: bool = False
    has_begun: bool = False
    reported_at: float = 0.0
    node: str = ""
    restarts_in_a_row: int = 0

    def vacate(self) -> tuple[Name, ...]:
        """Forgets the replica; returns the trajectories it held."""
        lost = tuple(self.held)
        self.actor, self.is_started, self.has_pulled, self.has_begun = None, False, False, False
        self.calls, self.orders, self.held = deque(), deque(), {}
        return lost


class Fleet:
    """`count` replicas, numbered from 0, some of which may be dead at a time."""

    def __init__(
        self,
        spec: ReplicaSpec,
        count: int,
        stalled_seconds: float,
        report_seconds: float,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Starts them; requires a running Ray. UserError when they do not fit the memory of its nodes."""
        import ray

        self._ray, self._spec = ray, spec
        check_room(spec, count, ray.nodes())
        self.stalled_seconds, self.report_seconds, self.start_seconds = (stalled_seconds, report_seconds, start_seconds)
        self._slots = [_ReplicaSlot(number) for number in range(count)]
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        self._pulls: deque[float] = deque(maxlen=REMEMBERED)
        self._clock = PatientClock()
        self._start_due()

    def order(self, replica: int, orders: Orders) -> None:
        """Sends orders that the replica carries out after all earlier ones. They are lost if it dies first.

        ValueError when the replica has not started: no process could carry them out yet.
        """
        slot = self._slots[replica]
        if not slot.is_started:
            raise ValueError(f"replica {replica} has not started")
        slot.orders.append(orders)
        slot.held |= dict.fromkeys(orders.begin)

    def poll(self, timeout: float, beside: Sequence[Any] = ()) -> list[Event]:
        """Returns the events since the last call, as soon as there is one, at most `timeout` seconds later.

        Also returns when a call in `beside`, which belongs to the caller, is over. Must be called repeatedly: here
        calls go out, hangs are noticed and replacements started. FleetError when replicas die repeatedly; UserError
        when a replica reports that the user must act.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._clock.look()
            events = self._collect()
            events += self._find_stalled()
            self._start_due()
            for slot in self._slots:
                self._send(slot)
            left = deadline - time.monotonic()
            if events or left <= 0 or self._is_any_over(beside):
                return events
            # A quarter, because a second call goes out when the first is half over. Half the clock's longest step, so
            # that this wait never looks as if the process had been suspended.
            self._wait(min(left, self.report_seconds / 4, LONGEST_STEP / 2), beside)

    def node(self, replica: int) -> str:
        """Returns Ray's id of the node where the replica runs, or ran last."""
        return self._slots[replica].node

    def started(self) -> list[int]:
        """Returns the replicas that can take orders."""
        return [slot.number for slot in self._slots if slot.is_started]

    def logprobs(
        self, replica: int, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Waits for one replica's answer, after its outstanding calls. Ray's errors when it dies meanwhile."""
        ref = self._slots[replica].actor.logprobs.remote(prompts, responses)
        return self._ray.get(ref, timeout=self.start_seconds)

    def end(self, replica: int, reason: str) -> Died:
        """Ends a replica that cannot be used and replaces it."""
        return self._vacate(self._slots[replica], reason, Died)

    def close(self) -> None:
        for slot in self._slots:
            if slot.actor is not None:
                self._ray.kill(slot.actor)
            slot.vacate()

    def _start_due(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.actor is None and slot.due <= now:
                # A new actor with a new handle: calls of the previous one cannot be mistaken for its calls.
                slot.actor = self._spec.actor(self._ray.remote(ReplicaActor)).remote(
                    self._spec.build, self._spec.run, self._spec.version
                )
                slot.calls.append(_Call(slot.actor.start.remote(), self.start_seconds, self._clock.now))

    def _send(self, slot: _ReplicaSlot) -> None:
        if not slot.is_started:
            return
        while slot.orders and len(slot.calls) < OUTSTANDING_CALLS:
            orders = slot.orders.popleft()
            # The next ones wait until this call is over.
            seconds = 0.0 if slot.orders else self.report_seconds
            self._advance(slot, replace(orders, report_seconds=seconds))
        if slot.held:
            # The second call goes out when the first is half over: so orders given meanwhile do not wait for both.
            is_time = not slot.calls or (
                len(slot.calls) < OUTSTANDING_CALLS and self._age(slot.calls[0]) > self.report_seconds / 2
            )
        else:
            is_time = not slot.calls and self._clock.now - slot.reported_at > self.report_seconds
        if is_time:
            self._advance(slot, Orders(report_seconds=self.report_seconds))

    def _advance(self, slot: _ReplicaSlot, orders: Orders) -> None:
        is_first = (orders.pull is not None and not slot.has_pulled) or (bool(orders.begin) and not slot.has_begun)
        patience = self.start_seconds if is_first else self._patience(orders)
        call = _Call(slot.actor.advance.remote(orders), patience)
        if not slot.calls:
            call.since = self._clock.now
        slot.calls.append(call)

    def _patience(self, orders: Orders) -> float:
        # The median: one step in which an engine compiled must not make the fleet patient for long.
        usual = statistics.median(self._steps) if self._steps else 0.0
        if orders.pull is not None and self._pulls:
            usual += statistics.median(self._pulls)
        return orders.report_seconds + max(self.stalled_seconds, USUAL_STEPS * usual)

    def _age(self, call: _Call) -> float:
        return 0.0 if call.since is None else self._clock.now - call.since

    def _is_any_over(self, calls: Sequence[Any]) -> bool:
        return bool(calls) and bool(self._ray.wait(list(calls), timeout=0)[0])

    def _wait(self, seconds: float, beside: Sequence[Any]) -> None:
        heads = [*beside, *(slot.calls[0].ref for slot in self._slots if slot.calls)]
        if heads:
            self._ray.wait(heads, timeout=seconds)
        else:
            # No outstanding call could end the wait sooner.
            time.sleep(seconds)

    def _collect(self) -> list[Event]:
        events: list[Event] = []
        # Repeatedly: after a finished call the next one may be finished too.
        while heads := {slot.calls[0].ref: slot for slot in self._slots if slot.calls}:
            ended, _ = self._ray.wait(list(heads), num_returns=len(heads), timeout=0)
            if not ended:
                break
            events += [self._take(heads[ref]) for ref in ended]
        return events

    def _take(self, slot: _ReplicaSlot) -> Event:
        call = slot.calls.popleft()
        try:
            answer = self._ray.get(call.ref)
        # Ray wraps the replica's exception in a class of both kinds: the user should see only the sentence.
        except UserError as error:
            raise UserError(str(getattr(error, "cause", error))) from error
        except self._ray.exceptions.RayError as error:
            return self._vacate(slot, _reason(error), Died)
        # The time limit of a call starts when it is the oldest: until then the replica works on the one before.
        if slot.calls:
            slot.calls[0].since = self._clock.now
        slot.reported_at = self._clock.now
        if not slot.is_started:
            slot.is_started, (slot.node, pid) = True, answer
            return Started(slot.number, slot.node, pid)
        self._note(slot, answer)
        return Reported(slot.number, answer)

    def _note(self, slot: _ReplicaSlot, report: Report) -> None:
        for name in (*report.ended, *report.withdrawn):
            slot.held.pop(name, None)
        if report.decode_steps:
            slot.has_begun = True
            worked = report.seconds["prefill"] + report.seconds["decode"]
            self._steps.append(worked / report.decode_steps)
        if report.pulled is not None:
            slot.has_pulled = True
            self._pulls.append(report.seconds["pull"])
        # Only a whole response shows that it works: a replica that dies after some tokens would restart for ever.
        if report.ended:
            slot.restarts_in_a_row = 0

    def _find_stalled(self) -> list[Event]:
        return [
            self._vacate(slot, f"no report for {self._age(slot.calls[0]):.1f} s", Stalled)
            for slot in self._slots
            if slot.calls and self._age(slot.calls[0]) > slot.calls[0].patience
        ]

    def _vacate(self, slot: _ReplicaSlot, reason: str, kind: type[Died]) -> Died:
        # Also when it has died: Ray may only have lost contact with it.
        self._ray.kill(slot.actor)
        lost = slot.vacate()
        say(f"replica {slot.number}: {reason}; it is replaced")
        if slot.restarts_in_a_row >= MOST_RESTARTS:
            raise FleetError(
                f"replica {slot.number} was restarted {MOST_RESTARTS} times in a row without a single response; "
                f"the last one ended with: {reason}"
            )
        pause = 0.0 if not slot.restarts_in_a_row else 2.0 ** (slot.restarts_in_a_row - 1)
        slot.due = time.monotonic() + min(pause, LONGEST_PAUSE_SECONDS)
        slot.restarts_in_a_row += 1
        return kind(slot.number, reason, lost)


def _reason(error: Exception) -> str:
    """Returns the last lines of Ray's message: the lines above have Ray's ids and a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    dead = [line for line in lines if line.startswith("The actor is dead because")]
    return (dead or lines or [type(error).__name__])[-1].partition(" Some common causes")[0][:400]


PROCESS_BYTES = 400 << 20
"""Bytes of a process with torch, transformers and Ray before it holds a policy."""
STORED_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
"""Bytes of one number, by a sampler's `dtype`."""


@dataclass(frozen=True)
class ReplicaSpec:
    """How to build each replica of a fleet."""

    build: Callable[[], Sampler]
    """Called in the replica's process."""
    run: str | None
    """Name of the published weights to pull; None: there are none."""
    version: int | None = None
    """Version of the initial weights; with None it generates nothing before its first pull."""
    cpus: int = 1
    """Ray also makes it the number of OpenMP threads."""
    gpus: float = 0.0
    memory_bytes: int = PROCESS_BYTES

    def actor(self, remote_class: Any) -> Any:
        """Returns the Ray actor class with a replica's resources. Ray never restarts it: each replica is a new one."""
        return remote_class.options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )


def spec_of(
    params: SamplerParams,
    policy_folder: Path,
    run: str | None,
    gpus: float,
    version: int | None = None,
    prompt: PlainPrompt | ChatPrompt | None = None,
) -> ReplicaSpec:
    """Returns replicas of the sampler that `params` describes, with the policy of a folder that every node can read."""
    alone = params.model_copy(update={"replicas": None})
    cpus, memory = 1, PROCESS_BYTES
    match params:
        case TorchSamplerParams(threads=cpus, dtype=dtype):
            memory += _held_bytes(policy_folder, dtype)
        case VllmSamplerParams(tensor_parallel=cpus, dtype=dtype, kv_cache_gib=gib):
            memory += _held_bytes(policy_folder, dtype) + int(gib * (1 << 30))
    # On a GPU the weights are not in the node's memory.
    memory = PROCESS_BYTES if gpus else memory
    build = partial(build_replica_sampler, alone, policy_folder.absolute(), prompt)
    return ReplicaSpec(build, run, version, cpus, gpus, memory)


def _held_bytes(policy_folder: Path, dtype: str) -> int:
    """Bytes of a policy and of the files read while it loads. Weights are stored with at least 2 bytes per number."""
    stored = sum(path.stat().st_size for path in policy_folder.glob("*.safetensors"))
    return 2 * stored * STORED_BYTES[dtype] // 2


def build_replica_sampler(
    params: SamplerParams, policy_folder: Path, prompt: PlainPrompt | ChatPrompt | None = None
) -> Sampler:
    """Runs in the replica's process, which may be on another node."""
    if not policy_folder.is_dir():
        raise UserError(
            f"{policy_folder} is not on {this_host()}: the project must be on a file system that all nodes of the "
            "cluster share, under the same path"
        )
    return with_turns(build_sampler(params, policy_folder, None, prompt), prompt, policy_folder)


def gpus_each(params: SamplerParams, count: int, others: int, total: float) -> float:
    """Returns the GPUs of one of `count` replicas beside `others` processes: whole ones, or one shared by all."""
    if getattr(params, "device", "") == "cpu":
        return 0.0
    wanted = params.tensor_parallel if isinstance(params, VllmSamplerParams) else 1
    if total >= count * wanted + others:
        return float(wanted)
    if total and wanted > 1:
        raise UserError(
            f"{count} replicas of {wanted} GPUs and {others} more processes do not fit {total:.0f} GPUs: lower "
            "sampler.replicas.count or sampler.tensor_parallel"
        )
    return total / (count + others)


def check_room(spec: ReplicaSpec, count: int, nodes: Sequence[Mapping[str, Any]]) -> None:
    """UserError when `count` replicas do not fit the nodes (as `ray.nodes()` describes them)."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    # The memory that was free when Ray started there. Per node, because a replica cannot span two.
    memory = [resources.get("memory", 0.0) for resources in alive]
    fitting = sum(int(free // spec.memory_bytes) for free in memory)
    if fitting < count:
        raise UserError(
            f"{count} replicas do not fit: each needs about {spec.memory_bytes / (1 << 30):.1f} GiB of memory, and "
            f"{'the nodes have' if len(alive) > 1 else 'this machine has'} {sum(memory) / (1 << 30):.1f} GiB: lower "
            f"sampler.replicas.count to {fitting}" + (", or take a larger machine" if not fitting else "")
        )
    cpus = sum(int(resources.get("CPU", 0) // spec.cpus) for resources in alive)
    if cpus < count:
        raise UserError(
            f"{count} replicas of {spec.cpus} CPUs do not fit the cluster, which has room for {cpus}: lower "
            "sampler.replicas.count or sampler.threads, or add nodes"
        )
