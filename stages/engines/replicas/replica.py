"""A sampler that works in short turns: orders in, some decoding, a report out.

It holds one version of the weights at a time and takes another only while nothing is in flight, so no trajectory is
drawn under two. A version counts as its own after the probe in the version's manifest agrees, not before. There is no
Ray in here: `fleet.py` puts it into an actor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from stages.engines.relays.published_weights import PublishedWeights, VersionGone
from stages.engines.replicas.messages import ACTIVITIES, IDLE, Name, Orders, Report
from stages.engines.replicas.probe import Probe, ProbeCheck, ProbeError
from stages.engines.samplers.protocol import Decoding, Sampler, SamplingSettings
from stages.engines.samplers.samples import Begun, Sample


class Replica:
    """One sampler and what is in flight in it."""

    def __init__(
        self, build: Callable[[], Sampler], weights_folder: Path | None, version: int | None = None
    ) -> None:
        """`build` makes the sampler, whose weights are `version`; None serves nothing until the first pull."""
        self.sampler = build()
        self.version = version
        self._weights = PublishedWeights(weights_folder) if weights_folder else None
        self._probe = ProbeCheck()
        self._settings: SamplingSettings | None = None
        self._decoding: Decoding | None = None
        self._names: set[Name] = set()
        """Of what is in flight."""
        self._clock = _Clock()

    def advance(self, orders: Orders) -> Report:
        """Carries out the orders, then decodes until there is something to report and `report_seconds` are over.

        Returns at once when nothing is in flight. RuntimeError for orders that contradict what is in flight.
        """
        started_at = time.time()
        self._clock.spend("orders" if self._names else "idle")
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
            lateness=getattr(self.sampler, "lateness", None),
            started_at=started_at,
            ended_at=time.time(),
        )

    def logprobs(self, prompts: list[list[int]], responses: list[list[int]]) -> list[list[float]]:
        """See `stages.engines.samplers.protocol.Sampler`."""
        return self.sampler.logprobs(prompts, responses)

    def close(self) -> None:
        """Ends what is in flight and every process of the sampler."""
        self._close_decoding()
        self.sampler.close()

    def _withdraw(self, orders: Orders) -> dict[Name, Begun]:
        if not orders.withdraw or self._decoding is None:
            return {}
        withdrawn = self._decoding.withdraw(orders.withdraw)
        self._names -= withdrawn.keys()
        return withdrawn

    def _pull(self, orders: Orders) -> tuple[int | None, str | None, float | None]:
        """Version taken in, else why not, and the probe's gap."""
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
        self._close_decoding()
        # Whatever happens from here on, the weights are no longer those of the version before.
        self.version = None
        self.sampler.load_weights(tensors, version)
        try:
            probe = Probe.from_metadata(metadata)
            gap = self._probe.gap(probe, self.sampler) if probe else None
        except ProbeError as error:
            return None, f"version {version} does not pass its probe: {error}", None
        self.version = version
        return version, None, gap

    def _set(self, settings: SamplingSettings) -> None:
        if self._names:
            raise RuntimeError(f"settings cannot change while {len(self._names)} trajectories are in flight")
        self._close_decoding()
        self._settings = settings

    def _begin(self, orders: Orders, is_usable: bool) -> dict[Name, Begun]:
        """Begins what was ordered, or gives it back untouched when the weights are not those that it needs."""
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
        steps = 0
        deadline = time.monotonic() + report_seconds
        while self._decoding is not None and self._names and (steps == 0 or time.monotonic() < deadline):
            waiting = self._decoding.load.waiting
            ended_now = self._decoding.step()
            self._names -= ended_now.keys()
            ended |= ended_now
            steps += 1
            began = reads_prompts or self._decoding.load.waiting < waiting
            self._clock.spend("prefill" if began else "decode")
            reads_prompts = False
        return ended, steps

    def _close_decoding(self) -> None:
        if self._decoding is not None:
            self._decoding.close()
        self._decoding, self._names = None, set()


class _Clock:
    """Where the time has gone since it was last asked."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._since = time.monotonic()

    def spend(self, activity: str) -> None:
        """All time since the last call was that."""
        now = time.monotonic()
        self._seconds[activity] += now - self._since
        self._since = now

    def taken(self) -> dict[str, float]:
        """Seconds by activity, from zero again."""
        seconds, self._seconds = self._seconds, dict.fromkeys(ACTIVITIES, 0.0)
        return seconds
