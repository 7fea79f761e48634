"""The activities and waits of every process of an asynchronous round, and a file of them that Perfetto opens.

A process does one thing at a time, so its spans cover its lifetime without gaps; unnamed time is attributed as follows.
Before the first span it is `start`. After an idle span the reason holds until the next report of the process. After a
busy one it is `unnamed` (messages, and Python between two activities). So a process's shares always sum to 1.

Times are readings of one clock, the hub's; times in the file are seconds since the round's start. A resumed round
keeps the spans of the earlier attempt: the time between the attempts is `away` and in no share.

The file is a Chrome trace (Trace Event Format, the public document by the authors of Chrome's trace viewer): M (names
and order of processes), X (complete, ts and dur in microseconds), i (instant), C (counter).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.foundations.files import write_text_atomically

BUSY = frozenset(["train", "decode", "prefill", "judge"])
"""Activities that advance the round; every other name is a reason to be idle: the trainer's `no_groups`, `publish`,
`evaluate`, `checkpoint`, `start`, a replica's `no_prompts`, `tools`, `pull`, `start`, `dead`."""
FAULT, PUBLISHED, MOVED, BATCH_TAKEN, RESUMED = "fault", "publish", "repack move", "batch taken", "resumed"
ON_DEVICES = ("trainer", "replica")
"""Kinds of processes that hold a device, one each: `bubble` and the curve's idle shares cover these."""
AWAY_SECONDS = 1.0
"""Shown between two attempts; the real length of the gap is not known."""
SAME_MOMENT = 0.001
"""Spans of one activity that are closer than this are merged."""
MAX_SPANS = 40_000
"""Spans in all; beyond it short ones are merged (shares stay exact): about 5 MB of file."""


MAX_MARKS = 2_000
"""Maximum of kept instants per name, and of values per counter; above it, every second one is dropped."""


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


