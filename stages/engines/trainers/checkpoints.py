"""Checkpoints of a long stage in its scratch folder: the next attempt at the same work resumes from the last one.

They are outside the stage's outputs because DVC deletes outputs before it starts the command. Each holds the hashes of
its files, so that a checkpoint damaged on disk is reported and skipped.

On several ranks, a file `rank-<number>...`, also in a subfolder, is written, hashed and verified by that rank, all
other files by rank 0.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from stages.engines.trainers.one_rank import OneRank
from stages.foundations.files import sha256_of, write_json
from stages.observe.progress import say

if TYPE_CHECKING:  # the hub of the asynchronous loop clears checkpoints, and does not import torch
    from stages.engines.trainers.protocol import Ranks

MANIFEST = "manifest.json"
OF_RANK = re.compile(r"(?:.*/)?rank-(\d+)")
ALONE = OneRank()


class Checkpoints:
    """The checkpoints in one scratch folder, by step. A folder `step-<number>` counts when `keep_last` sealed it."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def latest(self, ranks: Ranks = ALONE, warnings: list[str] | None = None) -> tuple[int, Path] | None:
        """Returns step and folder of the last undamaged checkpoint, or None; reports and removes damaged ones.

        Collective: every rank verifies the files that it has written. `warnings` receives the reports, for a process
        without visible output.
        """
        # Numbers have nine digits, so names sort in the order of steps.
        folders = sorted(self.scratch.glob("step-*"), reverse=True)
        # All ranks use rank 0's list: they must verify the same folder together.
        for folder in ranks.broadcast(folders):
            damage = [of_rank for of_rank in ranks.gather(_damage(folder, ranks)) if of_rank]
            if not damage:
                return int(folder.name.removeprefix("step-")), folder
            if ranks.rank == 0:
                line = (
                    f"WARNING: checkpoint {folder} is not used: {'; '.join(damage)}. The run resumes from the "
                    "previous one, if any"
                )
                say(line)
                if warnings is not None:
                    warnings.append(line)
                # Removed, because its step may be higher than that of the next checkpoint, and the highest step counts
                # as the last one written.
                shutil.rmtree(folder)
        return None

    def newest(self) -> Path | None:
        """Returns the folder of the last sealed checkpoint, without verifying it; None if there is none."""
        return max((path.parent for path in self.scratch.glob(f"step-*/{MANIFEST}")), default=None)

    def folder(self, step: int) -> Path:
        """Returns the folder for the checkpoint of `step`; write it with `replace_folder`, then call `keep_last`."""
        return self.scratch / f"step-{step:09d}"

    def keep_last(self, hashes: Mapping[str, str] = MappingProxyType({}), ranks: Ranks = ALONE) -> None:
        """Seals the last checkpoint with the hashes of its files and removes the others; collective.

        `hashes` are those of the files that this rank has written and hashed; rank 0 hashes the rest. A file elsewhere
        that belongs to the checkpoint has a path relative to the checkpoint's folder (`../rollouts/...`).
        """
        known = {name: digest for of_rank in ranks.gather_to_first(dict(hashes)) for name, digest in of_rank.items()}
        if ranks.rank == 0:
            *older, last = sorted(self.scratch.glob("step-*"))
            rest = [name for name in _names(last) if name not in known]
            # The manifest is the seal. Older checkpoints are removed only after it, so a kill leaves a valid one.
            write_json(last / MANIFEST, known | {name: sha256_of(last / name) for name in rest})
            for folder in older:
                shutil.rmtree(folder)

    def clear(self) -> None:
        """Removes all checkpoints, also incomplete ones, once the outputs are written. One rank or all may call it."""
        for folder in (*self.scratch.glob("step-*"), *self.scratch.glob(".step-*")):
            shutil.rmtree(folder, onerror=_unless_gone)


def _names(folder: Path) -> list[str]:
    """Returns the names of the folder's files, without the manifest."""
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return sorted(str(path.relative_to(folder)) for path in files)


def _damage(folder: Path, ranks: Ranks) -> str:
    """Returns the damage to the checkpoint's files that this rank verifies; empty when there is none."""
    try:
        written = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return "its run ended while it was written" if ranks.rank == 0 else ""
    # Includes files that the manifest does not name: loading the folder would read them.
    mine = [name for name in {*written, *_names(folder)} if _verifier(name) % ranks.world_size == ranks.rank]
    changed = sorted(name for name in mine if written.get(name) != _hash(folder / name))
    return f"{', '.join(changed)} changed since it was written" if changed else ""


def _verifier(name: str) -> int:
    of_rank = OF_RANK.match(name)
    # The caller takes it modulo the ranks: the checkpoint may have been written by more ranks than there are now.
    return int(of_rank[1]) if of_rank else 0


def _hash(path: Path) -> str | None:
    return sha256_of(path) if path.exists() else None


def _unless_gone(_function: object, _path: str, error: tuple) -> None:
    """Ignores a path that another rank has already removed; raises any other error."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]
