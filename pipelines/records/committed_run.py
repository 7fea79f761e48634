"""The run of the graph beside the committed one: identical outputs, or the first that differs and possible reasons."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path

from pipelines.records.lock_snapshots import LockSnapshot, snapshot_at, working_snapshot
from stages.foundations.dvc_lock import LOCK, LockedStage
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.observe.git import file_at

MACHINE = "data/machine.json"
"""Where the run of the working tree was computed. It belongs in git beside `dvc.lock`."""
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")
"""Flags of a processor by which libraries choose how they add up, and so the last bits of a result."""


def compare_with_committed(root: Path) -> list[str]:
    """Returns lines that say whether all outputs are those of `dvc.lock` at HEAD, or which is the first to differ.

    Empty if there is no such run, or if it had other stages, parameters or code. Keeps `MACHINE` up to date.
    """
    here = working_snapshot(root)
    try:
        there = snapshot_at(root, "HEAD")
    except UserError:
        # A new project, or one whose results are not in git.
        _write_machine(root)
        return []
    if here.outs == there.outs:
        if not (root / MACHINE).exists():
            _write_machine(root)
        return [f"same    all {len(here.outs)} outputs are identical to those of the committed run"]
    # Read first: it may be the file that this run replaces.
    then = json.loads(file_at(root, there.commit, MACHINE) or "{}")
    now = _write_machine(root)
    if _inputs(here) != _inputs(there):
        return []
    differing = [path for path, digest in here.outs.items() if there.outs.get(path) != digest]
    around = [
        f"{name} {now[name]} here, {then[name]} there" for name in now if name in then and now[name] != then[name]
    ]
    reason = "; ".join(around) or "processor and versions are the same: run `retrace verify` for details"
    count = f"{len(differing)} of {len(here.outs)} outputs differ from the committed run, the first is {differing[0]}"
    return [f"differs {count}", f"        {reason if then else f'the committed run has no {MACHINE}'}"]


def _inputs(snapshot: LockSnapshot) -> dict[str, object]:
    def of(entry: LockedStage) -> object:
        return entry.code, entry.params

    return {name: of(entry) for name, entry in snapshot.entries.items()}


def _write_machine(root: Path) -> dict[str, str]:
    """Writes and returns what may change the last bits of a result, beside code and parameters."""
    about = {
        "processor": processor(),
        "instructions": " ".join(flag for flag in INSTRUCTIONS if flag in _cpu_field("flags", "Features").split()),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }
    if (root / LOCK).exists():
        write_json(root / MACHINE, about)
    return about


def processor() -> str:
    """Returns the processor's name."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _cpu_field(*names: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() in names), "")
