"""The chain of stages behind an output, from `dvc.lock`: its stages and their inputs, down to the raw bytes.

`find_chain` follows the hashes. `stage_costs` adds the cost of each stage, and the MLflow runs and commits that belong
to it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.records.lock_snapshots import LockSnapshot, snapshot_at, snapshots_in_git, working_snapshot
from pipelines.records.tracking_store import has_database, mlflow_faults, open_store, runs_by_key
from stages.foundations.dvc_lock import CODE, LockedStage, makers_of, stages_behind
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, load_yaml
from stages.foundations.stage import about
from stages.observe.tracking import TOTAL_SECONDS, read_ledger, shown_name

POLICIES = "data/policies/"
OTHER_MODELS = ("data/generators/", "data/image_scorers/")
"""Folders of outputs that an argument may name besides a policy; the first that has it wins."""
RAW_KEYS = ("kind", "url", "path", "repository", "file", "revision", "package", "version", "member")
RAW_KEYS += ("sha256", "wheel_sha256", "seed", "rows")
"""Keys that state where raw bytes came from, and their hash."""


@dataclass(frozen=True)
class Input:
    """A dependency of a stage."""

    path: str
    digest: str
    makers: tuple[str, ...]
    """Stages that make it; none for a file that no stage makes."""
    is_stale: bool
    """True when its maker has since made a different output: the stage has not run on the present one."""


@dataclass(frozen=True)
class ChainStep:
    """One stage of the chain."""

    entry: LockedStage
    inputs: tuple[Input, ...]
    raw: tuple[Mapping[str, Any], ...]
    """Origin of raw bytes, for the stages that bring them in; a generator has a kind and a seed."""
    definitions: int | None
    """Number of definitions in its code fingerprint; None where the fingerprint no longer exists."""


@dataclass(frozen=True)
class Chain:
    """All stages behind a target, each after those that it depends on."""

    argument: str
    snapshot: LockSnapshot
    targets: tuple[str, ...]
    steps: tuple[ChainStep, ...]
    scores: Mapping[str, float]
    """Metrics of a target that scores a policy; empty for others."""
    changed: str
    """Says when the target's bytes are no longer those on record; "" otherwise."""

    def depth(self) -> dict[str, int]:
        """Returns stage -> length of the longest path from a stage without inputs."""
        depths: dict[str, int] = {}
        for step in self.steps:
            makers = [maker for one in step.inputs for maker in one.makers]
            depths[step.entry.name] = 1 + max((depths[maker] for maker in makers), default=-1)
        return depths


def find_chain(argument: str, root: Path) -> Chain:
    """The chain behind a policy, a stage, or a file. UserError for an unknown one, and for one that never ran."""
    # `v1.0:rl_1` explains the record of a revision. Without a colon it is the working tree.
    before, _, rest = argument.rpartition(":")
    snapshot = snapshot_at(root, before) if before else working_snapshot(root)
    if not snapshot.entries:
        raise UserError(f"{snapshot.label} at {root} has no dvc.lock: nothing has run yet, run `dvc repro`")
    targets, path = _targets(rest if before else argument, snapshot, root)
    names = stages_behind(snapshot.entries, targets)
    steps = tuple(_step(snapshot.entries[name], snapshot) for name in names)
    return Chain(argument, snapshot, targets, steps, _scores(targets, snapshot), _changed(path, snapshot))


def _targets(argument: str, snapshot: LockSnapshot, root: Path) -> tuple[tuple[str, ...], str]:
    """Returns the stages to explain, and the requested path ("" for a policy or a stage)."""
    scored = snapshot.graded.get(argument)
    for name in (argument, scored.name if scored else ""):
        if name in snapshot.entries:
            return (name,), ""
    # A bare name may be a policy, a path from the project's root, or one below data/. The first that a stage made wins.
    for path in _paths(argument, root):
        found = makers_of(snapshot.entries, path)
        if found:
            return found, path
    policies = [path.removeprefix(POLICIES) for path in snapshot.outs if path.startswith(POLICIES)]
    others = [path.removeprefix("data/") for path in snapshot.outs if path.startswith(OTHER_MODELS)]
    # The errors from here on differ in their remedy: run a stage, name another file, or choose from the list.
    if argument in _declared(snapshot):
        raise UserError(f"policy {argument!r} is in params.yaml but never ran: run `dvc repro grade@{argument}`")
    if (root / argument).exists():
        raise UserError(f"{argument} is no output of a stage: outputs are listed in dvc.lock, below data/ and reports/")
    raise UserError(
        f"{argument!r} is no policy, stage or output that has run; policies: {', '.join(policies) or 'none'}; "
        f"{'other models: ' + ', '.join(others) + '; ' if others else ''}stages: "
        f"{', '.join(snapshot.entries)}. If it is new, run `dvc repro`"
    )


def _paths(argument: str, root: Path) -> list[str]:
    """Returns the names that a path may have in `dvc.lock`."""
    found = [
        *(f"{models}{argument}" for models in (POLICIES, *OTHER_MODELS)),
        argument.rstrip("/"),
        f"data/{argument}".rstrip("/"),
    ]
    with suppress(ValueError):  # outside of the project
        found.append(Path(argument).resolve().relative_to(root.resolve()).as_posix())
    return found


def _declared(snapshot: LockSnapshot) -> list[str]:
    content = snapshot.content("params.yaml") if snapshot.folder else None
    if content is None:
        return []

    params = load_yaml(content) or {}
    return list(map(str, params.get("policies") or []))


