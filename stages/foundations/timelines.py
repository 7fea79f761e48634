"""Reads `timeline.json`: what every process of an asynchronous round did and when, in Trace Event Format.

Spans and instants may be thinned out in it; the shares, totals and counts under `otherData` are exact.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError

MAX_MARKS = 2_000
"""Instants of one name, and values of one counter; beyond, every second one is left out (counts stay exact)."""


@dataclass(slots=True)
class Span:
    """What a process did, in seconds since the round's start."""

    activity: str
    start: float
    end: float
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(slots=True)
class Marks:
    """Instants or values of one name; of `seen` arrivals, every `stride`-th is kept."""

    kept: list[tuple[float, Any]] = field(default_factory=list)
    """When, and the instant's details or the counter's value."""
    seen: int = 0
    stride: int = 1

    def add(self, at: float, value: Any) -> None:
        # Every `stride`-th from the first: as even over the round as if its length had been known.
        if self.seen % self.stride == 0:
            self.kept.append((at, value))
        self.seen += 1
        if len(self.kept) > MAX_MARKS:
            self.kept, self.stride = self.kept[::2], self.stride * 2


@dataclass(frozen=True)
class WrittenTimeline:
    """A round's timeline as it was written."""

    wall_seconds: float
    bubble: float
    grain_seconds: float
    """Shorter spans are put together."""
    shares: dict[str, dict[str, float]]
    """Of each process: `busy` and the reasons to be idle; they sum to 1."""
    totals: dict[str, dict[str, float]]
    """Of each process: seconds of each activity."""
    spans: dict[str, list[Span]]
    instants: dict[tuple[str, str], Marks]
    """By process and name, as counters."""
    counters: dict[tuple[str, str], Marks]

    def marks(self, name: str) -> list[tuple[str, float]]:
        """Where and when instants of this name were."""
        return [(where, at) for (where, known), marks in self.instants.items() if known == name for at, _ in marks.kept]

    def count(self, name: str) -> int:
        """Instants of this name, those that are not kept one by one too."""
        return sum(marks.seen for (_, known), marks in self.instants.items() if known == name)


def read_timeline(path: Path) -> WrittenTimeline | None:
    """None where the round has none; UserError where the file is no timeline."""
    if not path.exists():
        return None
    try:
        return _parsed(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a timeline ({type(error).__name__}: {error}): delete it and run `dvc repro`"
        ) from None


def _parsed(trace: Mapping[str, Any]) -> WrittenTimeline:
    other, names = trace["otherData"], {}
    spans, counters = defaultdict(list), defaultdict(Marks)
    instants = {(process, name): Marks([], seen, stride) for process, name, seen, stride in other["counts"]}
    # The names of processes come before all that they did.
    for event in trace["traceEvents"]:
        kind, name, details = event["ph"], str(event["name"]), event.get("args", {})
        if kind == "M":
            if name == "process_name":
                names[event["pid"]] = str(details["name"])
            continue
        process, at = names[event["pid"]], _number(event["ts"]) / 1e6
        match kind:
            case "X":
                spans[process].append(Span(name, at, at + _number(event["dur"]) / 1e6, details))
            case "i":
                instants[process, name].kept.append((at, details))
            case "C":
                counters[process, name].add(at, details["value"])
    shares, totals = (
        {process: {name: _number(value) for name, value in row.items()} for process, row in other[key].items()}
        for key in ("shares", "totals")
    )
    wall, bubble, grain = (_number(other[key]) for key in ("wall_seconds", "bubble", "grain_seconds"))
    return WrittenTimeline(wall, bubble, grain, shares, totals, spans, instants, counters)


def _number(value: object) -> float:
    # Python reads NaN and Infinity from JSON; neither has a place on the axis.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no amount")
    return float(value)
