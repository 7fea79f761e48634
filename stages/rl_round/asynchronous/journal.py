"""The journal of an asynchronous round: what happened to each group, so that a hub which was killed can go on.

A journal is append-only: a folder of segments, each a chain of frames. A frame is a marker of 4 bytes, the payload's
length (4), a CRC32 of length and payload (4), and the payload, UTF-8 JSON. The marker starts with a byte that UTF-8
never holds, so behind any damage the next whole frame can be found: that is how a torn end is told from a hole in the
middle.

Promised: what `flush` has written outlives a kill -9 of the process at any moment, because the kernel has it. It does
not always outlive a power cut or a kernel that stops: only whole segments and a journal that was closed are on disk for
sure. A checkpoint is; the journal holds what came after it.

Records name groups by the number of their issue in the round, and members of a group by their sample number.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Sample, StopReason
from stages.foundations.errors import UserError
from stages.foundations.files import sync_folder
from stages.observe.progress import say

MARKER = b"\xffRJ1"
HEAD = struct.Struct("<4sII")
"""Marker, bytes of the payload, CRC32 of the length's four bytes and the payload."""
SEGMENT_BYTES = 16 * 2**20
"""A segment that has reached this size is closed, and is on disk for sure."""
FIRST = 1
"""Number of the segment that a journal begins with."""


class Journal:
    """The one writer of a journal, which holds the folder's lock until it is closed; a context manager closes it.

    Opening cuts off a torn or damaged last record, with a warning. UserError where another process writes the journal,
    or where a record in the middle is damaged: nothing is skipped in silence.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._segment_bytes = folder, segment_bytes
        self._lock = _locked(folder)
        self._waiting: list[bytes] = []
        """Frames that no flush has written yet."""
        self._file: int | None = None
        try:
            _finish_clearing(folder)
            _refuse_gaps(folder)
            _cut_torn_end(folder)
        except BaseException:
            os.close(self._lock)
            raise
        self._segment = max(_segments(folder), default=FIRST)
        """Number of the segment that the next record goes to."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Takes a record down, to be written by the next `flush`.

        TypeError or ValueError where JSON cannot hold it. Floats keep every bit.
        """
        payload = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
        self._waiting.append(_frame(payload))

    def flush(self) -> None:
        """Writes what was appended: from then on a kill of this process does not lose it.

        UserError when the disk is full: all that was flushed before stays readable, and the records wait for another
        `flush`.
        """
        if not self._waiting:
            return
        file = self._open()
        before = os.fstat(file).st_size
        try:
            _write_all(file, b"".join(self._waiting))
        except OSError as error:
            os.ftruncate(file, before)  # half a record must not lie before the next one
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise UserError(
                f"the journal {self.folder} cannot be written: {error.strerror}. Free disk space and run again; "
                "nothing that was written before is lost, and the round goes on from it"
            ) from error
        self._waiting.clear()
        if os.fstat(file).st_size >= self._segment_bytes:
            self._close_segment()
            self._segment += 1

    def records(self) -> Iterator[dict[str, Any]]:
        """Every record in the order of `append`; flushes first."""
        self.flush()
        for path in _segments(self.folder).values():
            content = path.read_bytes()
            payloads, end = _payloads(content)
            if end < len(content):
                raise _damaged(path, end)
            yield from map(json.loads, payloads)

    def clear(self) -> None:
        """Removes every record: the outputs are written. A kill in the middle leaves none that counts."""
        self._waiting.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None
        _remove_segments(self.folder)

    def close(self) -> None:
        """Flushes, makes it last through a power cut, and lets another process write."""
        try:
            self.flush()
            if self._file is not None:
                self._close_segment()
        finally:
            if self._file is not None:
                os.close(self._file)
                self._file = None
            os.close(self._lock)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> int:
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(_path(self.folder, self._segment), flags, 0o644)
        return self._file

    def _close_segment(self) -> None:
        os.fsync(self._file)
        os.close(self._file)
        self._file = None
        sync_folder(self.folder)


def _frame(payload: bytes) -> bytes:
    length = struct.pack("<I", len(payload))
    return HEAD.pack(MARKER, len(payload), zlib.crc32(payload, zlib.crc32(length))) + payload


def _payload_at(content: bytes, start: int) -> bytes | None:
    """The payload of the whole frame that starts there; None where there is none."""
    if start + HEAD.size > len(content):
        return None
    marker, length, checksum = HEAD.unpack_from(content, start)
    payload = content[start + HEAD.size : start + HEAD.size + length]
    is_whole = marker == MARKER and len(payload) == length
    return payload if is_whole and checksum == zlib.crc32(payload, zlib.crc32(content[start + 4 : start + 8])) else None


def _payloads(content: bytes) -> tuple[list[bytes], int]:
    """The payloads of the whole frames at the beginning, and where the last of them ends."""
    found, end = [], 0
    while (payload := _payload_at(content, end)) is not None:
        found.append(payload)
        end += HEAD.size + len(payload)
    return found, end


def _cut_torn_end(folder: Path) -> None:
    """Shortens the last segment to its whole records. UserError where whole ones lie behind what would be cut."""
    segments = _segments(folder)
    if not segments:
        return
    path = segments[max(segments)]
    content = path.read_bytes()
    _, end = _payloads(content)
    if end == len(content):
        return
    later = end
    while (later := content.find(MARKER, later + 1)) >= 0:
        if _payload_at(content, later) is not None:
            raise _damaged(path, end)
    say(f"WARNING: {path} ends in a torn record: its last {len(content) - end} bytes are cut off")
    with open(path, "r+b") as file:
        file.truncate(end)


def _damaged(path: Path, offset: int) -> UserError:
    return UserError(
        f"{path} has a damaged record at byte {offset}, and records after it: the disk or another program has changed "
        f"it. Put the file back as it was, or remove the folder {path.parent}: the round then starts again"
    )


def _remove_segments(folder: Path) -> None:
    for path in _segments(folder).values():  # the first one first: without it the others say nothing
        path.unlink()


def _finish_clearing(folder: Path) -> None:
    """Removes what is left of a journal that has no beginning: a kill came while it was cleared."""
    if _segments(folder) and FIRST not in _segments(folder):
        say(f"{folder} has lost its beginning: its round had ended and was clearing up; the rest is removed")
        _remove_segments(folder)


def _refuse_gaps(folder: Path) -> None:
    numbers = list(_segments(folder))
    for one, following in pairwise(numbers):
        if following != one + 1:
            raise UserError(
                f"{_path(folder, one + 1)} is missing, and a later part of the journal is there. Put the file back, "
                f"or remove the folder {folder}: the round then starts again"
            )


def _segments(folder: Path) -> dict[int, Path]:
    """The segments by number, oldest first."""
    found = {int(path.stem): path for path in folder.glob("*.segment")}
    return dict(sorted(found.items()))


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:09d}.segment"


def _write_all(file: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


def _locked(folder: Path) -> int:
    """The open lock file. The kernel lets go of it when the process dies, however that happens."""
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
    """A group may be drawn from now on."""

    group: int
    draw: int
    """How often the round had drawn the problem before."""
    problem_id: str
    version: int
    """Of the weights that were to draw it when it was issued."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Tokens of a response that is still being drawn."""

    group: int
    member: int
    start: int
    """Position of the first of these tokens in the response: with 0 the response has begun (again) at its prompt."""
    version: int
    """Of the weights that drew them."""
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Finished:
    """A response is whole and judged."""

    group: int
    member: int
    attempt: int
    sample: Sample
    response: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Failed:
    """A response will never be whole: every attempt at it has failed."""

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
    """A step trains on these groups, in this order. Written before the step begins: what to repeat after a crash."""

    step: int
    """From 1."""
    newest_version: int | None
    """What the step takes for fresh: `Batch.newest_version`."""
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step is done, and its rollouts are on the disk."""

    step: int
    """From 1."""
    row: dict[str, float]
    """Of the round's curve."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something died, hung or was replaced."""

    what: str
    """`replica_died`, for instance."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Anything that JSON can hold."""


