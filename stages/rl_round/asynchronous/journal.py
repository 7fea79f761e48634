"""The journal of an asynchronous round: the events of each group, so that a killed hub can resume.

A journal is an append-only file: a chain of frames. A frame is a marker of 4 bytes, the payload's length (4), a CRC32
of length and payload (4), and the payload, UTF-8 JSON. The marker starts with a byte that UTF-8 never contains, so the
next whole frame after any damage can be located. That distinguishes a torn end from a hole in the middle. SQLite's
write-ahead log gives the same guarantee after a kill, but a flipped bit in it silently drops everything that follows.

Guarantee: data written by `flush` survive a kill -9 of the process at any moment, because the kernel has them. They do
not always survive a power cut or a kernel crash: only data before the last sync are certainly on disk. A
checkpoint is on disk; the journal has the events after it.

Records name groups by the number of their issue in the round, and members of a group by their sample number.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import mmap
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.episodes import episode_from_json, episode_to_json
from stages.engines.samplers.protocol import Sample, StopReason
from stages.foundations.errors import UserError
from stages.foundations.files import sync_folder
from stages.observe.progress import say

FILE = "records"
MARKER = b"\xffRJ1"
HEAD = struct.Struct("<4sII")
"""Marker, bytes of the payload, CRC32 of the length's four bytes and the payload."""
SYNC_BYTES = 16 * 2**20
"""Bytes after which the file is synced. Syncing every flush would make the hub wait for the disk each second."""


class Journal:
    """The one writer of a journal, which holds the folder's lock until it is closed; a context manager closes it.

    Opening cuts off a torn or damaged last record, with a warning. UserError when another process writes the journal,
    or where a record in the middle is damaged: nothing is skipped silently.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._path = folder, folder / FILE
        self._lock = _locked(folder)
        self._waiting: list[bytes] = []
        """Frames that no flush has written yet."""
        self._unsynced = 0
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._cut_torn_end()
        except BaseException:
            os.close(self._file)
            os.close(self._lock)
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record, which the next `flush` writes.

        TypeError or ValueError when JSON cannot represent it. Floats keep every bit.
        """
        # Encoded here and not in `flush`: an invalid record fails where it was made.
        payload = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
        length = struct.pack("<I", len(payload))
        # Including the length: a flipped bit in it would otherwise point into the middle of another record.
        checksum = zlib.crc32(payload, zlib.crc32(length))
        self._waiting.append(HEAD.pack(MARKER, len(payload), checksum) + payload)

    def flush(self) -> None:
        """Writes the added records: from then on a kill of this process does not lose them.

        UserError when the disk is full: all records flushed before stay readable, and the new ones wait for another
        `flush`.
        """
        before, content = os.fstat(self._file).st_size, memoryview(b"".join(self._waiting))
        self._unsynced += len(content)
        try:
            while content:
                # A nearly full disk takes a part of the content, without an error until the next call.
                content = content[os.write(self._file, content) :]
        except OSError as error:
            # Half a record must not precede the next one.
            os.ftruncate(self._file, before)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise UserError(
                f"the journal {self.folder} cannot be written: {error.strerror}. Free disk space and run again; "
                "no earlier record is lost, and the round resumes from there"
            ) from error
        self._waiting.clear()
        if self._unsynced >= SYNC_BYTES:
            os.fsync(self._file)
            self._unsynced = 0

    def records(self) -> Iterator[dict[str, Any]]:
        """Returns every record in the order of `append`; flushes first."""
        self.flush()
        end = 0
        for payload in self._payloads():
            yield json.loads(payload)
            end += HEAD.size + len(payload)
        if end < os.fstat(self._file).st_size:
            raise self._damaged(end)

    def clear(self) -> None:
        """Removes every record, once the outputs are written. A kill leaves all of them or none."""
        self._waiting.clear()
        # One call of the kernel, so a kill leaves all records or none.
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Flushes, syncs to survive a power cut, and lets another process write."""
        try:
            self.flush()
            os.fsync(self._file)
            # The folder too: the file's name is in it.
            sync_folder(self.folder)
        finally:
            os.close(self._file)
            os.close(self._lock)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _payloads(self) -> Iterator[bytes]:
        if not os.fstat(self._file).st_size:  # an empty file cannot be mapped
            return
        end = 0
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as content:
            while (payload := _payload_at(content, end)) is not None:
                yield payload
                end += HEAD.size + len(payload)

    def _cut_torn_end(self) -> None:
        """Shortens the file to its whole records. UserError when whole ones follow the damage."""
        size, end = os.fstat(self._file).st_size, sum(HEAD.size + len(payload) for payload in self._payloads())
        if end == size:
            return
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as content:
            later = end
            # A whole record after the damage: no kill causes that, so something else has changed the file.
            while (later := content.find(MARKER, later + 1)) >= 0:
                if _payload_at(content, later) is not None:
                    raise self._damaged(end)
        say(f"WARNING: {self._path} ends in a torn record: its last {size - end} bytes are cut off")
        os.ftruncate(self._file, end)

    def _damaged(self, offset: int) -> UserError:
        return UserError(
            f"{self._path} has a damaged record at byte {offset}, and records after it: the disk or another program "
            f"has changed it. Put the file back as it was, or remove the folder {self.folder}: the round then starts "
            "again"
        )


def _payload_at(content: mmap.mmap, start: int) -> bytes | None:
    """Returns the payload of the whole frame that starts there; None when there is none."""
    if start + HEAD.size > len(content):
        return None
    marker, length, checksum = HEAD.unpack_from(content, start)
    payload = content[start + HEAD.size : start + HEAD.size + length]
    # A damaged length may reach beyond the end: the slice is then too short.
    is_whole = marker == MARKER and len(payload) == length
    return payload if is_whole and checksum == zlib.crc32(payload, zlib.crc32(content[start + 4 : start + 8])) else None


def _locked(folder: Path) -> int:
    """Returns the open lock file. The kernel releases it when the process dies, however that happens."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UserError(
            f"another process writes the journal {folder}: wait until that round has ended, or end it"
        ) from None
    return lock


