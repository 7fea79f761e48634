"""One relay per node: it brings each version of the weights from the trainer's node into the memory of its node.

Relays form a chain that begins on the trainer's node. Each relay asks the one before it for chunks. A relay passes on
its chunks while it still receives the rest, so a version takes little longer for many nodes than for one.
Every chunk is checked. A damaged chunk is requested again; a silent relay is skipped for the one before it.

A relay holds only files, no tensors: after a kill and restart it reads its folder again.

`Relay` runs on each node. `RelayChain` runs in the process that announces new versions to all relays. It never waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.engines.relays.guards import CLAIM
from stages.engines.relays.published_weights import (
    MANIFEST,
    Manifest,
    PublishedWeights,
    VersionGone,
    read_chunk,
    require_room,
    set_aside,
    weights_folder,
)
from stages.foundations.errors import UserError
from stages.observe.progress import say

SILENT_SECONDS = 10.0
"""Without a chunk from a relay for this long, the one before it is asked."""
NOT_YET_SECONDS = 0.02
"""Time until a chunk is requested again that the relay before has not received either."""
AHEAD = 2
"""Chunks requested at once: one travels while the other is written."""
RELAY_THREADS = 5
"""Threads of a relay: one fetches, the others serve its chunks."""
DAMAGED_CHUNKS = 3
"""After so many damaged chunks from one relay, the one before it is asked."""
GUARD = "stages.engines.relays.guards"


class NobodyAnswers(ConnectionError):
    """No relay of the chain gave the version."""


@dataclass(frozen=True)
class Fetched:
    """Statistics of a version's transfer to a node."""

    version: int
    digest: str
    bytes: int = 0
    """0 when the version was there already."""
    seconds: float = 0.0
    damaged: int = 0
    """Chunks that had to be requested again."""
    passed_over: int = 0
    """Relays that were silent."""


@dataclass
class _Partial:
    manifest: Manifest
    folder: Path
    here: set[tuple[int, int]] = field(default_factory=set)


class Relay:
    """Becomes a Ray actor in `start_relay`; its methods run in several threads, so it serves while it receives."""

    def __init__(self, node: str, run: str, keep: int, has_guard: bool) -> None:
        """With `has_guard` a process removes the folder some seconds after no relay uses it any more."""
        self.weights = PublishedWeights(weights_folder(run, node))
        self.keep = keep
        self._partial: _Partial | None = None
        self._claim = _claimed(self.weights.folder)
        if has_guard:
            subprocess.run([sys.executable, "-P", "-m", GUARD, "folder", str(self.weights.folder)], check=True)

    def have(self) -> dict[int, str]:
        """Returns the digest of each version that is complete here."""
        digests: dict[int, str] = {}
        for version in self.weights.versions():
            # A version may be removed after it was listed.
            with contextlib.suppress(VersionGone):
                digests[version] = self.weights.manifest(version).digest
        return digests

    def process(self) -> int:
        """Returns the number of its process."""
        return os.getpid()

    def manifest(self, version: int) -> bytes | None:
        """Returns the manifest of a version that is here or arriving; None otherwise."""
        # Read once: `fetch`, in another thread, may end meanwhile and remove it.
        partial = self._partial
        if partial and partial.manifest.version == version:
            return partial.manifest.to_bytes()
        try:
            return self.weights.manifest(version).to_bytes()
        except VersionGone:
            return None

    def chunk(self, version: int, digest: str, place: tuple[int, int]) -> bytes | None:
        """Returns a chunk of a version; None when it is not here, or not yet."""
        partial = self._partial
        try:
            if partial and partial.manifest.version == version and place in partial.here:
                manifest, folder = partial.manifest, partial.folder
            else:
                manifest, folder = self.weights.manifest(version), self.weights.place(version)
            # Another policy under the same number, from before the trainer resumed.
            if manifest.digest != digest:
                return None
            return read_chunk(folder / manifest.files[place[0]].name, place[1], manifest.chunk_bytes)
        except (VersionGone, FileNotFoundError):
            return None

    def fetch(self, version: int, chain: Sequence[Any]) -> Fetched:
        """Fetches a version from the relays of `chain`, the nearest first and the trainer's node last.

        An empty chain means the trainer's node itself. Versions older than the newest `keep` are removed. NobodyAnswers
        and VersionGone when no relay has the version; UserError when the memory here is full.
        """
        if chain:
            fetched = self._receive(version, chain)
        else:
            fetched = Fetched(version, self.weights.manifest(version).digest)
        self.weights.prune(self.keep)
        return fetched

    def _receive(self, version: int, chain: Sequence[Any]) -> Fetched:
        started = time.monotonic()
        manifest = _manifest_from(version, chain)
        if self.have().get(version) == manifest.digest:
            return Fetched(version, manifest.digest)
        size = sum(file.size for file in manifest.files)
        # Before the memory check, and again after the fetch: this version is one more.
        self.weights.prune(self.keep)
        require_room(self.weights.folder, size)
        beside = self.weights.beside(version)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        try:
            # All files at once, so that a full memory is an error before any chunk is sent.
            for file in manifest.files:
                set_aside(beside / file.name, file.size)
            self._partial = partial = _Partial(manifest, beside)
            source = _Source(manifest, chain)
            for place, content in source.chunks():
                _write_chunk(beside, manifest, place, content)
                partial.here.add(place)
            # The manifest last: a folder without one is not a version.
            (beside / MANIFEST).write_bytes(manifest.to_bytes())
            self.weights.put_in_place(beside, manifest)
        finally:
            self._partial = None
            shutil.rmtree(beside, ignore_errors=True)
        seconds = time.monotonic() - started
        return Fetched(version, manifest.digest, size, seconds, source.damaged, source.passed_over)


