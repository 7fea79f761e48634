"""Checkpoints of a long stage in its scratch folder: the next attempt at the same work goes on from the last one.

They lie outside the stage's outputs because DVC deletes those before it starts the command. Each holds the hashes of
its files, so that one that a disk has damaged is told about and passed over.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from stages.foundations.files import sha256_of, write_json
from stages.observe.progress import say

MANIFEST = "manifest.json"


class Checkpoints:
    """The checkpoints in one scratch folder, by step. A folder `step-<number>` counts when `keep_last` sealed it."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def latest(self) -> tuple[int, Path] | None:
        """Step and folder of the last checkpoint whose files are what was written, or None; others are named."""
        for folder in sorted(self.scratch.glob("step-*"), reverse=True):
            damage = _damage(folder)
            if not damage:
                return int(folder.name.removeprefix("step-")), folder
            say(
                f"WARNING: checkpoint {folder} is not used: {damage}. The run goes on from the one before, if any"
            )
        return None

    def folder(self, step: int) -> Path:
        """Where the checkpoint of `step` belongs; write it with `replace_folder`, then call `keep_last`."""
        return self.scratch / f"step-{step:09d}"

    def keep_last(self) -> None:
        """Seals the last checkpoint with the hashes of its files and removes the others."""
        *older, last = sorted(self.scratch.glob("step-*"))
        write_json(last / MANIFEST, _hashes(last))
        for folder in older:
            shutil.rmtree(folder)

    def clear(self) -> None:
        """Removes them all, and what a killed run had half written: the outputs are written. Any rank may, or all."""
        for folder in (*self.scratch.glob("step-*"), *self.scratch.glob(".step-*")):
            shutil.rmtree(folder, onerror=_unless_gone)


def _hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return {str(path.relative_to(folder)): sha256_of(path) for path in files}


def _damage(folder: Path) -> str:
    """What is wrong with a checkpoint; empty when nothing is."""
    try:
        written = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return "its run ended while it was written"
    found = _hashes(folder)
    changed = sorted(name for name in {*written, *found} if written.get(name) != found.get(name))
    return f"{', '.join(changed)} changed since it was written" if changed else ""


def _unless_gone(_function: object, _path: str, error: tuple) -> None:
    """Passes over what another rank has removed sooner; what cannot be removed is told."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]
