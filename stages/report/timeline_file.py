"""Reads `timeline.json` of an asynchronous round: Trace Event Format, with exact shares under `otherData`."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError


@dataclass(frozen=True)
class Span:
    """What a process did, in seconds since the round's start."""

    activity: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """A round's timeline as it was written."""

    wall_seconds: float
    bubble: float
    shares: dict[str, dict[str, float]]
    """Of each process: `busy` and the reasons to be idle; they sum to 1."""
    spans: dict[str, list[Span]]
    marks: dict[str, list[tuple[str, float]]]
    """Name of an instant -> where and when."""
    counts: dict[str, int]
    """Instants by name, those that are not kept one by one too."""


def read_timeline(path: Path) -> Timeline | None:
    """None where the round has none; UserError where the file is no timeline."""
    if not path.exists():
        return None
    try:
        return _parsed(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a timeline ({type(error).__name__}: {error}): delete it and run `dvc repro`"
        ) from None


def _parsed(trace: Mapping[str, Any]) -> Timeline:
    other, names = trace["otherData"], {}
    spans: dict[str, list[Span]] = defaultdict(list)
    marks: dict[str, list[tuple[str, float]]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = str(event["args"]["name"])
    for event in trace["traceEvents"]:
        match event["ph"]:
            case "X":
                start = _number(event["ts"]) / 1e6
                end = start + _number(event["dur"]) / 1e6
                spans[names[event["pid"]]].append(Span(str(event["name"]), start, end))
            case "i":
                marks[str(event["name"])].append((names[event["pid"]], _number(event["ts"]) / 1e6))
    for _, name, seen, _ in other["counts"]:
        counts[str(name)] += int(seen)
    shares = {
        str(process): {str(reason): _number(share) for reason, share in own.items()}
        for process, own in other["shares"].items()
    }
    return Timeline(
        _number(other["wall_seconds"]),
        _number(other["bubble"]),
        shares,
        dict(spans),
        dict(marks),
        dict(counts),
    )


def _number(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        raise ValueError(f"{value!r} is no amount")
    return float(value)
