"""A sampler that works in short turns: it takes orders, decodes for a while, and returns a report.

It holds one version of the weights at a time and changes it only while nothing is in flight, so no trajectory is
generated under two. It uses a version only after the probe in the manifest of that version agrees.

`Replica` does not know Ray; `ReplicaActor` runs in a replica's process. `Orders` and `Report` are plain values, so the
process that holds the fleet needs no torch. `ProbeCheck` checks every pull: on a fixed batch, the replica must compute
the log-probs that the trainer published. The batch and the trainer's log-probs are in the manifest of the version, so
a replica checks itself without another process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from stages.engines.relays.published_weights import PublishedWeights, VersionGone, weights_folder
from stages.engines.samplers.protocol import (
    Decoding,
    Load,
    PartialResponse,
    Sample,
    Sampler,
    SamplingSettings,
    Trajectory,
)
from stages.observe.quick_imports import quick_imports


class Replica:
    """One sampler and its trajectories in flight."""

    def __init__(self, build: Callable[[], Sampler], weights_folder: Path | None, version: int | None = None) -> None:
        """`build` makes the sampler, whose weights are `version`; with None it serves nothing until the first pull."""
        self.sampler = build()
        self.version = version
        self._weights = PublishedWeights(weights_folder) if weights_folder else None
        self._probe = ProbeCheck()
        self._settings: SamplingSettings | None = None
        self._decoding: Decoding | None = None
        self._names: set[Name] = set()
        self._clock = _Clock()

    def advance(self, orders: Orders) -> Report:
        """Carries out the orders, then decodes until there is something to report and `report_seconds` are over.

        Returns at once when nothing is in flight. RuntimeError for orders that contradict the trajectories in flight.
        """
        started_at = time.time()
        self._clock.spend("orders" if self._names else "idle")
        # Withdraws first: weights and settings change only with nothing in flight.
        withdrawn = self._withdraw(orders)
        pulled, pull_failed, gap = self._pull(orders)
        if orders.settings is not None and orders.settings != self._settings:
            self._set(orders.settings)
        withdrawn |= self._begin(orders, is_usable=pull_failed is None)
        self._clock.spend("orders")
        ended, steps = self._decode(orders.report_seconds, bool(orders.begin))
        return Report(
            version=self.version,
            ended=ended,
            new_tokens=self._decoding.new_tokens() if self._decoding else {},
            withdrawn=withdrawn,
            load=self._decoding.load if self._decoding else IDLE,
            decode_steps=steps,
            seconds=self._clock.taken(),
            pulled=pulled,
            pull_failed=pull_failed,
            probe_gap=gap,
            started_at=started_at,
            ended_at=time.time(),
        )

    def logprobs(self, prompts: list[list[int]], responses: list[list[int]]) -> list[list[float]]:
        return self.sampler.logprobs(prompts, responses)

    def close(self) -> None:
        """Ends the trajectories in flight and every process of the sampler."""
        self._close_decoding()
        self.sampler.close()

    def _withdraw(self, orders: Orders) -> dict[Name, PartialResponse]:
        if not orders.withdraw or self._decoding is None:
            return {}
        withdrawn = self._decoding.withdraw(orders.withdraw)
        self._names -= withdrawn.keys()
        return withdrawn

    def _pull(self, orders: Orders) -> tuple[int | None, str | None, float | None]:
        """Returns the loaded version, or why it was not loaded, and the probe's gap."""
        if orders.pull is None:
            return None, None, None
        try:
            return self._load(orders.pull)
        finally:
            self._clock.spend("pull")

    def _load(self, asked: int | str) -> tuple[int | None, str | None, float | None]:
        if self._weights is None:
            return None, "it has no folder to pull weights from", None
        if self._names:
            return None, f"{len(self._names)} trajectories are in flight under version {self.version}", None
        version = self._weights.newest() if asked == "newest" else int(asked)
        if version is None:
            return None, f"{self._weights.folder} has no version yet", None
        try:
            metadata, tensors = self._weights.load(version)
        except VersionGone as error:
            return None, str(error), None
        # A decoding belongs to the weights that it was opened with.
        self._close_decoding()
        # From here on the weights are no longer those of the previous version, even after an error.
        self.version = None
        self.sampler.load_weights(tensors, version)
        try:
            probe = Probe.from_metadata(metadata)
            gap = self._probe.gap(probe, self.sampler) if probe else None
        except SyncError as error:
            return None, str(error), None
        self.version = version
        return version, None, gap

    def _set(self, settings: SamplingSettings) -> None:
        if self._names:
            raise RuntimeError(f"settings cannot change while {len(self._names)} trajectories are in flight")
        self._close_decoding()
        self._settings = settings

    def _begin(self, orders: Orders, is_usable: bool) -> dict[Name, PartialResponse]:
        """Starts the ordered trajectories, or returns them untouched when the weights are not those that they need."""
        fits = orders.under is None or orders.under == self.version
        if not (is_usable and fits) or self.version is None:
            return {name: trajectory.begun for name, trajectory in orders.begin.items()}
        if orders.begin:
            if self._settings is None:
                raise RuntimeError("a replica needs settings before it can begin a trajectory")
            self._decoding = self._decoding or self.sampler.open(self._settings)
            self._decoding.admit(orders.begin)
            self._names |= orders.begin.keys()
        return {}

    def _decode(self, report_seconds: float, reads_prompts: bool) -> tuple[dict[Name, Sample], int]:
        ended: dict[Name, Sample] = {}
        steps = waits = 0
        deadline = time.monotonic() + report_seconds
        # At least one step: with 0 s until a report, no token would ever be generated.
        while self._decoding is not None and self._names and (steps + waits == 0 or time.monotonic() < deadline):
            before = self._decoding.load
            ended_now = self._decoding.step()
            self._names -= ended_now.keys()
            ended |= ended_now
            if before.waits_for_tools:
                waits += 1
                self._clock.spend("tools")
                continue
            steps += 1
            began = reads_prompts or self._decoding.load.waiting < before.waiting
            self._clock.spend("prefill" if began else "decode")
            reads_prompts = False
        return ended, steps

    def _close_decoding(self) -> None:
        if self._decoding is not None:
            self._decoding.close()
        self._decoding, self._names = None, set()


