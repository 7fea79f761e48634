"""`dvc.lock`: inputs and outputs of each stage, by DVC's hashes. All code reads dvc.lock through this module."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml, stable_hash

LOCK = "dvc.lock"
CODE = "data/code/"
"""Outputs of stage `code`: a fingerprint for each stage, on which that stage depends."""


@dataclass(frozen=True)
class LockedStage:
    """A stage of a `dvc.lock`."""

    name: str
    """DVC's address: `rl_round@rl_1`."""
    command: str
    deps: Mapping[str, str]
    params: Mapping[str, Any]
    outs: Mapping[str, str]
    sizes: Mapping[str, int]

    @property
    def stage(self) -> str:
        return self.name.partition("@")[0]

    @property
    def item(self) -> str:
        """`rl_1` of `rl_round@rl_1`; "" for a stage that runs once."""
        return self.name.partition("@")[2]

    @cached_property
    def key(self) -> str:
        return run_key(self.name, self.deps, self.params)

    @property
    def code(self) -> str:
        """Hash of the fingerprint of the code that it ran; "" where it has none."""
        return self.deps.get(f"{CODE}{self.stage}.json", "")


LockedStages = Mapping[str, LockedStage]
"""The stages of a `dvc.lock` by DVC's address, in the order of the file."""


def run_key(name: str, deps: Mapping[str, str], params: Mapping[str, Any]) -> str:
    """Returns the identity of a run, which is equal for equal stages on any machine.

    A stage knows it before it starts, and DVC writes the same name, hashes and parameters into `dvc.lock` at its end.
    The command is left out: it may contain paths of a machine.
    """
    return stable_hash({"name": name, "deps": dict(deps), "params": dict(params)})


def read_lock(text: str | bytes | None, label: str) -> dict[str, LockedStage]:
    """Returns the stages of a `dvc.lock`, none without one; UserError when it is invalid. `label` names its owner."""
    try:
        content = load_yaml(text) if text else {}
        return {name: _entry(name, stage) for name, stage in (content or {}).get("stages", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())  # YAML's reason has several lines
        raise UserError(
            f"the dvc.lock of {label} is not readable ({reason}): take it from git, or run `dvc repro`"
        ) from None


def lock_of(root: Path) -> dict[str, LockedStage]:
    """`read_lock` for the file in a project's folder. While the file is unchanged, a process parses it once."""
    try:
        status = os.stat(root / LOCK)
    except FileNotFoundError:
        return {}
    return dict(_lock_at(root, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@lru_cache(maxsize=4)
def _lock_at(root: Path, *_signature: int) -> dict[str, LockedStage]:
    return read_lock((root / LOCK).read_bytes(), str(root))


def _entry(name: str, stage: Mapping[str, Any]) -> LockedStage:
    # One group for each parameter file. The names of parameters do not depend on the file.
    params = {key: value for group in (stage.get("params") or {}).values() for key, value in group.items()}
    deps, outs = stage.get("deps") or [], stage.get("outs") or []
    return LockedStage(
        name,
        # DVC writes one command as a text, which may be folded over lines, and several as a list.
        " ".join(stage["cmd"].split() if isinstance(stage["cmd"], str) else stage["cmd"]),
        {item["path"]: item["md5"] for item in deps},
        params,
        {item["path"]: item["md5"] for item in outs},
        {item["path"]: item.get("size", 0) for item in [*deps, *outs]},
    )


def stages_on_record(entries: LockedStages, addresses: Iterable[str]) -> dict[str, LockedStage]:
    """Returns the entries of these stages. DVC never removes an entry, and one of an earlier graph may have made the
    same output.
    """
    return {name: entries[name] for name in addresses if name in entries}


def recorded_outs(entries: LockedStages) -> dict[str, str]:
    """Returns path -> DVC's hash of every output."""
    return {path: digest for entry in entries.values() for path, digest in entry.outs.items()}


def makers_of(entries: LockedStages, path: str) -> tuple[str, ...]:
    """Returns stages with that output, with an output inside of that folder, or with an output folder that contains it.

    Stage `code` is excluded: its output is code, not data.
    """
    # Every output is inside of the project: `.` would match all stages.
    if path in ("", ".") or path.startswith(CODE):
        return ()
    return tuple(
        name
        for name, entry in entries.items()
        if entry.stage != "code"
        and any(out == path or out.startswith(f"{path}/") or path.startswith(f"{out}/") for out in entry.outs)
    )


def stages_behind(entries: LockedStages, targets: Iterable[str]) -> list[str]:
    """Returns the targets and all their dependencies, each after its inputs. UserError for a circle."""
    order: list[str] = []
    open_ones: set[str] = set()

    def visit(name: str) -> None:
        if name in order:
            return
        # A dvc.lock that was merged by hand may have a circle, and the recursion would never end.
        if name in open_ones:
            raise UserError(f"dvc.lock has a cycle at {name}: run `dvc repro`")
        open_ones.add(name)
        for path in entries[name].deps:
            for maker in makers_of(entries, path):
                visit(maker)
        # After its inputs, which the loop above has appended.
        order.append(name)

    for name in targets:
        visit(name)
    return order
