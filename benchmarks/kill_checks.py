"""Checks after a run of a recipe that was killed many times: outputs, MLflow, Prefect, processes.

MLflow's runs by design (stages/observe/tracking.py, mlflow_uploader.py): a killed attempt leaves a run marked KILLED.
The next attempt at the same work continues that run, which ends as FINISHED. A stage that completed, but was killed (or
its DVC) before DVC recorded it, completes again and has a run for each. So in the end every run is FINISHED, and there
are as many runs as completed executions, which the kept logs (state/runs/) list. A run that MLflow never saw, because
its server or the uploader was killed too, is sent later from the kept log and has the tag `rebuilt`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.laptop_clone import CloneUi, clone_environment, different_outputs, processes_of
from stages.observe.tracking import kept_logs, metric_name, read_log, shown_name

RUNNING = ("RUNNING", "PENDING", "CANCELLING", "SCHEDULED")
SECONDS_TO_SETTLE = 15.0


@dataclass
class Check:
    """One check, its result, and every difference."""

    name: str
    found: dict[str, Any] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    def told(self) -> str:
        """Returns a line for the check and one for each difference."""
        numbers = ", ".join(f"{name} {value}" for name, value in self.found.items())
        head = f"{'FAILED' if self.differences else 'holds':7} {self.name}: {numbers}"
        return "\n".join([head, *(f"        {line}" for line in self.differences)])


def check_outputs(project: Path, wanted: Mapping[str, str]) -> Check:
    """Checks the hashes of dvc.lock, and that DVC finds the files as in the lock."""
    check = Check("every output equals that of the undisturbed run", {"outputs": len(wanted)})
    check.differences = different_outputs(project, wanted)
    check.found["equal"] = len(wanted) - len(check.differences)
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "status", "--json"],
        cwd=project,
        env=clone_environment(),
        text=True,
        capture_output=True,
    )
    try:
        status = json.loads(done.stdout)
    except ValueError:
        check.differences.append(f"dvc status failed: {done.stderr[-300:]}")
        return check
    changed = {name: why for name, why in status.items() if why != ["always changed"]}
    check.differences += [f"dvc status, {name}: {why}" for name, why in changed.items()]
    return check


def check_mlflow(project: Path) -> Check:
    """Checks for one FINISHED run per completed execution, with the last values of its kept log, and no other runs."""
    check = Check("no MLflow run is lost or double")
    runs, state = stage_runs(project / "state"), project / "state"
    finished = Counter(run.data.tags["stage_hash"] for run in runs if run.info.status == "FINISHED")
    names = {run.data.tags["stage_hash"]: run.data.tags.get("dvc.stage", "?") for run in runs}
    completed, recorded = completed_executions(state), ledger_lines(state)
    for run in runs:
        told = f"{run.data.tags.get('dvc.stage', '?')}, run {run.info.run_id}"
        if run.info.status != "FINISHED":
            check.differences.append(f"{told}: {run.info.status} at the end")
        if "half_made" in run.data.tags:
            check.differences.append(f"{told}: half_made, so the run of the execution itself was lost")
    for key in sorted({*finished, *completed, *recorded}):
        if finished[key] != completed[key] or finished[key] < recorded[key]:
            check.differences.append(
                f"{names.get(key, '?')} ({key[:16]}): {finished[key]} FINISHED runs, {completed[key]} in kept logs, "
                f"{recorded[key]} lines of the ledger"
            )
    waiting = sorted((state / "scratch").glob("*/tracking.jsonl"))
    check.differences += [f"{log} was never delivered to its end" for log in waiting]
    check.differences += missing_numbers(state, runs)
    attempts = [int(run.data.tags.get("attempts", "1")) for run in runs]
    check.found = {
        "runs": len(runs),
        "FINISHED": sum(finished.values()),
        "completed": sum(completed.values()),
        "sent later, from the kept log": sum("rebuilt" in run.data.tags for run in runs),
        "completed more than once": sum(count > 1 for count in completed.values()),
        "continued after a kill": sum(one > 1 for one in attempts),
        "attempts": sum(attempts),
    }
    return check


def stage_runs(state: Path) -> list[Any]:
    """Returns all runs of stages in the clone's MLflow database."""
    from mlflow.tracking import MlflowClient

    client, found, token = MlflowClient(f"sqlite:///{state / 'mlflow.db'}"), [], None
    experiment = client.get_experiment_by_name("retrace").experiment_id
    while True:
        page = client.search_runs([experiment], "tags.stage LIKE '%'", max_results=1000, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def completed_executions(state: Path) -> Counter[str]:
    """Executions that ended as FINISHED in kept logs, by stage hash; the log of one may hold another before it."""
    found: Counter[str] = Counter()
    for place in kept_logs(state):
        messages = read_log(place)
        start = next(one for one in messages if one["kind"] == "start")
        found[start["tags"]["stage_hash"]] += sum(
            one["kind"] == "end" and one["status"] == "FINISHED" for one in messages
        )
    return found


def ledger_lines(state: Path) -> Counter[str]:
    """Returns lines of the ledger, which a stage writes after its run is closed, by stage hash."""
    lines = (state / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    return Counter(json.loads(line)["stage_hash"] for line in lines)


def missing_numbers(state: Path, runs: list[Any]) -> list[str]:
    """Returns a line for each kept log whose MLflow run does not end with the log's last value of every metric."""
    by_start = {(run.data.tags["stage_hash"], run.info.start_time): run.data.metrics for run in runs}
    missing = []
    for place in kept_logs(state):
        messages = read_log(place)
        start = next(one for one in messages if one["kind"] == "start")
        wanted = {
            metric_name(shown_name(name)): value
            for message in messages
            if message["kind"] == "values"
            for name, value in message["values"].items()
        }
        found = by_start.get((start["tags"]["stage_hash"], int(start["ms"])), {})
        missing += [
            f"{start['name']}, {place.name}: {name} is {found.get(name, 'absent')}, logged as {value}"
            for name, value in wanted.items()
            if not math.isclose(found.get(name, math.nan), value, rel_tol=1e-9)
        ]
    return missing


def check_prefect(ui: CloneUi) -> Check:
    """Checks that the running server lists no flow run as running. Running tasks are only reported.

    A killed flow leaves its task as running until the next worker starts (pipelines/ui/deployments.py).
    """
    check = Check("no flow run is left running in Prefect")
    flows, tasks = ui.all_runs("flow_runs"), ui.all_runs("task_runs")
    check.found = {f"flow runs {state}": count for state, count in sorted(_states(flows).items())}
    check.found |= {f"tasks {state}": count for state, count in sorted(_states(tasks).items())}
    left = [run for run in flows if run["state_type"] in RUNNING]
    check.differences = [f"flow run {run['name']} ({run['id']}): {run['state_type']}" for run in left]
    return check


def _states(runs: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(run["state_type"]) for run in runs)


def check_processes(project: Path, exit_code: int) -> Check:
    """Checks that no process of the clone runs after `make ui` has ended; ending processes get some seconds."""
    check, until = (Check("nothing runs on after the servers were stopped"), time.monotonic() + SECONDS_TO_SETTLE)
    while (left := processes_of(project)) and time.monotonic() < until:
        time.sleep(0.5)
    check.found = {"processes": len(left), "exit code of make ui": exit_code}
    check.differences = [f"process {pid}: {command}" for pid, command in left.items()]
    if exit_code:
        check.differences.append(f"make ui ended with exit code {exit_code} after Ctrl-C")
    return check