class _Clock:
    def __init__(self) -> None:
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._since = time.monotonic()

    def spend(self, activity: str) -> None:
        """Assigns all time since the last call to that activity."""
        now = time.monotonic()
        self._seconds[activity] = self._seconds.get(activity, 0.0) + now - self._since
        self._since = now

    def taken(self) -> dict[str, float]:
        """Returns seconds by activity, and starts again from zero."""
        seconds, self._seconds = self._seconds, dict.fromkeys(ACTIVITIES, 0.0)
        return seconds


class ReplicaActor:
    """A `Replica` that is built once, then called repeatedly; becomes a Ray actor in `fleet.py`.

    The constructor only keeps its arguments: Ray does not report the class of an exception from a constructor.
    """

    def __init__(self, build: Callable[[], Sampler], run: str | None, version: int | None) -> None:
        self._build, self._run, self._version = build, run, version

    def start(self) -> tuple[str, int]:
        """Builds the replica; returns the ids of the node and of the process."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        folder = None if self._run is None else weights_folder(self._run, node)
        # torch and transformers, which every sampler loads.
        with quick_imports():
            import stages.engines.policies.policy_folders  # noqa: F401

        self._replica = Replica(self._build, folder, self._version)
        return node, os.getpid()

    def advance(self, orders: Orders) -> Report:
        return self._replica.advance(orders)

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
        return self._replica.logprobs(prompts, responses)


Name = Hashable
"""Id of a trajectory; the caller chooses it."""
IDLE = Load(running=0, waiting=0, kv_tokens=0)
ACTIVITIES = ("pull", "prefill", "decode", "orders", "idle")
"""The activities of a replica. `prefill` is every step that begins a trajectory, including its first token;
`orders` is the time between two calls while trajectories are in flight; `idle` is all time without any. `tools` is a
sixth where it happened: all trajectories in flight wait for an environment, so that there is nothing to decode."""


@dataclass(frozen=True)
class Orders:
    """Instructions for a replica, carried out in the order of the fields before it continues to decode."""

    withdraw: tuple[Name, ...] = ()
    """Trajectories to stop early; names of ended ones are ignored."""
    pull: int | Literal["newest"] | None = None
    """Version of the weights to load. Only with nothing in flight: withdraw the rest first."""
    under: int | None = None
    """Version required by the started trajectories, because part of them was generated under it; None accepts any."""
    settings: SamplingSettings | None = None
    """Sampling settings from now on; None keeps them. Changes only with nothing in flight."""
    begin: Mapping[Name, Trajectory] = field(default_factory=dict)
    """Trajectories to start, with equal prompts side by side."""
    report_seconds: float = 1.0
    """Longest time until the report."""


@dataclass(frozen=True)
class Report:
    """Events in a replica since its last report."""

    version: int | None
    """Version of the weights in use; None until a pull whose probe agreed, and after one whose probe did not."""
    ended: dict[Name, Sample] = field(default_factory=dict)
    new_tokens: dict[Name, PartialResponse] = field(default_factory=dict)
    withdrawn: dict[Name, PartialResponse] = field(default_factory=dict)
    """All tokens of withdrawn trajectories, and of those that it was ordered to start and could not."""
    load: Load = IDLE
    decode_steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """By activity; they add up to the time since the last report."""
    pulled: int | None = None
    pull_failed: str | None = None
    """Why the requested version was not loaded."""
    probe_gap: float | None = None
    """Largest difference of a log-prob after a pull, between the trainer's published value and the replica's."""
    started_at: float = 0.0
    """Unix time in seconds when this call began; `seconds` also cover the time since the end of the previous call."""
    ended_at: float = 0.0


KEY = "probe"
SMALLEST_CHANGE = 1e-6
"""If the trainer's log-probs change by less than this, a sampler without any change is not suspicious."""


