"""Where the time went: a line per finished stage run in `state/ledger.jsonl`, the latest of each for the report.

Times differ between equal runs, so they are no DVC output; the report, which is one, loads `reports/timings.js`.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stages.foundations.files import write_text_atomically
from stages.foundations.scratch import state_folder


def add_to_ledger(entry: Mapping[str, Any]) -> None:
    """Appends a finished run (`started` in seconds since 1970) and rewrites `reports/timings.js`.

    Safe beside other processes that do the same.
    """
    state = state_folder()
    state.mkdir(parents=True, exist_ok=True)
    line = {**entry, "started": datetime.fromtimestamp(entry["started"], UTC).isoformat(timespec="seconds")}
    line["seconds"] = round(entry["seconds"], 3)
    line["phases"] = {name: round(seconds, 3) for name, seconds in entry["phases"].items()}
    with open(state / "ledger.jsonl", "a+", encoding="utf-8") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        ledger.write(json.dumps(line) + "\n")
        ledger.flush()
        write_timings(state.parent / "reports" / "timings.js", latest_runs(state / "ledger.jsonl"))


def latest_runs(ledger: Path) -> list[dict[str, Any]]:
    """The last finished run of each stage name, in the order of their starts; an unreadable line is skipped."""
    latest: dict[str, dict[str, Any]] = {}
    if not ledger.exists():
        return []
    for text in ledger.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # cut off by a power cut or a full disk
            continue
        latest[line["name"]] = line
    return sorted(latest.values(), key=lambda line: line["started"])


def write_timings(path: Path, runs: list[dict[str, Any]]) -> None:
    """Writes `window.RETRACE_TIMINGS = [...]`, which a page opened from the disk may load as a script."""
    write_text_atomically(path, f"window.RETRACE_TIMINGS = {json.dumps(runs, indent=1)};\n")