def _step(entry: LockedStage, snapshot: LockSnapshot) -> ChainStep:
    inputs = tuple(
        Input(path, digest, makers := makers_of(snapshot.entries, path), _is_stale(path, digest, makers, snapshot))
        for path, digest in entry.deps.items()
        if not path.startswith(CODE)
    )
    raw = tuple(_raw(entry))
    fingerprint = snapshot.file(f"{CODE}{entry.stage}.json")
    # A fingerprint that was computed again since then counts definitions of other code than the stage ran.
    is_same = fingerprint is not None and entry.code and dvc_md5(fingerprint) == entry.code
    definitions = len(json.loads(fingerprint.read_text(encoding="utf-8"))) if fingerprint and is_same else None
    return ChainStep(entry, inputs, raw, definitions)


def _is_stale(path: str, digest: str, makers: tuple[str, ...], snapshot: LockSnapshot) -> bool:
    # A folder that several stages fill has no hash on record, so it cannot be compared.
    made = [snapshot.entries[maker].outs[path] for maker in makers if path in snapshot.entries[maker].outs]
    return bool(made) and digest not in made


def _raw(entry: LockedStage) -> list[dict[str, Any]]:
    """Where the stage's raw bytes came from. Bytes without an address are generated, by the code and the seed."""
    params = entry.params
    found = []
    for origin in about(entry.stage).raw(params):
        if isinstance(origin, Mapping) and "kind" in origin:
            own = {key: origin[key] for key in RAW_KEYS if origin.get(key) is not None}
            # Data with an address are identified by it. Generated data are made again from the seed, which may be that
            # of the run.
            has_place = any(key in own for key in ("url", "path", "repository", "package"))
            found.append(own if has_place or "seed" in own or "seed" not in params else own | {"seed": params["seed"]})
    return found


def _scores(targets: tuple[str, ...], snapshot: LockSnapshot) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in targets:
        for path in snapshot.entries[name].outs if snapshot.entries[name] in snapshot.graded.values() else ():
            content = snapshot.content(path) if path.startswith("data/metrics/") else None
            try:
                found |= json.loads(content) if content else {}
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"{path} is no metric file ({error}): `git checkout {path}`, or `dvc repro {name}`"
                ) from None
    return found


def _changed(path: str, snapshot: LockSnapshot) -> str:
    """Compares a requested file with its hash on record."""
    digest = snapshot.outs.get(path, "")
    own = snapshot.folder / path if snapshot.folder is not None and digest else None
    if own is None or not own.exists():
        return ""
    now = dvc_md5(own)
    return "" if now == digest else f"{path} has changed since: md5 {now} now, {digest} on record; see `dvc status`"


@dataclass(frozen=True)
class StageCost:
    """One stage's record outside of DVC. None and "" where no record exists."""

    run_id: str
    commit: str
    """Commit of the code that ran, or the first commit that has the stage on record."""
    is_dirty: bool | None
    seconds: float | None
    """Sum over all executions of exactly this work."""
    gpus: int | None
    """GPUs that it computed on."""

    @property
    def gpu_hours(self) -> float | None:
        """None where GPUs or seconds are not on record."""
        return None if self.gpus is None or self.seconds is None else self.gpus * self.seconds / 3600


def stage_costs(chain: Chain, state: Path) -> dict[str, StageCost]:
    """Returns stage -> record. Without a tracking database the data come from the ledger and git."""
    runs, lines = _runs(), defaultdict(list)
    for line in read_ledger(state / "ledger.jsonl"):
        # A stage that was run again with equal inputs has several lines of one key. Its cost is their sum.
        lines[line.get("lock_hash")].append(line)
    # Runs that MLflow does not know carry no commit. Otherwise the first commit with the same recorded key is used.
    commits: dict[str, str] = {}
    for snapshot in snapshots_in_git(chain.snapshot.root):
        for entry in snapshot.entries.values():
            commits.setdefault(entry.key, snapshot.commit)
    return {
        step.entry.name: _spent(step, runs.get(step.entry.key), lines[step.entry.key], commits.get(step.entry.key, ""))
        for step in chain.steps
    }


def _runs() -> dict[str, Any]:
    if not has_database():
        return {}
    with mlflow_faults("then run it again"):
        return runs_by_key(open_store())


def _spent(step: ChainStep, run: Any, lines: Sequence[Mapping[str, Any]], commit: str) -> StageCost:
    tags = run.data.tags if run else {}
    seconds = run.data.metrics.get(shown_name(TOTAL_SECONDS)) if run else None
    dirty = tags.get("git.dirty")
    return StageCost(
        run_id=run.info.run_id if run else "",
        commit=tags.get("git.commit") or commit,
        is_dirty=None if dirty is None else dirty == "true",
        seconds=sum(line["seconds"] for line in lines) if lines else seconds,
        gpus=_gpus(step, tags),
    )


def _gpus(step: ChainStep, tags: Mapping[str, str]) -> int | None:
    """Returns one GPU per rank, or those that its one process uses of the visible ones; 0 for a stage without one."""
    params = step.entry.params
    if not about(step.entry.stage).runs_model(params):
        return 0
    # A stage from a cache was not executed here: the number of GPUs it saw is unknown.
    if not tags.get("gpus", "").isdecimal():
        return None
    seen = int(tags["gpus"])
    # An engine that is set to the CPU leaves visible GPUs unused.
    if not seen or "cpu" in _values(params, "device", str):
        return 0
    # `dvc.lock` has a parameter under its dotted name where a stage depends on that parameter alone.
    wanted = max(params.get("launch.gpus_per_node", 1), *_values(params, "tensor_parallel", int), 1)
    return max(int(tags.get("ranks", 1)), min(seen, wanted))


def _values(params: Any, name: str, kind: type) -> list[Any]:
    """Yields every value of that name, at any depth."""
    if not isinstance(params, Mapping):
        return []
    own = [params[name]] if isinstance(params.get(name), kind) else []
    return own + [found for inner in params.values() for found in _values(inner, name, kind)]