def start_relay(node: str, run: str, keep: int, has_guard: bool, kind: type[Relay] = Relay) -> Any:
    """Starts a relay as an actor on a node; Ray restarts it when it dies."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # No CPU: a relay only waits and copies. With one thread it could not pass chunks on until its fetch is over.
    relay = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=RELAY_THREADS)(kind)
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return relay.options(scheduling_strategy=here).remote(node, run, keep, has_guard)


class _Source:
    """The chunks of a version, from any relay of the chain that gives them."""

    def __init__(self, manifest: Manifest, chain: Sequence[Any]) -> None:
        self.manifest, self.chain = manifest, deque(chain)
        self.damaged = self.passed_over = 0
        self._damaged_here = 0
        self._is_new = False
        """The relay has just replaced another one."""
        self._heard_at = time.monotonic()

    def chunks(self) -> Iterator[tuple[tuple[int, int], bytes]]:
        """Yields place and content of every chunk, each once, as they arrive."""
        missing = deque(self.manifest.chunks)
        asked: deque[tuple[tuple[int, int], Any]] = deque()
        while missing or asked:
            while missing and len(asked) < AHEAD:
                place = missing.popleft()
                asked.append((place, self._ask(place)))
            place, answer = asked.popleft()
            content = self._content(place, answer)
            if content is not None:
                yield place, content
                continue
            # First again: the relay after this one requests the chunks in order.
            missing.appendleft(place)
            if self._is_new:
                # The new relay gets all requests that the old one had not answered.
                missing.extendleft(waiting for waiting, _ in asked)
                asked.clear()
                self._is_new = False

    def _ask(self, place: tuple[int, int]) -> Any:
        return self.chain[0].chunk.remote(self.manifest.version, self.manifest.digest, place)

    def _content(self, place: tuple[int, int], answer: Any) -> bytes | None:
        import ray

        try:
            content = ray.get(answer, timeout=SILENT_SECONDS)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError, ray.exceptions.OwnerDiedError):
            self._pass_over()
            return None
        if content is None:
            # The relay answers, but has not received this chunk. After too long, it counts as silent too.
            if time.monotonic() - self._heard_at > SILENT_SECONDS:
                self._pass_over()
            time.sleep(NOT_YET_SECONDS)
            return None
        if zlib.crc32(content) != self.manifest.files[place[0]].checksums[place[1]]:
            self.damaged += 1
            self._damaged_here += 1
            if self._damaged_here >= DAMAGED_CHUNKS:
                self._pass_over()
            return None
        self._heard_at = time.monotonic()
        return content

    def _pass_over(self) -> None:
        # The last one is on the trainer's node, where the version comes from.
        if len(self.chain) == 1:
            raise NobodyAnswers(f"no relay gives version {self.manifest.version}")
        self.chain.popleft()
        self.passed_over += 1
        self._is_new = True
        self._damaged_here = 0
        self._heard_at = time.monotonic()


def _manifest_from(version: int, chain: Sequence[Any]) -> Manifest:
    """Returns the manifest from the trainer's node, which has it first, or from another relay that has it."""
    import ray

    for relay in reversed(chain):
        # A relay that is gone or hangs: the next one may have it.
        with contextlib.suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            content = ray.get(relay.manifest.remote(version), timeout=SILENT_SECONDS)
            if content is not None:
                return Manifest.from_bytes(content)
    raise NobodyAnswers(f"no relay has version {version}")


def _write_chunk(folder: Path, manifest: Manifest, place: tuple[int, int], content: bytes) -> None:
    # r+: the file already has its full size, and chunks may arrive in any order.
    with open(folder / manifest.files[place[0]].name, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), content, place[1] * manifest.chunk_bytes)


