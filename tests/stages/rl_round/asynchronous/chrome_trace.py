"""A checker of the Trace Event Format, written from its description: the properties on which a viewer may rely.

The JSON object form: `traceEvents` is a list in any order, `displayTimeUnit` is ms or ns, other keys are metadata.
Each event has ph, name, pid and tid; every phase but M has ts, in microseconds. X has dur >= 0. i may have the scope g,
p or t. C has numbers in args, one a series. M names what its args say. Complete events of one thread nest: viewers
stack them, and Perfetto drops one that overlaps another in part.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


def problems_of(path: Path) -> list[str]:
    """Returns everything in the file that the format does not allow."""
    trace = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: name)
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["no list traceEvents"]
    found = []
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        found.append("displayTimeUnit is neither ms nor ns")
    for number, event in enumerate(trace["traceEvents"]):
        found += [f"event {number}: {problem}" for problem in _problems_of_event(event)]
    if not found:
        found = [*_unnamed(trace["traceEvents"]), *_overlaps(trace["traceEvents"])]
    return found


def _problems_of_event(event: object) -> list[str]:
    if not isinstance(event, dict):
        return ["is no object"]
    found = [f"{key} is no integer" for key in ("pid", "tid") if type(event.get(key)) is not int]
    if not isinstance(event.get("name"), str) or not event["name"]:
        found.append("has no name")
    args = event.get("args", {})
    if not isinstance(args, dict):
        return [*found, "args is no object"]
    if event.get("ph") != "M" and not _is_time(event.get("ts")):
        found.append("ts is no time in microseconds")
    return [*found, *_problems_of_phase(event, args)]


def _problems_of_phase(event: dict, args: dict) -> list[str]:
    match event.get("ph"):
        case "X":
            return [] if _is_time(event.get("dur")) else ["dur is no duration"]
        case "i":
            return [] if event.get("s", "t") in ("g", "p", "t") else ["s is no scope"]
        case "C":
            is_fine = args and all(_is_number(value) for value in args.values())
            return [] if is_fine else ["a counter has numbers in args"]
        case "M":
            key, kind = METADATA.get(event.get("name"), ("", object))
            return [] if key and isinstance(args.get(key), kind) else ["is no metadata that viewers know"]
    return [f"phase {event.get('ph')!r} is not expected here"]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_time(value: object) -> bool:
    return _is_number(value) and value >= 0


def _unnamed(events: list[dict]) -> list[str]:
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    return [f"process {pid} has no name" for pid in sorted({event["pid"] for event in events} - named)]


def _overlaps(events: list[dict]) -> list[str]:
    found, open_ends = [], {}
    complete = [event for event in events if event["ph"] == "X"]
    for event in sorted(complete, key=lambda own: (own["ts"], -own["dur"])):
        ends = open_ends.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        end = event["ts"] + event["dur"]
        if ends and end > ends[-1]:
            found.append(f"{event['name']} at {event['ts']} overlaps in part")
        ends.append(end)
    return found