@dataclass(frozen=True, slots=True)
class Issued:
    """A group may be generated from now on."""

    group: int
    draw: int
    """How often the round had issued the problem before."""
    problem_id: str
    version: int
    """Version that was to generate it when it was issued."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Tokens of a response in progress."""

    group: int
    member: int
    start: int
    """Position of the first of these tokens in the response: with 0 the response has started (again) at its prompt."""
    version: int
    """Version that generated them."""
    token_ids: list[int]
    logprobs: list[float]
    observed: tuple[tuple[int, int], ...] = ()
    """The spans of the whole response so far, as in `PartialResponse`."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A response is complete and judged."""

    group: int
    member: int
    sample: Sample
    response: str
    verdict: Verdict
    custom: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """A response will never be complete: every attempt at it has failed."""

    group: int
    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """No step will train on the group."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trained:
    """A step trains on these groups, in this order. Written before the step starts, to repeat it after a crash."""

    step: int
    """From 1."""
    newest_version: int | None
    """The version that counts as fresh in this step: `Batch.newest_version`."""
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step is done, and its rollouts are on disk."""

    step: int
    """From 1."""
    row: dict[str, float]


@dataclass(frozen=True, slots=True)
class Fault:
    """A process died, hung or was replaced."""

    what: str
    """For instance `replica_died`."""
    details: Mapping[str, Any] = field(default_factory=dict)


Record = Issued | Partial | Finished | Failed | LeftOut | Trained | Stepped | Fault


_KINDS = {
    "issued": Issued,
    "partial": Partial,
    "finished": Finished,
    "failed": Failed,
    "left_out": LeftOut,
    "trained": Trained,
    "stepped": Stepped,
    "fault": Fault,
}
_NAMES = {record: kind for kind, record in _KINDS.items()}


def record_to_json(record: Record) -> dict[str, Any]:
    """Returns the record as JSON; `kind` names its class. Log-probs keep every bit."""
    stored = {"kind": _NAMES[type(record)]} | {name: getattr(record, name) for name in record.__slots__}
    match record:
        case Partial(logprobs=logprobs):
            stored["logprobs"] = pack_floats(logprobs)
        case Finished(sample=sample):
            packed = {"logprobs": pack_floats(sample.logprobs), "episode": episode_to_json(sample.episode)}
            stored["sample"] = {**vars(sample), **packed}
    return stored


def record_from_json(stored: Mapping[str, Any]) -> Record:
    """Returns the inverse of `record_to_json`. ValueError for an unknown kind."""
    values = dict(stored)
    match kind := values.pop("kind", None):
        case "partial":
            values["logprobs"] = unpack_floats(values["logprobs"])
            values["observed"] = tuple(map(tuple, values.get("observed", ())))
        case "finished":
            sample = values["sample"]
            stop, logprobs = StopReason(sample["stop_reason"]), unpack_floats(sample["logprobs"])
            episode = episode_from_json(sample.get("episode"))
            values["sample"] = Sample(sample["token_ids"], logprobs, stop, sample["policy_version"], episode)
            values["verdict"] = Verdict(values["verdict"])
        case "trained":
            values["groups"] = tuple(values["groups"])
    if kind not in _KINDS:
        raise ValueError(f"a journal has no records of kind {kind!r}")
    return _KINDS[kind](**values)


def pack_floats(values: Sequence[float]) -> str | list[float]:
    """Returns base64 of little-endian float32 if that keeps every bit (a sampler's log-probs: 5.3 bytes each instead of
    20), the numbers themselves if it does not."""
    # Where float32 represents them exactly, as with samplers; a number that it would round stays as JSON has it.
    single = array("f", values)
    if single.tolist() != list(values):
        return list(values)
    if sys.byteorder == "big":
        single.byteswap()
    return base64.b64encode(single.tobytes()).decode("ascii")


def unpack_floats(stored: str | Sequence[float]) -> list[float]:
    if not isinstance(stored, str):
        return list(stored)
    single = array("f", base64.b64decode(stored, validate=True))
    if sys.byteorder == "big":
        single.byteswap()
    return single.tolist()
