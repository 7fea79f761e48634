"""One attempt at a stage's work: the hash of everything that determines its result, and a folder that is its own.

The folder lies under `state/`, outside every DVC output, because DVC deletes outputs before a stage starts again. Its
name is the hash, so an attempt finds the checkpoints of an earlier one at the same work and never another setting's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.foundations.hashing import dvc_md5, stable_hash
from stages.foundations.scratch import state_folder
from stages.foundations.yaml_text import load_yaml


@dataclass(frozen=True)
class Attempt:
    """What a stage is about to do; `attempt_at` makes it."""

    stage: str
    params: Mapping[str, Any]
    inputs: Mapping[str, Path]
    seed: int | None
    policy: str | None
    """Name of the policy that the stage makes or asks, where there is one."""
    round: str | None
    digests: Mapping[str, str]
    """DVC's hash of each input."""
    stage_hash: str
    """Equal for attempts with the same stage, params, inputs, seed and code."""
    scratch: Path
    """For checkpoints and other work that is not finished; it exists."""

    @property
    def pieces(self) -> Path:
        """For finished pieces that a run which goes on need not make again; the stage removes it at its end."""
        return self.scratch / "pieces"


def attempt_at(
    stage: str,
    params: Mapping[str, Any],
    inputs: Mapping[str, Path],
    seed: int | None = None,
    policy: str | None = None,
    round: str | None = None,
) -> Attempt:
    """Hashes the inputs and makes the folder `state/scratch/<stage>-<first 16 digits of the hash>` if it is absent."""
    digests = {name: _digest(Path(path)) for name, path in inputs.items()}
    identity = {"stage": stage, "policy": policy, "round": round, "seed": seed, "params": dict(params)}
    stage_hash = stable_hash({**identity, "inputs": digests, "code": code_digest(stage)})
    scratch = state_folder() / "scratch" / f"{stage}-{stage_hash[:16]}"
    scratch.mkdir(parents=True, exist_ok=True)
    return Attempt(stage, params, inputs, seed, policy, round, digests, stage_hash, scratch)


def _digest(path: Path) -> str:
    """DVC's hash of an input; inside `dvc repro` it is read from `dvc.lock`, which is right at that time."""
    lock = Path("dvc.lock")
    if os.environ.get("DVC_STAGE") and lock.exists():
        stages = load_yaml(lock.read_bytes()).get("stages", {})
        for stage in stages.values():
            for out in stage.get("outs", []):
                if Path(out["path"]) == path:
                    return out["md5"]
    return dvc_md5(path)


def code_digest(stage: str) -> str:
    """Hash of the stage's fingerprint in data/code; "" where there is none, as in a run by hand in another folder."""
    fingerprint = Path("data/code") / f"{stage}.json"
    return dvc_md5(fingerprint) if fingerprint.exists() else ""
