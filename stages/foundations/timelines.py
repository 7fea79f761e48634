"""Reads `timeline.json`: the activities of every process of an asynchronous round, in Trace Event Format.

The file may omit some spans and instants; the shares, totals and counts under `otherData` are exact.
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
"""Maximum of kept instants per name, and of values per counter; above it, every second one is dropped (counts stay
exact)."""


@dataclass(slots=True)
class Span:
    """One activity of a process, in seconds since the round's start."""

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
    """Time, and the instant's details or the counter's value."""
    seen: int = 0
    stride: int = 1

    def add(self, at: float, value: Any) -> None:
        # Every `stride`-th from the first: they are as evenly spread as if the round's length had been known.
        if self.seen % self.stride == 0:
            self.kept.append((at, value))
        self.seen += 1
        if len(self.kept) > MAX_MARKS:
            self.kept, self.stride = self.kept[::2], self.stride * 2


@dataclass(frozen=True)
class WrittenTimeline:
    """The timeline of a round as written in its file."""

    wall_seconds: float
    bubble: float
    grain_seconds: float
    """Shorter spans are merged."""
    shares: dict[str, dict[str, float]]
    """For each process: `busy` and the reasons to be idle; they sum to 1."""
    totals: dict[str, dict[str, float]]
    """For each process: seconds of each activity."""
    spans: dict[str, list[Span]]
    instants: dict[tuple[str, str], Marks]
    """By process and name, as the counters are."""
    counters: dict[tuple[str, str], Marks]

    def marks(self, name: str) -> list[tuple[str, float]]:
        """Returns process and time of the kept instants of this name."""
        return [(where, at) for (where, known), marks in self.instants.items() if known == name for at, _ in marks.kept]

    def count(self, name: str) -> int:
        """Returns the number of instants of this name, including those that were not kept."""
        return sum(marks.seen for (_, known), marks in self.instants.items() if known == name)


def read_timeline(path: Path) -> WrittenTimeline | None:
    """Returns the timeline; None if the round has none. Raises UserError if the file is not a timeline."""
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
    # The file names each process before its events.
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
    # Python reads NaN and Infinity from JSON, but neither has a position on the axis.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is no amount")
    return float(value)
