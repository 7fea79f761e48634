"""`retrace mirror`: brings MLflow up to date from records outside of it. Running it again changes nothing.

state/runs/          the log of each finished stage run: every point, time, parameter and tag
state/scratch/       logs of runs that failed or were killed
state/graph_runs/    a record of each run of the graph: its parameters, scores and stages
dvc.lock             here, in each commit, experiment and result of an ablation: runs of the graph without a record
state/comparisons/   tables of `retrace compare`;  state/ablations/ results of `retrace ablate`

`--to tensorboard` and `--to wandb` copy the curves of `state/runs/`. Their packages are optional.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipelines.records.graph_run import experiment_snapshots, keep_record, kept_records, log_records
from pipelines.records.lock_snapshots import LockSnapshot, kept_snapshots, snapshots_in_git, working_snapshot
from pipelines.records.tracking_store import mlflow_faults, open_store, remove_half_made
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, write_text_atomically
from stages.foundations.machine import PROJECT, state_folder
from stages.foundations.packages import require_package
from stages.observe.tracking import LOCK_NAME, LOG_NAME, end_of, keep_if_finished, kept_logs, read_log

if TYPE_CHECKING:
    from pipelines.ablating.writing import AblationFindings
    from stages.observe.mlflow_store import MlflowStore

BROKEN_LOG = (OSError, EOFError, zlib.error, LookupError, TypeError, ValueError)


def mirror(
    to: Annotated[
        Literal["mlflow", "tensorboard", "wandb"],
        typer.Option(help="tensorboard: write state/tensorboard/; wandb: send; for runs that ran here"),
    ] = "mlflow",
    project: Annotated[str, typer.Option(help="the W&B project")] = "retrace",
) -> None:
    """Send MLflow every run that it lacks, from kept logs, git, dvc.lock and the records of runs of the graph.

    Safe to run at any time: complete runs are not changed, so deleting state/mlflow.db loses no number. A stage that a
    cache hit restored has never run here and gets no run. TensorBoard and W&B get their curves here too.
    """
    state, problems = state_folder(), []
    if to == "mlflow":
        report = rebuild(PROJECT, state)
        problems = report.problems
        typer.echo(report.summary())
    elif to == "tensorboard":
        made = to_tensorboard(state, problems)
        typer.echo(f"{made} runs were added to tensorboard: tensorboard --logdir {state / 'tensorboard'}")
    else:
        typer.echo(f"{to_wandb(state, project, problems)} runs were added to wandb")
    for problem in problems:
        typer.echo(f"WARNING: {problem}", err=True)


@dataclass
class Report:
    stage_runs: int = 0
    """Runs of stages that MLflow lacked, or had only in part."""
    graph_runs: int = 0
    """Runs of the graph, the parents of stage runs."""
    results: int = 0
    """Comparisons and results of ablations."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_nothing(self) -> bool:
        return not any((self.stage_runs, self.graph_runs, self.results))

    def summary(self) -> str:
        if self.is_nothing:
            return "MLflow was told nothing" if self.problems else "MLflow has every run: nothing to do"
        return (
            f"MLflow got {self.stage_runs} runs of stages, {self.graph_runs} runs of the graph, {self.results} results "
            "of comparisons and ablations"
        )


def rebuild(root: Path, state: Path) -> Report:
    """Brings MLflow (`$MLFLOW_TRACKING_URI`, else state/mlflow.db) up to date with the project at `root`.

    Does nothing with RETRACE_TRACKING=off. Concurrent calls wait for each other. UserError when MLflow is unreachable.
    """
    if os.environ.get("RETRACE_TRACKING") == "off":
        return Report(problems=["RETRACE_TRACKING=off: nothing is tracked"])
    # The lock of the database, which the worktree of a retraining shares.
    lock_file = state_folder() / "mirror.lock"
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_file, "w") as lock, mlflow_faults("finished runs are kept; run `retrace mirror` again to continue"):
        # Concurrent calls would each create the missing runs.
        fcntl.flock(lock, fcntl.LOCK_EX)
        store, report = open_store(), Report()
        # First, because incomplete runs of a killed mirroring would count as existing.
        remove_half_made(store)
        _send_logs(store, state, report)
        # After their stages, which become their children.
        report.graph_runs = _graph_runs(store, root, state, report)
        report.results = _results(store, root, state, report)
    return report


def _send_logs(store: MlflowStore, state: Path, report: Report) -> None:
    for log in sorted((state / "scratch").glob(f"*/{LOG_NAME}")):
        with _nobody_sends(log) as is_free:
            # Another attempt may continue the log of a run that has not finished: it stays there.
            if is_free and not keep_if_finished(log):
                _send(store, log, report)
    for log in kept_logs(state):
        _send(store, log, report)