class AnswersLogprobs(Protocol):
    """The part of a sampler that the probe uses."""

    policy_version: int

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `stages.engines.samplers.protocol.Sampler`."""


class SyncError(RuntimeError):
    """Sampler and trainer hold different weights."""


@dataclass(frozen=True)
class Probe:
    """A fixed batch of responses and the trainer's log-probs of them under one version."""

    prompts: list[list[int]]
    responses: list[list[int]]
    logprobs: list[float]
    """For every response token, one response after another; JSON keeps floats exactly."""
    max_logprob_gap: float | None
    """Largest difference allowed; None only measures."""

    def to_metadata(self) -> dict[str, Any]:
        """Returns metadata for `PublishedWeights.publish`."""
        return {KEY: asdict(self)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Probe | None:
        """Reads the result of `to_metadata`; None where the writer added no probe."""
        return cls(**metadata[KEY]) if KEY in metadata else None


class ProbeCheck:
    """Compares a sampler with the trainer after each sync, and remembers the last log-probs of both.

    A sampler with stale weights, or with one stale tensor (a tied head that was packed before), answers as fluently as
    a fresh one. Only this comparison detects it.
    """

    def __init__(self) -> None:
        self._published: list[float] = []
        self._answered: list[float] = []

    def gap(self, probe: Probe, sampler: AnswersLogprobs) -> float:
        """Returns the largest difference of a log-prob; SyncError when it is too large or the sampler did not change.

        Without a bound the difference is only measured: a sampler that differs on purpose may well not change.
        """
        answered = [value for row in sampler.logprobs(probe.prompts, probe.responses) for value in row]
        gap = largest_gap(answered, probe.logprobs)
        # Compared exactly: weights that did not arrive give identical numbers.
        stood_still = bool(self._answered) and answered == self._answered
        moved = largest_gap(probe.logprobs, self._published) if self._published else 0.0
        if probe.max_logprob_gap is not None:
            # `not <=` instead of `>`: NaN must not count as agreement.
            if not gap <= probe.max_logprob_gap:
                raise SyncError(
                    f"after the sync to version {sampler.policy_version} a token's log-prob differs by {gap:.2e} "
                    f"between sampler and trainer (allowed: rl.weight_sync_check.max_logprob_gap "
                    f"{probe.max_logprob_gap:.0e}). The sampler does not hold the trainer's weights, or runs at a "
                    "precision that the bound is too tight for"
                )
            # A small learning rate moves log-probs by less than any bound: only unchanged numbers reveal a lost sync.
            if stood_still and moved > SMALLEST_CHANGE:
                raise SyncError(
                    f"the trainer's log-probs moved by {moved:.2e} and the sampler's not at all: the sync to version "
                    f"{sampler.policy_version} did not reach the sampler"
                )
        self._published, self._answered = probe.logprobs, answered
        return gap


def largest_gap(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the largest absolute difference; NaN if there is one, infinity if the sides differ in length."""
    if len(first) != len(second):
        return math.inf
    gaps = [abs(a - b) for a, b in zip(first, second, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps, default=0.0)