Record = Issued | Partial | Finished | Failed | LeftOut | Trained | Stepped | Fault


def record_to_json(record: Record) -> dict[str, Any]:
    """The record as JSON can hold it; the word under `kind` says which it is. Log-probs keep every bit."""
    match record:
        case Issued():
            return {"kind": "issued", **_fields(record)}
        case Partial():
            return {"kind": "partial", **_fields(record), "logprobs": pack_floats(record.logprobs)}
        case Finished(sample=sample):
            return {
                "kind": "finished",
                "group": record.group,
                "member": record.member,
                "attempt": record.attempt,
                "token_ids": sample.token_ids,
                "logprobs": pack_floats(sample.logprobs),
                "stop_reason": sample.stop_reason.value,
                "version": sample.policy_version,
                "response": record.response,
                "verdict": record.verdict.value,
            }
        case Failed():
            return {"kind": "failed", **_fields(record)}
        case LeftOut():
            return {"kind": "left_out", **_fields(record)}
        case Trained():
            return {"kind": "trained", **_fields(record), "groups": list(record.groups)}
        case Stepped():
            return {"kind": "stepped", **_fields(record)}
        case Fault():
            return {"kind": "fault", "what": record.what, "details": dict(record.details)}


def record_from_json(stored: Mapping[str, Any]) -> Record:
    """The inverse of `record_to_json`. ValueError for a kind that is not known."""
    values = dict(stored)
    match values.pop("kind", None):
        case "issued":
            return Issued(**values)
        case "partial":
            return Partial(**{**values, "logprobs": unpack_floats(values["logprobs"])})
        case "finished":
            sample = Sample(
                values["token_ids"],
                unpack_floats(values["logprobs"]),
                StopReason(values["stop_reason"]),
                values["version"],
            )
            named = values["group"], values["member"], values["attempt"]
            return Finished(*named, sample, values["response"], Verdict(values["verdict"]))
        case "failed":
            return Failed(**values)
        case "left_out":
            return LeftOut(**values)
        case "trained":
            return Trained(**{**values, "groups": tuple(values["groups"])})
        case "stepped":
            return Stepped(**values)
        case "fault":
            return Fault(**values)
        case unknown:
            raise ValueError(f"a journal has no records of kind {unknown!r}")


def pack_floats(values: Sequence[float]) -> str | list[float]:
    """Base64 of little-endian float32 where that keeps every bit (a sampler's log-probs: 5.3 bytes each instead of
    20), the numbers themselves where it does not."""
    single = array("f", values)
    if single.tolist() != list(values):
        return list(values)
    if sys.byteorder == "big":
        single.byteswap()
    return base64.b64encode(single.tobytes()).decode("ascii")


def unpack_floats(stored: str | Sequence[float]) -> list[float]:
    """The inverse of `pack_floats`."""
    if not isinstance(stored, str):
        return list(stored)
    single = array("f", base64.b64decode(stored, validate=True))
    if sys.byteorder == "big":
        single.byteswap()
    return single.tolist()


def _fields(record: Issued | Partial | Failed | LeftOut | Trained) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
