"""Checkpoints of a long stage in its scratch folder: the next attempt at the same work goes on from the last one.

They lie outside the stage's outputs because DVC deletes those before it starts the command.
"""

from __future__ import annotations

import shutil
from pathlib import Path


class Checkpoints:
    """The checkpoints in one scratch folder, by step. A folder `step-<number>` is whole or absent."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def latest(self) -> tuple[int, Path] | None:
        """Step and folder of the last checkpoint, or None."""
        folders = sorted(self.scratch.glob("step-*"))
        return (int(folders[-1].name.removeprefix("step-")), folders[-1]) if folders else None

    def folder(self, step: int) -> Path:
        """Where the checkpoint of `step` belongs; write it with `replace_folder`."""
        return self.scratch / f"step-{step:09d}"

    def keep_last(self) -> None:
        """Removes all but the last checkpoint."""
        for folder in sorted(self.scratch.glob("step-*"))[:-1]:
            shutil.rmtree(folder)

    def clear(self) -> None:
        """Removes them all: the outputs are written."""
        for folder in self.scratch.glob("step-*"):
            shutil.rmtree(folder)
