"""`retrace mirror`: rebuilds every MLflow run from records outside of MLflow. Running it again changes nothing.

state/runs/          the tracking log of each executed run: every point, time, parameter and tag
state/scratch/       logs of runs that failed, were killed, or could not be delivered
state/graph_runs/    a record of each run of the graph: its parameters, scores and stages
dvc.lock             here, in each commit, experiment and result of an ablation; with metric files, curves, the ledger
state/comparisons/   tables of `retrace compare`;  state/ablations/ results of `retrace ablate`
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines.records.graph_run import experiment_snapshots, keep_record, kept_records, log_records
from pipelines.records.lock_snapshots import LockSnapshot, kept_snapshots, snapshots_in_git, working_snapshot
from pipelines.records.tracking_store import mlflow_faults, open_store
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT, state_folder
from stages.observe.tracking import read_ledger

if TYPE_CHECKING:
    from pipelines.ablating.writing import AblationFindings
    from stages.observe.mlflow_store import MlflowStore


def mirror(
    as_json: Annotated[bool, typer.Option("--json", help="print what was done as JSON")] = False,
    to: Annotated[
        Literal["mlflow", "tensorboard", "wandb"],
        typer.Option(help="tensorboard: write state/tensorboard/; wandb: send; for runs that ran here"),
    ] = "mlflow",
    project: Annotated[str, typer.Option(help="the W&B project")] = "retrace",
) -> None:
    """Rebuild every MLflow run that is missing, from kept logs, git, dvc.lock, metric files, curves and the ledger.

    Safe to run at any time: existing runs are not changed, so deleting state/mlflow.db loses no number. Stages that a
    cache hit restored also get a run, with the tag `mirrored: true`. TensorBoard and W&B get their curves here too.
    """
    if to != "mlflow":
        return _mirror_elsewhere(to, project)
    report = rebuild(PROJECT, state_folder())
    typer.echo(json.dumps(asdict(report), indent=2) if as_json else report.summary())
    for problem in report.problems:
        typer.echo(f"WARNING: {problem}", err=True)


def _mirror_elsewhere(to: str, project: str) -> None:
    from pipelines.commands.trackers import to_tensorboard, to_wandb

    folder = state_folder() / "tensorboard"
    made, problems = to_wandb(state_folder(), project) if to == "wandb" else to_tensorboard(state_folder(), folder)
    for problem in problems:
        typer.echo(f"WARNING: {problem}", err=True)
    typer.echo(f"{made} runs were added to {to}" + ("" if to == "wandb" else f": tensorboard --logdir {folder}"))


@dataclass
class Report:
    """The result of one mirroring."""

    replayed: int = 0
    """Executed runs that were missing in MLflow."""
    delivered: int = 0
    """Logs of unfinished runs that had not been delivered to MLflow."""
    mirrored: int = 0
    """Stages without an executed run: restored from a cache, or run before logs were kept."""
    graph_runs: int = 0
    """Runs of the graph, the parents of stage runs."""
    results: int = 0
    """Comparisons and results of ablations."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_nothing(self) -> bool:
        return not any((self.replayed, self.delivered, self.mirrored, self.graph_runs, self.results))

    def summary(self) -> str:
        """Returns a summary in one line."""
        if self.is_nothing:
            return "MLflow was told nothing" if self.problems else "MLflow has every run: nothing to do"
        parts = (
            (self.replayed, "rebuilt from their logs"),
            (self.mirrored, "rebuilt from dvc.lock and metric files"),
            (self.delivered, "unfinished ones delivered"),
            (self.graph_runs, "runs of the graph"),
            (self.results, "comparisons and ablation results"),
        )
        return "MLflow runs: " + ", ".join(f"{count} {what}" for count, what in parts if count)


def rebuild(root: Path, state: Path) -> Report:
    """Brings MLflow (`$MLFLOW_TRACKING_URI`, else state/mlflow.db) up to date with the project at `root`.

    Does nothing with RETRACE_TRACKING=off. Concurrent calls wait for each other. UserError when MLflow is unreachable.
    """
    if os.environ.get("RETRACE_TRACKING") == "off":
        return Report(problems=["RETRACE_TRACKING=off: nothing is tracked"])
    from pipelines.records.stage_runs import deliver_unfinished, mirror_entries, remove_half_made, replay_kept

    # The lock of the database, which the worktree of a retraining shares.
    lock_file = state_folder() / "mirror.lock"
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_file, "w") as lock, mlflow_faults("finished runs are kept; run `retrace mirror` again to continue"):
        # Concurrent calls would each create the missing runs.
        fcntl.flock(lock, fcntl.LOCK_EX)
        store, report = open_store(), Report()
        # First, because incomplete runs of a killed mirroring would count as existing.
        remove_half_made(store)
        report.delivered = deliver_unfinished(store, state)
        # Logs before dvc.lock: a run with its points is worth more than one rebuilt from final numbers.
        report.replayed, report.problems = replay_kept(store, state)
        places = _places(root, state, report)
        report.mirrored = mirror_entries(store, places, read_ledger(state / "ledger.jsonl"))
        report.graph_runs = _graph_runs(store, root, state, places, report)
        report.results = _results(store, root, state, report)
    return report


def _places(root: Path, state: Path, report: Report) -> list[LockSnapshot]:
    """Returns recorded places: here, ablations, then commits from the oldest. A broken one is reported and skipped."""
    here: list[LockSnapshot] = []
    try:
        # First, because the workspace takes precedence over an older commit with the same stage.
        here.append(working_snapshot(root))
    except UserError as error:
        report.problems.append(str(error))
    tell = report.problems.append
    return [*here, *experiment_snapshots(root, tell), *kept_snapshots(root, state, tell), *snapshots_in_git(root, tell)]


def _graph_runs(store: MlflowStore, root: Path, state: Path, places: list[LockSnapshot], report: Report) -> int:
    for place in places:
        try:
            keep_record(place, state)
        except (UserError, ValueError, LookupError) as error:
            report.problems.append(f"{place.label}: its run of the graph is left out ({error})")
    return log_records(store, root, state, kept_records(state, report.problems.append))


def _results(store, root: Path, state: Path, report: Report) -> int:
    """Mirrors tables of comparisons, and results of ablations whose runs all exist."""
    from pipelines.comparing.tracking import log_comparison

    made = 0
    for file in sorted((state / "comparisons").glob("*.json")):
        try:
            made += log_comparison(store, json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, KeyError) as error:
            report.problems.append(f"{file} is no kept comparison ({error}): run `retrace compare` again")
    for folder in sorted((state / "ablations").glob("*/results")):
        findings = _ablation_result(root, state, folder.parent.name)
        made += findings is not None and findings.track()
    return made


def _ablation_result(root: Path, state: Path, name: str) -> AblationFindings | None:
    """Returns the result of a finished ablation; None if its file has changed or it is not finished yet."""
    from pipelines.ablating.definition import read_ablation
    from pipelines.ablating.plan import plan_runs
    from pipelines.ablating.writing import AblationFindings

    try:
        ablation = read_ablation(root, name)
        findings = AblationFindings(ablation, state, plan_runs(root, ablation, None, None))
    except UserError:
        return None
    return None if findings.about["missing"] else findings
