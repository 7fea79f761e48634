"""What the finished run made: the hashes of dvc.lock, and the bytes behind them in DVC's cache or the workspace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.records.places import read_entries
from stages.foundations.errors import UserError
from stages.foundations.hashing import dvc_md5
from stages.foundations.yaml_text import load_yaml


@dataclass(frozen=True)
class ReferenceOutput:
    """One output of the finished run."""

    path: str
    stage: str
    md5: str


@dataclass(frozen=True)
class Reference:
    """The outputs and dependencies on record, and where their bytes are."""

    root: Path
    cache: Path
    stages: Mapping[str, Any]

    @classmethod
    def read(cls, root: Path, lock: bytes | None, cache: Path) -> Reference:
        """UserError when nothing is on record, or the lock is no such file."""
        stages = load_yaml(lock)["stages"] if lock and read_entries(lock, str(root)) else None
        if not stages:
            raise UserError(
                "there is no dvc.lock to verify: run `make repro` first, or name a --revision that has one"
            )
        return cls(root, cache, stages)

    def outputs(self, stages: list[str] | None = None) -> list[ReferenceOutput]:
        """All, or those of some stages, in the order of the lock."""
        return [
            ReferenceOutput(out["path"], name, out["md5"])
            for name, stage in self.stages.items()
            if stages is None or name in stages
            for out in stage.get("outs", [])
        ]

    def dependencies(self, stage: str) -> list[ReferenceOutput]:
        """The outputs that a stage reads, those inside of folders that it reads included."""
        paths = [dep["path"] for dep in self.stages[stage].get("deps", [])]
        return [
            out
            for out in self.outputs()
            if any(out.path == path or out.path.startswith(f"{path}/") for path in paths)
        ]

    def files(self, output: ReferenceOutput) -> dict[str, Path] | None:
        """Files by path in the output ("" for an output that is a file); None when the bytes are gone."""
        cached = self._cached(output.md5)
        if cached.is_file():
            if not output.md5.endswith(".dir"):
                return {"": cached}
            files = {entry["relpath"]: self._cached(entry["md5"]) for entry in json.loads(cached.read_text())}
            if all(path.is_file() for path in files.values()):
                return files
        here = self.root / output.path
        if not here.exists() or dvc_md5(here) != output.md5:
            return None
        if here.is_file():
            return {"": here}
        return {path.relative_to(here).as_posix(): path for path in here.rglob("*") if path.is_file()}

    def _cached(self, md5: str) -> Path:
        return self.cache / md5[:2] / md5[2:]
