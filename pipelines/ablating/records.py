"""What is kept of a finished run, and where: state/ablations/<name>/results/<variant>-<seed>/.

run.json    hashes (parameters, files of code), commit, seconds; written last, so that its presence means a whole run
params.yaml, dvc.lock, metrics/, curves/, verdicts/
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas

from pipelines.ablating.plan import PlannedRun
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, write_json

KEPT = ("metrics", "curves", "verdicts")


def ablation_folder(state: Path, name: str) -> Path:
    """Where worktrees, logs and results of an ablation lie."""
    return state / "ablations" / name


def record_folder(state: Path, name: str, run: PlannedRun) -> Path:
    return ablation_folder(state, name) / "results" / run.name


def keep_results(checkout: Path, place: Path, run: PlannedRun, about: dict[str, Any]) -> None:
    """Copies what the targets made out of the worktree. UserError when a target left nothing."""
    with replace_folder(place) as folder:
        for name in ("params.yaml", "dvc.lock"):
            shutil.copy2(checkout / name, folder / name)
        for kind in KEPT:
            if (checkout / "data" / kind).is_dir():
                shutil.copytree(
                    checkout / "data" / kind, folder / kind, ignore=shutil.ignore_patterns(".gitignore")
                )
        for target in run.targets:
            if not (folder / "metrics" / f"{target.replace('@', '/')}.json").exists():
                raise UserError(f"DVC ended well and left no metrics of {target}")
        write_json(folder / "run.json", about)


def read_record(place: Path) -> dict[str, Any] | None:
    """What `run.json` says; None where there is no finished run."""
    file = place / "run.json"
    return json.loads(file.read_text()) if file.exists() else None


def finished(
    state: Path, name: str, run: PlannedRun, code: Mapping[str, str] | None
) -> dict[str, Any] | None:
    """The record of the run if it has these parameters and (unless None) ran these definitions."""
    record = read_record(record_folder(state, name, run))
    if record is None or record["params_hash"] != run.params_hash:
        return None
    return record if code in (None, record.get("code")) else None


def is_one_code(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether no two runs had a definition in different versions; what only one of them runs does not matter."""
    versions: dict[str, str] = {}
    return all(
        versions.setdefault(name, digest) == digest
        for record in records
        for name, digest in record.get("code", {}).items()
    )


def seconds_of_others(state: Path, name: str, runs: Iterable[PlannedRun]) -> list[float]:
    """Times of finished runs that found their shared stages in the cache."""
    records = [finished(state, name, run, None) for run in runs]
    return [record["seconds"] for record in records if record and not record["made_shared_stages"]]


def read_metrics(place: Path, file: str) -> dict[str, float]:
    """A metric file of a finished run."""
    return json.loads((place / "metrics" / f"{file}.json").read_text())


def read_curve(place: Path, file: str) -> pandas.DataFrame:
    """A curve of a finished run."""
    return pandas.read_csv(place / "curves" / f"{file}.csv")


def read_verdicts(place: Path, policy: str) -> pandas.DataFrame:
    """The verdicts on a policy's responses."""
    return pandas.read_parquet(place / "verdicts" / f"{policy}.parquet")