def _claimed(folder: Path) -> int:
    """Locks the folder for as long as this process lives."""
    claim = os.open(folder / CLAIM, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(claim, fcntl.LOCK_SH)
    return claim


BEAT_SECONDS = 1.0
"""Interval at which a relay is queried for its versions."""
AGAIN_SECONDS = 0.5
"""Wait after a fetch that failed."""
START_SECONDS = 300.0


@dataclass(frozen=True)
class Arrived:
    """A version is on a node, or could not be brought there now (this is tried again)."""

    node: str
    fetched: Fetched | None
    failed: str | None = None


@dataclass
class _RelaySlot:
    actor: Any
    heard_at: float = field(default_factory=time.monotonic)
    is_up: bool = False
    have: dict[int, str] = field(default_factory=dict)
    beat: Any = None
    fetch: Any = None
    done: int = -1
    """The newest requested version that the node has."""
    again_at: float = 0.0


class RelayChain:
    """One relay on each requested node; the trainer's node comes first."""

    def __init__(self, run: str, keep: int, stalled_seconds: float, has_guards: bool) -> None:
        """Requires a running Ray. `has_guards` is for a cluster whose nodes outlive the session."""
        import ray

        self._ray, self._of_relays = ray, (run, keep, has_guards)
        self.stalled_seconds = stalled_seconds
        self._announced = -1
        self._slots: dict[str, _RelaySlot] = {}
        """By Ray's node id, in the order of the chain."""

    def ensure(self, nodes: Iterable[str]) -> None:
        """Starts a relay on each of these nodes that has none; the first node of the first call is the trainer's."""
        for node in nodes:
            if node not in self._slots:
                self._slots[node] = _RelaySlot(start_relay(node, *self._of_relays))

    def announce(self, version: int) -> None:
        """Announces a version on the trainer's node, for all others to fetch. Returns at once."""
        self._announced = max(self._announced, version)
        self.poll()

    def poll(self) -> list[Arrived]:
        """Returns the arrivals since the last call; repeats failed fetches, restarts hung relays. Returns at once."""
        arrived: list[Arrived] = []
        for node, slot in list(self._slots.items()):
            self._listen(node, slot)
            arrived += self._collect(node, slot)
        now = time.monotonic()
        for position, slot in enumerate(self._slots.values()):
            if slot.is_up and slot.fetch is None and now >= slot.again_at and self._lacks_newest(slot):
                # The nearest first, the trainer's node last.
                before = [other.actor for other in list(self._slots.values())[:position]]
                slot.fetch = slot.actor.fetch.remote(self._announced, before[::-1])
        return arrived

    @property
    def have(self) -> dict[str, list[int]]:
        """Returns the versions by node, as last reported."""
        return {node: sorted(slot.have) for node, slot in self._slots.items()}

    def close(self) -> None:
        """Ends the relays; the files stay for the guards."""
        for slot in self._slots.values():
            self._ray.kill(slot.actor)
        self._slots.clear()

    def _listen(self, node: str, slot: _RelaySlot) -> None:
        """A relay that answers is alive. Ray restarts a dead one; one that hangs is killed so that Ray restarts it."""
        now = time.monotonic()
        if slot.beat is None:
            if now - slot.heard_at >= (BEAT_SECONDS if slot.is_up else 0.0):
                slot.beat, slot.heard_at = slot.actor.have.remote(), now
            return
        if not self._is_over(slot.beat):
            if now - slot.heard_at > (self.stalled_seconds if slot.is_up else START_SECONDS):
                # A stopped process keeps its lock and its actor: only after a kill does Ray start another.
                say(f"the relay on node {node[:8]} does not answer; it is restarted")
                self._ray.kill(slot.actor, no_restart=False)
                slot.beat, slot.heard_at, slot.is_up = None, now, False
            return
        beat, slot.beat, slot.heard_at = slot.beat, None, now
        try:
            slot.have, slot.is_up = self._ray.get(beat), True
        except self._ray.exceptions.RayActorError:
            slot.is_up = False
            # Ray restarts the relay of a living node without help.
            if not self._is_alive(node):
                del self._slots[node]

    def _collect(self, node: str, slot: _RelaySlot) -> list[Arrived]:
        if slot.fetch is None or not self._is_over(slot.fetch):
            return []
        fetch, slot.fetch = slot.fetch, None
        try:
            fetched = self._ray.get(fetch)
        except UserError as error:
            raise UserError(f"node {node[:8]}: {getattr(error, 'cause', error)}") from error
        except self._ray.exceptions.RayError as error:
            slot.again_at = time.monotonic() + AGAIN_SECONDS
            return [Arrived(node, None, str(error).strip().splitlines()[-1][:200])]
        slot.done = fetched.version
        slot.have[fetched.version] = fetched.digest
        return [Arrived(node, fetched)]

    def _lacks_newest(self, slot: _RelaySlot) -> bool:
        """True also when it has another policy under that number, from before the trainer returned to a checkpoint."""
        newest = self._announced
        if newest < 0 or slot.done < newest:
            return newest >= 0
        first = next(iter(self._slots.values()))
        return newest in first.have and first.have[newest] != slot.have.get(newest)

    def _is_over(self, ref: Any) -> bool:
        return bool(self._ray.wait([ref], timeout=0)[0])

    def _is_alive(self, node: str) -> bool:
        return any(one["NodeID"] == node and one["Alive"] for one in self._ray.nodes())