@contextmanager
def _nobody_sends(log: Path) -> Iterator[bool]:
    """False while the stage of a log runs, or its uploader; otherwise keeps uploaders waiting inside the block."""
    with open(log.parent / LOCK_NAME, "w") as lock, open(log, "rb") as of_stage:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(of_stage, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        fcntl.flock(of_stage, fcntl.LOCK_UN)  # a stage that starts now would take another folder
        yield True


def _send(store: MlflowStore, log: Path, report: Report) -> None:
    from stages.observe.mlflow_store import send_log

    try:
        report.stage_runs += send_log(store, read_log(log))
    except BROKEN_LOG as error:
        report.problems.append(f"{log} is not readable ({error!r}): its numbers are left out")


def _graph_runs(store: MlflowStore, root: Path, state: Path, report: Report) -> int:
    """Keeps a record of each run of the graph in a `dvc.lock`; returns how many records MLflow lacked."""
    tell = report.problems.append
    places: list[LockSnapshot] = []
    try:
        # First, because the workspace takes precedence over an older commit with the same stages.
        places.append(working_snapshot(root))
    except UserError as error:
        tell(str(error))
    places += [*experiment_snapshots(root, tell), *kept_snapshots(root, state, tell), *snapshots_in_git(root, tell)]
    for place in places:
        try:
            keep_record(place, state)
        except (UserError, ValueError, LookupError) as error:
            tell(f"{place.label}: its run of the graph is left out ({error})")
    return log_records(store, root, state, kept_records(state, tell))


def _results(store: MlflowStore, root: Path, state: Path, report: Report) -> int:
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


@dataclass(frozen=True)
class TrackedRun:
    id: str
    """Start in ms and the first digits of the stage's hash."""
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    """By dotted name."""
    points: Mapping[int, Mapping[str, tuple[float, int]]]
    """Step -> metric -> value and time (ms since 1970). Of two attempts, the later value counts. Step 0 is the summary.
    """
    is_finished: bool


def tracked_runs(state: Path, problems: list[str]) -> Iterator[TrackedRun]:
    """Yields the kept logs, oldest first; an unreadable log becomes a sentence in `problems`."""
    from stages.observe.mlflow_store import describe_name, flatten

    for log in kept_logs(state):
        try:
            messages = read_log(log)
            start = [message for message in messages if message["kind"] == "start"][-1]
            tags = dict(start["tags"])
            points: dict[int, dict[str, tuple[float, int]]] = {}
            for message in messages:
                if message["kind"] == "tags":
                    tags |= message["tags"]
                elif message["kind"] == "values":
                    known = points.setdefault(message["step"], {})
                    known |= {name: (value, message["ms"]) for name, value in message["values"].items()}
            run_id, name = log.name.removesuffix(".jsonl.gz"), describe_name(start["name"], tags)
            is_finished = end_of(messages)["status"] == "FINISHED"
            params = dict(flatten(start["params"]))
            yield TrackedRun(run_id, name, tags, params, dict(sorted(points.items())), is_finished)
        except BROKEN_LOG as error:
            problems.append(f"{log} is no kept log ({error!r}): it is left out")


def to_tensorboard(state: Path, problems: list[str]) -> int:
    """Writes a folder of events in `state/tensorboard/` for each run that has none; returns their number."""
    require_package("tensorboard", "`retrace mirror --to tensorboard`")
    from torch.utils.tensorboard import SummaryWriter

    made = 0
    for run in tracked_runs(state, problems):
        place = state / "tensorboard" / f"{run.id} {run.name}".replace("/", "_")
        # Written once and atomically (`replace_folder`), so an existing folder is complete.
        if place.is_dir():
            continue
        with replace_folder(place) as beside:
            writer = SummaryWriter(str(beside))
            writer.add_text("params", "\n".join(f"    {name}: {value}" for name, value in run.params.items()) or "none")
            for step, values in run.points.items():
                for name, (value, ms) in values.items():
                    writer.add_scalar(name, value, step, walltime=ms / 1000)
            writer.close()
        made += 1
    return made


def to_wandb(state: Path, project: str, problems: list[str]) -> int:
    """Sends each run that was not sent to this project before; returns their number.

    `state/wandb.txt` lists the runs that arrived. WANDB_MODE=offline writes them to disk, for `wandb sync`. UserError
    when W&B cannot be reached or does not know the user; the runs before that one have arrived.
    """
    require_package("wandb", "`retrace mirror --to wandb`")
    import wandb

    # This process is not part of the run, which ended earlier, perhaps on another machine.
    quiet = {"silent": True, "console": "off", "init_timeout": 30}
    apart = {"disable_code": True, "disable_git": True, "x_disable_stats": True}
    settings: dict[str, Any] = {"project": project, "dir": str(state), "settings": wandb.Settings(**quiet, **apart)}
    record = state / "wandb.txt"
    sent = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    made = 0
    for run in tracked_runs(state, problems):
        if f"{project} {run.id}" in sent:
            continue
        tags = [run.tags["stage"], f"seed {run.tags.get('seed', '?')}"]
        try:
            target = wandb.init(id=run.id, name=run.name, config=dict(run.params), tags=tags, **settings)
            for step, values in run.points.items():
                if step:  # W&B takes steps only in order, and the summary has none
                    target.log({name: value for name, (value, _) in values.items()}, step=step)
            target.summary.update({name: value for name, (value, _) in run.points.get(0, {}).items()})
            target.finish(exit_code=0 if run.is_finished else 1)
        except (wandb.errors.Error, OSError) as error:
            raise UserError(
                f"run {run.name} was not sent to W&B ({error}): run `wandb login`, look at the network, or set "
                f"WANDB_MODE=offline; {made} runs arrived before it"
            ) from error
        made += 1
        sent.append(f"{project} {run.id}")
        write_text_atomically(record, "\n".join(sent) + "\n")
    return made
