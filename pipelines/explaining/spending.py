"""What each stage of a chain cost, and which MLflow runs and commits belong to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.explaining.chain import Chain, Step
from pipelines.records.places import places_in_git
from pipelines.records.stage_runs import Known, belongs, known_runs, read_ledger, recorded_numbers
from pipelines.records.tracking_store import mlflow_faults, open_store
from stages.foundations.stage import about
from stages.observe.tracking import TOTAL_SECONDS, shown_name, tracking_uri


@dataclass(frozen=True)
class Spent:
    """One stage's record outside of DVC. None and "" where nothing says."""

    run_id: str
    commit: str
    """Of the code that ran, or the first that has the stage on record."""
    is_dirty: bool | None
    seconds: float | None
    """Over all executions with this stage hash."""
    gpus: int | None
    """GPUs that it computed on."""
    is_mirrored: bool
    """True where no execution of it is known, only its result."""

    @property
    def gpu_hours(self) -> float | None:
        """None where GPUs or seconds are not on record."""
        return None if self.gpus is None or self.seconds is None else self.gpus * self.seconds / 3600


def spent_by(chain: Chain, state: Path) -> dict[str, Spent]:
    """Stage -> its record. Without a tracking database the ledger and git answer."""
    known, ledger = _known(), read_ledger(state)
    commits: dict[str, str] = {}
    for place in places_in_git(chain.place.root):
        commits = {entry.key: place.commit for entry in place.entries.values()} | commits
    return {step.entry.name: _spent(step, chain, known, ledger, commits) for step in chain.steps}


def _known() -> Known:
    uri = tracking_uri()
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).exists():
        return Known()
    with mlflow_faults("then run it again"):
        return known_runs(open_store())


def _spent(
    step: Step, chain: Chain, known: Known, ledger: Sequence[Mapping[str, Any]], commits: Mapping[str, str]
) -> Spent:
    run = known.by_key.get(step.entry.key) or _untagged(step, chain, known)
    tags = run.data.tags if run else {}
    lines = [line for line in ledger if run and line["stage_hash"] == tags.get("stage_hash")]
    if not run:  # the ledger alone: the last execution of that name
        lines = [line for line in ledger if line["name"] == step.entry.name][-1:]
    seconds = sum(line["seconds"] for line in lines) if lines else None
    if seconds is None and run:
        seconds = run.data.metrics.get(shown_name(TOTAL_SECONDS))
    dirty = tags.get("git.dirty")
    return Spent(
        run_id=run.info.run_id if run else "",
        commit=tags.get("git.commit") or commits.get(step.entry.key, ""),
        is_dirty=None if dirty is None else dirty == "true",
        seconds=seconds,
        gpus=_gpus(step, tags),
        is_mirrored=tags.get("mirrored") == "true",
    )


def _untagged(step: Step, chain: Chain, known: Known) -> Any:
    numbers = recorded_numbers(chain.place, step.entry)
    candidates = known.untagged.get(step.entry.name, []) if numbers is not None else []
    return next((run for run in candidates if belongs(run, step.entry, numbers)), None)


def _gpus(step: Step, tags: Mapping[str, str]) -> int | None:
    """A GPU for each rank, or what its one process takes of those that it could see; 0 for a stage without one."""
    params = step.entry.params
    if not about(step.entry.stage).runs_model(params):
        return 0
    if not tags.get("gpus", "").isdecimal():
        return None
    seen = int(tags["gpus"])
    if not seen or "cpu" in _values(params, "device", str):
        return 0
    wanted = max(params.get("launch.gpus_per_node", 1), *_values(params, "tensor_parallel", int), 1)
    return max(int(tags.get("ranks", 1)), min(seen, wanted))


def _values(params: Any, name: str, kind: type) -> list[Any]:
    """Every value of that name, however deep."""
    if not isinstance(params, Mapping):
        return []
    own = [params[name]] if isinstance(params.get(name), kind) else []
    return own + [found for inner in params.values() for found in _values(inner, name, kind)]
