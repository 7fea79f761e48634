"""The tracking logs of finished runs: all that MLflow was told of them, so that another database can be told again.

`state/runs/<start in ms>-<first 16 digits of the stage hash>.jsonl.gz` holds first a line with the run's tags, then the
log as the stage wrote it (stages/observe/tracking.py). About 2 KB for each 100 points.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.foundations.files import write_bytes_atomically
from stages.observe.tracking import TOTAL_SECONDS


def keep_log(log: Path, state: Path, tags: Mapping[str, str]) -> Path | None:
    """Copies a finished log under `state/runs/`; None for a log without a start."""
    lines = log.read_bytes().splitlines()
    start = next((line for line in parsed(lines) if line.get("kind") == "start"), None)
    if start is None:
        return None
    place = state / "runs" / f"{start['ms']}-{start['tags']['stage_hash'][:16]}.jsonl.gz"
    head = json.dumps({"kind": "tags", "tags": dict(tags) or start["tags"]}).encode()
    write_bytes_atomically(place, gzip.compress(b"\n".join([head, *lines]), mtime=0))
    return place


def kept_logs(state: Path) -> list[Path]:
    """The kept logs, oldest first; files with names of another form, which somebody laid there, come last."""

    def place_in_time(path: Path) -> tuple[bool, int, str]:
        start = path.name.partition("-")[0]
        return not start.isdecimal(), int(start) if start.isdecimal() else 0, path.name

    return sorted((state / "runs").glob("*.jsonl.gz"), key=place_in_time)


def read_log(place: Path) -> list[dict[str, Any]]:
    """The messages of a kept log; lines that were cut off are left out. OSError or EOFError when it is no gzip file."""
    return list(parsed(gzip.decompress(place.read_bytes()).splitlines()))


def end_ms(messages: Iterable[Mapping[str, Any]]) -> int:
    """When the run of a log ended (ms since 1970): the start of its last attempt plus the seconds that it measured.

    So a clock that was set in between moves no duration, as the time of the log's `end` would. An attempt that was
    killed measured nothing: the time of its `end` counts, or its start where that is later. 0 for no attempt.
    """
    began, ended, seconds = 0, 0, None
    for message in messages:
        if message["kind"] == "start":
            began, ended, seconds = message["ms"], message["ms"], None
        elif message["kind"] == "values":
            seconds = message["values"].get(TOTAL_SECONDS, seconds)
        elif message["kind"] == "end":
            ended = message["ms"]
    return max(began, ended) if seconds is None else began + round(1000 * seconds)


def parsed(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """The messages of a log; lines that were cut off are left out."""
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            yield message
