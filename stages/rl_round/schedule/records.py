"""What the journal of an asynchronous round holds: one record for each thing that happened to a group.

Groups are named by the number of their issue in the round, members of a group by their sample number.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.samples import Sample, StopReason


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
