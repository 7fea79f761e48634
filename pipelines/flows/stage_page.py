"""What the UI says about a stage that has ended: what happened, resources, the link to MLflow, the metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pipelines.graph.graph import DvcStage
from pipelines.runtime.addresses import without_password
from pipelines.runtime.usage import Usage
from stages.observe.stage_timings import latest_runs

TRAINING_PAGES = "workflowType=machine_learning"
"""Without it MLflow shows its pages for agents' traces."""


@dataclass(frozen=True)
class StagePage:
    """What is known when a stage has ended well."""

    stage: DvcStage
    root: Path
    env: Mapping[str, str]
    """The environment in which it ran."""
    is_skipped: bool
    slots: str
    usage: Usage


def describe(page: StagePage) -> str:
    """Markdown: what happened, a link to the stage's last MLflow run, and its metrics as a table."""
    lines = [
        f"## {page.stage.name}",
        "",
        "Up to date, nothing was run." if page.is_skipped else "Finished.",
        "",
    ]
    if not page.is_skipped:
        lines += [f"Resources: {page.slots}, {page.usage.told()}", ""]
    state = Path(page.env.get("RETRACE_STATE") or page.root / "state")
    runs = {run["name"]: run for run in latest_runs(state / "ledger.jsonl")}
    if page.stage.name in runs:
        run = runs[page.stage.name]
        lines += [f"{run['seconds']:.1f} s, started {run['started']}. {mlflow_link(run)}", ""]
    rows = [
        f"| {name} | {value:.6g} |"
        for path in page.stage.metrics
        if (page.root / path).exists()
        for name, value in json.loads((page.root / path).read_text()).items()
    ]
    return "\n".join([*lines, *(["| metric | value |", "|---|--:|", *rows] if rows else [])])


def mlflow_link(run: Mapping[str, str]) -> str:
    """Markdown that leads to a run of the ledger; its bare id where no server is known."""
    if not run.get("run_id"):
        return ""
    if not _base():
        return f"MLflow run `{run['run_id']}`"
    return (
        f"[MLflow run]({_base()}/#/experiments/{run['experiment_id']}/runs/{run['run_id']}?{TRAINING_PAGES})"
    )


def mlflow_search(stage: str) -> str:
    """Address of all runs of a stage in MLflow; "" where no server is known.

    MLflow's start page where its experiment is not known.
    """
    experiment, base = os.environ.get("RETRACE_MLFLOW_EXPERIMENT"), _base()
    if not experiment or not base:
        return base
    search = quote(f"tags.`dvc.stage` = '{stage}'")
    return f"{base}/#/experiments/{experiment}/runs?searchFilter={search}&{TRAINING_PAGES}"


def _base() -> str:
    """The server's address, "" for none: `RETRACE_MLFLOW_URL` is that of the server that `make ui` started."""
    base = os.environ.get("RETRACE_MLFLOW_URL") or os.environ.get("MLFLOW_TRACKING_URI", "")
    return without_password(base.rstrip("/")) if base.startswith("http") else ""
