"""Each stage run as an MLflow run: live curves, parameters, dataset inputs with DVC's hashes, tags.

    with track(attempt_at("sft", params.model_dump(), {"train": path}, seed=seed)) as run:
        for step in range(steps):
            with run.phase("update"):
                ...
            run.log({"loss/train": loss}, step)
        run.summary(metrics)

The stage only appends lines to a log in the attempt's scratch folder (about 30 microseconds a call). A second process,
stages/observe/mlflow_uploader.py, follows the log and speaks to MLflow, so that importing MLflow (1.2 s), its
database and a slow server cost the stage nothing, and numbers that cannot be delivered wait on the disk.

The address is `$MLFLOW_TRACKING_URI`, else the SQLite database `state/mlflow.db`. A server that does not
answer is refused before the stage does any work; one that goes away later is told about at the end.
`RETRACE_TRACKING=off` writes nothing at all (tests); ranks other than 0 of a distributed stage write nothing.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.foundations.attempt import Attempt
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.foundations.scratch import PROJECT, state_folder
from stages.observe.progress import say
from stages.observe.stage_timings import add_to_ledger

SERVER_ANSWERS_SECONDS = 5.0
DELIVERY_ENDS_SECONDS = 40.0
LOG_NAME = "tracking.jsonl"
DELIVERY_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the delivery process has its own patience
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Run:
    """Where a stage says what it does. No method returns a value, so nothing of it can reach an output."""

    def __init__(self, log: Any | None) -> None:
        self._log = log
        self._seconds: dict[str, float] = {}
        self._nan_steps = 0
        self._last_step = 0

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Points of curves. NaN and infinite values are left out and counted in `nan_steps`."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if len(finite) < len(values):
            self._nan_steps += 1
            finite["nan_steps"] = self._nan_steps
        self._last_step = max(self._last_step, step)
        self._append({"kind": "values", "ms": _now_ms(), "step": step, "values": finite})

    def summary(self, values: Mapping[str, float]) -> None:
        """The stage's final numbers (what its metrics file holds), at the last step logged."""
        self.log(values, self._last_step)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the block's wall time to phase `name`; the sums go to MLflow and to the ledger at the end."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def _append(self, message: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.write(json.dumps(message).encode() + b"\n")


@contextmanager
def track(attempt: Attempt) -> Iterator[Run]:
    """Opens the run of an attempt and closes it as FINISHED, FAILED (an exception) or KILLED (an interrupt).

    An attempt at the same work as one that did not finish goes on with that attempt's MLflow run. UserError when the
    tracking server does not answer within 5 s.
    """
    if os.environ.get("RETRACE_TRACKING") == "off" or os.environ.get("RANK", "0") != "0":
        yield Run(None)
        return
    uri, scratch = tracking_uri(), attempt.scratch
    _require_answer(uri)
    names = {"stage": attempt.stage, "policy": attempt.policy, "round": attempt.round}
    name = os.environ.get("DVC_STAGE") or "@".join(
        filter(None, [attempt.stage, attempt.policy or attempt.round])
    )
    start = {
        "kind": "start",
        "ms": _now_ms(),
        "uri": uri,
        "name": name,
        "params": dict(attempt.params),
        "inputs": {
            key: {"path": str(path), "digest": attempt.digests[key]} for key, path in attempt.inputs.items()
        },
        "tags": {**_tags({**names, "seed": attempt.seed}), "stage_hash": attempt.stage_hash},
    }
    with open(scratch / LOG_NAME, "ab", buffering=0) as log:
        log.write(b"\n")  # the attempt before may have been killed in the middle of a line
        run = Run(log)
        run._append(json.loads(json.dumps(start, default=str)))
        delivery = _start_delivery(scratch)
        started, since, status = (
            time.time(),
            time.perf_counter(),
            "FAILED",
        )  # a clock set in mid-run moves no duration
        try:
            yield run
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit):
            status = "KILLED"
            raise
        finally:
            seconds = time.perf_counter() - since
            times = {f"time/{phase}_seconds": spent for phase, spent in run._seconds.items()}
            run.summary({**times, "time/total_seconds": seconds})
            run._append({"kind": "end", "ms": _now_ms(), "status": status})
            mlflow_ids = _end_delivery(delivery, scratch, uri)
    if status == "FINISHED":
        times = {"started": started, "seconds": seconds, "phases": run._seconds}
        add_to_ledger({"name": name, **names, "stage_hash": attempt.stage_hash, **mlflow_ids, **times})


def tracking_uri() -> str:
    """`$MLFLOW_TRACKING_URI`, else the project's own SQLite database (absolute: any working folder will do)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{state_folder() / 'mlflow.db'}"


def recipe_name(root: Path) -> str:
    """The recipe last taken into use, with `+changes` when `params.yaml` has been edited since; "" if unknown."""
    chosen, params = root / "state" / "recipe", root / "params.yaml"
    if chosen.exists():
        name, _, resolved = chosen.read_text().strip().partition("\n")
    else:  # a fresh clone
        name, recipe = "laptop", root / "pipelines" / "recipes" / "laptop.yaml"
        resolved = sha256_of(recipe) if recipe.exists() else ""
    if not params.exists() or not (chosen.exists() or resolved):
        return ""
    return name if resolved == sha256_of(params) else f"{name}+changes"


def _tags(identity: Mapping[str, Any]) -> dict[str, str]:
    tags = {name: str(value) for name, value in identity.items() if value is not None}
    tags["ablation"] = os.environ.get("RETRACE_ABLATION", "none")
    tags["variant"] = os.environ.get("RETRACE_VARIANT", "")
    tags["recipe"] = recipe_name(state_folder().parent)
    tags["dvc.stage"] = os.environ.get("DVC_STAGE", "")
    tags["dvc.exp"] = os.environ.get("DVC_EXP_NAME", "")
    return {name: value for name, value in tags.items() if value}


def _require_answer(uri: str) -> None:
    if not uri.startswith(("http://", "https://")):
        return
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=SERVER_ANSWERS_SECONDS).close()
    except urllib.error.HTTPError as error:
        if error.code < 500:
            return
        reason: object = error
    except OSError as error:
        reason = getattr(error, "reason", error)
    else:
        return
    raise UserError(
        f"the MLflow server at {uri} does not answer ({reason}): start it, or unset MLFLOW_TRACKING_URI "
        "to write to state/mlflow.db"
    )


def _start_delivery(scratch: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stages.observe.mlflow_uploader", str(scratch)]
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**DELIVERY_SETTINGS, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def _end_delivery(delivery: subprocess.Popen[str], scratch: Path, uri: str) -> dict[str, str]:
    """Waits until the log is delivered or given up; returns MLflow's run_id and experiment_id ("" if unknown)."""
    try:
        printed, _ = delivery.communicate(timeout=DELIVERY_ENDS_SECONDS)
    except subprocess.TimeoutExpired:
        delivery.kill()
        printed, _ = delivery.communicate()
    lines = printed.splitlines() or ['{"error": "the delivery process died"}']
    report = json.loads(lines[-1])
    if report.get("error"):
        say(
            f"WARNING: not everything reached MLflow at {uri}: {report['error']}\n"
            f"         The stage's outputs are complete. Deliver the rest later with: "
            f"python -m stages.observe.mlflow_uploader {scratch}"
        )
    return {name: report.get(name, "") for name in ("run_id", "experiment_id")}


def _now_ms() -> int:
    return int(time.time() * 1000)