class Timeline:
    """Processes are named by their kind: hub, trainer, `replica/0`, `relay/<node>`."""

    def __init__(self, origin: float) -> None:
        """`origin`: the clock at the round's start."""
        self._origin = origin
        self._spans: dict[str, list[Span]] = {}
        self._totals: dict[str, Counter[str]] = {}
        self._grain = SAME_MOMENT
        self._instants: dict[tuple[str, str], Marks] = {}
        self._counters: dict[tuple[str, str], Marks] = {}
        self._wall = 0.0

    @property
    def wall_seconds(self) -> float:
        """Returns seconds from the round's start to the last event, including time between attempts."""
        return self._wall

    def span(self, process: str, activity: str, start_seconds: float, end_seconds: float, **details: Any) -> None:
        """Records that `process` did this, or waited for this reason. Time that an earlier span covers stays with that
        span.

        A span without length holds from that moment on, until the next report of the process: `dead`.
        """
        start, end = self._time(start_seconds), self._time(end_seconds)
        spans = self._spans.setdefault(process, [])
        self._totals.setdefault(process, Counter())
        # Recorded time stays: a report that reaches back over a gap may not rewrite it.
        start = max(start, spans[-1].end if spans else 0.0)
        # A span without length describes the time after it, and is kept; one that others cover is not.
        if end < start or (end == start and start_seconds < end_seconds) or not math.isfinite(end_seconds):
            return
        self._fill(process, start)
        self._append(process, activity, start, end, plain(details))
        self._wall = max(self._wall, end)
        # A bound for each process, so that one with many spans does not cost the others their detail.
        if len(spans) > max(64, MAX_SPANS // len(self._spans)):
            self._coarsen()

    def report(self, process: str, end_seconds: float, seconds: Mapping[str, float], **details: Any) -> None:
        """Places the activities in a new report of a process one after the other, so that they end now."""
        # Backwards from now: another node's clock gives durations, not times.
        at = end_seconds - sum(seconds.values())
        for activity, spent in seconds.items():
            self.span(process, activity, at, at + spent, **details)
            at += spent

    def instant(self, process: str, name: str, at: float, **details: Any) -> None:
        """Records an event at a moment: FAULT, PUBLISHED, MOVED, BATCH_TAKEN."""
        self._mark(self._instants, process, name, at, plain(details))

    def counter(self, process: str, name: str, at: float, value: float) -> None:
        """Records that a quantity has this value from now on; an unchanged value is not stored again."""
        marks = self._counters.get((process, name))
        if math.isfinite(value) and not (marks and marks.kept and marks.kept[-1][1] == value):
            self._mark(self._counters, process, name, at, value)

    def count(self, name: str) -> int:
        return sum(marks.seen for (_, known), marks in self._instants.items() if known == name)

    def idle_shares(self, process: str, since: float | None = None, until: float | None = None) -> dict[str, float]:
        """`busy` and each idle reason as shares that sum to 1, of the round or of a part of it; empty without any."""
        spent: Counter[str] = Counter()
        for activity, seconds in self._seconds(process, since, until).items():
            # The time between two attempts is not known, so it counts for no process.
            if activity != AWAY:
                spent["busy" if activity in BUSY else activity] += seconds
        total = spent.total()
        return {name: spent[name] / total for name in ("busy", *sorted(spent.keys() - {"busy"}))} if total else {}

    def bubble(self, since: float | None = None, until: float | None = None) -> float:
        """Returns 1 - busy / (devices x wall), over the processes that hold a device; 0 where there are none."""
        busy, held = 0.0, 0.0
        for process in filter(_holds_device, self._spans):
            spent = self._seconds(process, since, until)
            busy += sum(seconds for activity, seconds in spent.items() if activity in BUSY)
            held += sum(seconds for activity, seconds in spent.items() if activity != AWAY)
        return 1 - busy / held if held else 0.0

    def metrics(self, since: float | None = None, until: float | None = None) -> dict[str, float]:
        """Returns `idle/<kind>_<reason>` (mean over the processes of a kind that holds devices) and `bubble`."""
        sums: Counter[str] = Counter()
        counted: Counter[str] = Counter()
        for process in filter(_holds_device, self._spans):
            kind, shares = _kind(process), self.idle_shares(process, since, until)
            if shares:
                counted[kind] += 1
                for reason, share in shares.items():
                    sums[f"{kind}_{reason}"] += share
        idle = {
            f"idle/{name}": share / counted[name.partition("_")[0]]
            for name, share in sorted(sums.items())
            if not name.endswith("_busy")
        }
        return {**idle, "bubble": self.bubble(since, until)}

    def write(self, path: Path) -> None:
        """Writes the trace; `otherData` has the seconds of each activity, exact even if short spans were merged."""
        # Viewers show rows by this number.
        processes = sorted(self._names(), key=_order)
        pids = {process: number for number, process in enumerate(processes, 1)}
        events: list[dict[str, Any]] = []
        for process, pid in pids.items():
            where = {"pid": pid, "tid": pid}
            events += [
                {"ph": "M", "name": "process_name", **where, "args": {"name": process}},
                {"ph": "M", "name": "thread_name", **where, "args": {"name": process}},
                {"ph": "M", "name": "process_sort_index", **where, "args": {"sort_index": pid}},
            ]
            for span in self._spans.get(process, []):
                start, end = _microseconds(span.start), _microseconds(span.end)
                kind = "busy" if span.activity in BUSY else "idle"
                event = {"ph": "X", "name": span.activity, "cat": kind, **where, "ts": start, "dur": end - start}
                events.append({**event, "args": span.details} if span.details else event)
        for (process, name), marks in self._instants.items():
            where = {"pid": pids[process], "tid": pids[process], "s": "p"}
            for at, details in marks.kept:
                event = {"ph": "i", "name": name, "cat": "mark", **where, "ts": _microseconds(at)}
                events.append({**event, "args": details} if details else event)
        for (process, name), marks in self._counters.items():
            where = {"pid": pids[process], "tid": pids[process]}
            for at, value in marks.kept:
                events.append({"ph": "C", "name": name, **where, "ts": _microseconds(at), "args": {"value": value}})
        seconds = {process: dict(self._totals[process]) for process in processes if process in self._spans}
        trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"seconds": seconds}}
        write_text_atomically(path, json.dumps(trace, separators=(",", ":"), allow_nan=False) + "\n")

    @classmethod
    def resumed(cls, path: Path, origin: float) -> Timeline:
        """Continues the file of an earlier attempt, after a marked gap; starts anew where there is no file."""
        timeline = cls(origin)
        if path.exists():
            written = json.loads(path.read_text(encoding="utf-8"))
            timeline._restore(written["traceEvents"], written["otherData"]["seconds"])
            end = timeline._wall
            for process in timeline._spans:
                timeline._fill(process, end)
                timeline._append(process, AWAY, end, end + AWAY_SECONDS, {})
            timeline._wall = end + AWAY_SECONDS
            # Moved back, so that readings of this attempt come after the gap.
            timeline._origin -= timeline._wall
            timeline.instant("hub", RESUMED, origin)
        return timeline

    def _restore(self, events: Iterable[Mapping[str, Any]], seconds: Mapping[str, Mapping[str, float]]) -> None:
        self._totals = {process: Counter(spent) for process, spent in seconds.items()}
        self._spans = {process: [] for process in seconds}
        names: dict[int, str] = {}
        for event in events:
            # The file names each process before its events.
            if event["ph"] == "M":
                if event["name"] == "process_name":
                    names[event["pid"]] = event["args"]["name"]
                continue
            process, name, details = names[event["pid"]], event["name"], event.get("args", {})
            start = event["ts"] / 1e6
            end = start + event.get("dur", 0) / 1e6
            self._wall = max(self._wall, end)
            match event["ph"]:
                case "X":
                    self._spans[process].append(Span(name, start, end, details))
                case "i":
                    self._instants.setdefault((process, name), Marks()).add(start, details)
                case "C":
                    self._counters.setdefault((process, name), Marks()).add(start, details["value"])

    def _time(self, reading: float) -> float:
        """Returns seconds since the round's start; a reading that is not a number counts as 0."""
        # Times before the start count as the start: clocks are compared across processes.
        return max(0.0, reading - self._origin) if math.isfinite(reading) else 0.0

    def _names(self) -> set[str]:
        return {*self._spans, *(process for process, _ in [*self._instants, *self._counters])}

    def _fill(self, process: str, start: float) -> None:
        """Attributes the time between the last span and `start`."""
        spans = self._spans[process]
        last = spans[-1] if spans else None
        end = last.end if last else 0.0
        if start <= end:
            return
        if last is None or last.activity == AWAY:
            self._append(process, START, end, start, {})
        # A reason to wait holds until the next report; a busy span ends at its reported end.
        elif last.activity not in BUSY or start - end < SAME_MOMENT:
            self._append(process, last.activity, end, start, last.details)
        else:
            self._append(process, UNNAMED, end, start, {})

    def _append(self, process: str, activity: str, start: float, end: float, details: dict[str, Any]) -> None:
        spans = self._spans[process]
        self._totals[process][activity] += end - start
        if spans and spans[-1].activity == activity and spans[-1].details == details:
            spans[-1].end = end
        else:
            spans.append(Span(activity, start, end, details))

    def _coarsen(self) -> None:
        """Merges spans shorter than the grain until half of the room is free; the grain grows."""
        # To half of the bound, or every new span would coarsen all of them again.
        room = max(32, MAX_SPANS // len(self._spans) // 2)
        while True:
            for spans in self._spans.values():
                spans[:] = coarser(spans, self._grain)
            if self._grain > self._wall or max(map(len, self._spans.values())) <= room:
                return
            self._grain *= 2

    def _seconds(self, process: str, since: float | None, until: float | None) -> Mapping[str, float]:
        """Returns the seconds of each activity; time after the last span counts for it, since it may still continue."""
        spans = self._spans.get(process)
        if not spans:
            return {}
        start, end = (0.0 if since is None else self._time(since), self._wall if until is None else self._time(until))
        tail = max(0.0, end - max(start, spans[-1].end))
        reason = UNNAMED if spans[-1].activity in BUSY else spans[-1].activity
        if since is None and until is None:
            spent = Counter(self._totals[process])
        else:
            spent = Counter()
            # From the end: every step needs only the last seconds of a long round.
            for span in reversed(spans):
                if span.end <= start:
                    break
                spent[span.activity] += max(0.0, min(span.end, end) - max(span.start, start))
        spent[START if reason == AWAY else reason] += tail
        return {activity: seconds for activity, seconds in spent.items() if seconds > 0}

    def _mark(self, kept: dict[tuple[str, str], Marks], process: str, name: str, at: float, value: Any) -> None:
        moment = self._time(at)
        self._wall = max(self._wall, moment)
        kept.setdefault((process, name), Marks()).add(moment, value)


def _kind(process: str) -> str:
    return process.partition("/")[0]


def _holds_device(process: str) -> bool:
    return _kind(process) in ON_DEVICES


def _order(process: str) -> tuple[int, int, str]:
    kind, _, number = process.partition("/")
    known = ("hub", "trainer", "replica", "relay")
    return known.index(kind) if kind in known else len(known), int(number) if number.isdecimal() else 0, process


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


START, UNNAMED, AWAY = "start", "unnamed", "away"


def coarser(spans: list[Span], grain: float) -> list[Span]:
    """Merges neighbours while they are shorter than `grain` seconds; the longer one gives the name."""
    coarse: list[Span] = []
    for span in spans:
        last = coarse[-1] if coarse else None
        # The gap between two attempts is never merged, although it is drawn short.
        is_short = last is not None and last.seconds < grain and AWAY not in (last.activity, span.activity)
        if last and (is_short or last.activity == span.activity):
            longer = max(last, span, key=lambda one: one.seconds)
            last.activity, last.end = longer.activity, span.end
            last.details = last.details if last.details == span.details else {}
        else:
            coarse.append(span)
    return coarse


def plain(details: dict[str, Any]) -> dict[str, Any]:
    """Returns the value in a form that JSON can hold; other values become text."""
    # JSON has no NaN and no paths, and a viewer rejects the whole file for one of them.
    simple = (bool, int, str, type(None))
    return {
        name: value if isinstance(value, simple) or (isinstance(value, float) and math.isfinite(value)) else str(value)
        for name, value in details.items()
    }
