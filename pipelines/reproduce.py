"""The Prefect flow `reproduce`: one task per DVC stage, in graph order, with live logs.

DVC owns what runs: each task is `dvc repro --single-item STAGE`, which skips what is up to date, and nothing is
cached here. The flow owns clocks, logs and the end of child processes. `dvc repro` alone gives the same result.

    python -m pipelines.reproduce            # once, on the server at PREFECT_API_URL or a passing one of its own
    python -m pipelines.reproduce --serve    # waits to be started from the UI; `make ui` runs this
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.process_group import dvc, run_in_group, terminated_as_interrupt
from stages.foundations.ledger import latest_runs
from stages.foundations.scratch import PROJECT, state_folder

# Read once, when Prefect is imported: its database belongs to the project, and nothing is reported home.
os.environ.setdefault("PREFECT_HOME", str(state_folder() / "prefect"))
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

LINES_IN_A_FAILURE = 25
TRAINING_PAGES = "?workflowType=machine_learning"  # without it MLflow shows its pages for agents' traces


@dataclass(frozen=True)
class DvcStage:
    """A stage of the graph: its address (`rl_round@rl_1`) and its metric files."""

    name: str
    metrics: tuple[str, ...]


class StageFailed(Exception):
    """The stage's command failed; the message ends with its last lines."""


@flow(name="reproduce", flow_run_name="reproduce", log_prints=False, persist_result=False)
def reproduce(project: str | None = None, hours_per_stage: float = 48.0) -> None:
    """Brings every stage of the DVC project up to date, in graph order. The first failure ends the flow."""
    root = Path(project) if project else PROJECT
    for stage in stages_in_order(root):
        bring_up_to_date.with_options(task_run_name=stage.name)(str(root), stage, hours_per_stage)


@task(name="stage", cache_policy=NO_CACHE, persist_result=False, retries=0)
def bring_up_to_date(project: str, stage: DvcStage, hours: float) -> None:
    """Runs one stage where DVC finds it changed. Raises StageFailed with its last lines, or TimedOut."""
    logger, last = get_run_logger(), deque[str](maxlen=LINES_IN_A_FAILURE)

    def on_line(line: str) -> None:
        if line.strip():
            last.append(line)
            logger.info("%s", line)

    root = Path(project)
    code = run_in_group(dvc("repro", "--single-item", stage.name), root, on_line, hours * 3600)
    if code:
        raise StageFailed(f"stage {stage.name} failed (exit code {code}):\n" + "\n".join(last))
    is_skipped = any("didn't change, skipping" in line for line in last)
    create_markdown_artifact(
        markdown=describe(root, stage, is_skipped),
        key="stage-" + "".join(letter if letter.isalnum() else "-" for letter in stage.name.lower()),
        description=f"Metrics of stage {stage.name}",
    )


def stages_in_order(root: Path) -> list[DvcStage]:
    """The stages DVC finds, each after all it depends on, otherwise as they stand in dvc.yaml."""
    import networkx
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        place = {stage: number for number, stage in enumerate(repo.index.stages)}
        # DVC's edges point from a stage to what it depends on.
        order = networkx.lexicographical_topological_sort(repo.index.graph.reverse(), key=place.__getitem__)
        return [DvcStage(_address(stage, root), _metric_files(stage, root)) for stage in order]


def _address(stage: Any, root: Path) -> str:
    """What `dvc repro` calls the stage in folder `root` (DVC's own `addressing` is relative to where we are)."""
    file, name = os.path.relpath(stage.path, root), getattr(stage, "name", None)
    return name if file == "dvc.yaml" else ":".join(filter(None, [file, name]))


def _metric_files(stage: Any, root: Path) -> tuple[str, ...]:
    return tuple(os.path.relpath(out.fs_path, root) for out in stage.outs if out.metric)


def describe(root: Path, stage: DvcStage, is_skipped: bool) -> str:
    """Markdown: what happened, a link to the stage's last MLflow run, and its metrics as a table."""
    lines = [f"## {stage.name}", "", "Up to date, nothing was run." if is_skipped else "Finished.", ""]
    runs = {run["name"]: run for run in latest_runs(root / "state" / "ledger.jsonl")}
    if stage.name in runs:
        run = runs[stage.name]
        lines += [f"{run['seconds']:.1f} s, started {run['started']}. {_mlflow_link(run)}", ""]
    rows = [
        f"| {name} | {value:.6g} |"
        for path in stage.metrics
        if (root / path).exists()
        for name, value in json.loads((root / path).read_text()).items()
    ]
    return "\n".join([*lines, *(["| metric | value |", "|---|--:|", *rows] if rows else [])])


def _mlflow_link(run: dict[str, str]) -> str:
    """`RETRACE_MLFLOW_URL` is the address of the server that `make ui` started."""
    base = os.environ.get("RETRACE_MLFLOW_URL") or os.environ.get("MLFLOW_TRACKING_URI", "")
    if not run.get("run_id"):
        return ""
    if not base.startswith("http"):
        return f"MLflow run `{run['run_id']}`"
    return f"[MLflow run]({base.rstrip('/')}/#/experiments/{run['experiment_id']}/runs/{run['run_id']}{TRAINING_PAGES})"


def main(argv: list[str]) -> None:
    """Runs the flow once, or serves it; SIGTERM ends the running stage with all its processes."""
    if argv == ["--serve"]:
        reproduce.serve(name="reproduce", limit=1, print_starting_message=False)
        return
    with terminated_as_interrupt():
        reproduce(*argv[:1])


if __name__ == "__main__":
    main(sys.argv[1:])
