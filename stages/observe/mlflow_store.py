"""The requests to MLflow behind a tracking log: experiment, run, parameters, inputs, points, end.

All runs are in the experiment `retrace`: runs of the graph, with stage runs below them. Stages do not load this module,
because it imports MLflow.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from stages.foundations.files import load_yaml
from stages.foundations.job import code_digest
from stages.foundations.machine import list_gpus
from stages.observe.git import ask_git
from stages.observe.tracking import shown_name

EXPERIMENT = "retrace"
LONGEST_PARAM = 500  # characters; MLflow cuts longer ones (at 6000) and its table shows far fewer
# MLflow's own limits, for the digest of a dataset and for the parameters of one batch.
LONGEST_DIGEST = 36
PARAMS_PER_REQUEST = 100
POINTS_PER_REQUEST = 1000  # MLflow rejects more in one batch


class Refused(Exception):
    """MLflow understood the request and will never accept it."""


class MlflowStore:
    """One tracking address. Failures other than `Refused` may be temporary: the caller keeps its data and retries."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        with _only_one_creates(uri):
            self.client = MlflowClient(uri)
            self.experiment_id = self._experiment()

    def _experiment(self) -> str:
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        if experiment:
            return experiment.experiment_id
        database = _sqlite_file(self.uri)
        # MLflow would put artifacts beside the working folder, which differs between checkouts of one project.
        artifacts = (database.parent / "mlartifacts").as_uri() if database else None
        return self.client.create_experiment(EXPERIMENT, artifact_location=artifacts)

    def start(self, message: Mapping[str, Any], run_id: str) -> str:
        """Continues `run_id` where MLflow has it, else creates a run; returns its id.

        Parameters are written once, at creation: MLflow rejects another value later. An unknown run with the same start
        comes from a delivery that was killed before it could record the id: it is completed.
        """
        with _refusals():
            if run_id and self._continues(run_id, message["tags"]):
                return run_id
            if begun := self.run_begun(message["tags"]["stage_hash"], message["ms"]):
                self._log_batch(begun, message)
                return begun
            source = {"mlflow.source.name": f"stages.{message['tags']['stage']}", "mlflow.source.type": "LOCAL"}
            return self.create(message, {**message["tags"], **_git_tags(), **source, **_machine_tags(message["tags"])})

    def create(self, message: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        """Creates a run with these tags and the message's parameters and inputs; returns its id."""
        run = self.client.create_run(
            self.experiment_id, message["ms"], dict(tags), describe_name(message["name"], tags)
        )
        self._log_batch(run.info.run_id, message)
        return run.info.run_id

    def run_begun(self, stage_hash: str, ms: int) -> str:
        """Id of the run with this stage hash that began at `ms`; "" for none."""
        wanted = f"tags.stage_hash = '{stage_hash}' and attributes.start_time = {ms}"
        runs = self.client.search_runs([self.experiment_id], wanted, max_results=1)
        return runs[0].info.run_id if runs else ""

    def _log_batch(self, run_id: str, message: Mapping[str, Any]) -> None:
        """Writes parameters and inputs; repeating it changes nothing."""
        self._write_params(run_id, message["params"])
        self._write_inputs(run_id, message["inputs"])

    def log(self, run_id: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Writes points; where MLflow rejects one, the others still arrive before `Refused` is raised."""
        points = [
            Metric(shown_name(name), value, message["ms"], message["step"])
            for message in messages
            for name, value in message["values"].items()
        ]
        refused: list[str] = []
        for first in range(0, len(points), POINTS_PER_REQUEST):
            batch = points[first : first + POINTS_PER_REQUEST]
            try:
                with _refusals():
                    self.client.log_batch(run_id, metrics=batch)
            except Refused:
                refused += self._log_singly(run_id, batch)
        if refused:
            raise Refused("; ".join(refused))

    def _log_singly(self, run_id: str, points: Sequence[Metric]) -> list[str]:
        """Returns the rejected points, one line each."""
        refused: list[str] = []
        for point in points:
            try:
                with _refusals():
                    self.client.log_batch(run_id, metrics=[point])
            except Refused as error:
                refused.append(f"{point.key}: {error}")
        return refused

    def end(self, run_id: str, status: str, ms: int) -> None:
        """Closes the run as FINISHED, FAILED or KILLED at `ms` (since 1970)."""
        with _refusals():
            self.client.set_terminated(run_id, status, ms)

    def _continues(self, run_id: str, tags: Mapping[str, str]) -> bool:
        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        # The previous attempt has closed the run as KILLED or FAILED.
        self.client.update_run(run_id, status="RUNNING")
        if "lock_hash" in tags:  # a dependency that does not change the stage's hash may differ now
            self.client.set_tag(run_id, "lock_hash", tags["lock_hash"])
        self.client.set_tag(run_id, "attempts", str(int(run.data.tags.get("attempts", "1")) + 1))
        return True

    def _write_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        flat = dict(flatten(params))
        long = {name: value for name, value in flat.items() if len(value) > LONGEST_PARAM}
        if long:
            self.client.log_text(run_id, json.dumps(params, indent=2, default=str), "params.json")
        short = [Param(name, "see params.json" if name in long else value) for name, value in flat.items()]
        for first in range(0, len(short), PARAMS_PER_REQUEST):
            self.client.log_batch(run_id, params=short[first : first + PARAMS_PER_REQUEST])

    def _write_inputs(self, run_id: str, inputs: Mapping[str, Mapping[str, str]]) -> None:
        datasets = [
            DatasetInput(
                Dataset(name, source["digest"][:LONGEST_DIGEST], "dvc", json.dumps({"path": source["path"]})),
                [InputTag("mlflow.data.context", name)],
            )
            for name, source in inputs.items()
        ]
        if datasets:
            self.client.log_inputs(run_id, datasets)


def flatten(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Returns `{"a": {"b": 1}}` as `("a.b", "1")`; lists are written as JSON."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, default=str)


def describe_name(name: str, tags: Mapping[str, str]) -> str:
    """Returns the run's name, which starts with what distinguishes it in MLflow's narrow column.

    `grade@rl_3 s0 rl.group_size=8`: stage, seed, variation (a DVC experiment's name, or the change). An ablation's
    variant comes before the stage. A run that belongs to no stage (tag `kind`) has its name already.
    """
    if "kind" in tags:
        return name
    seed = f"s{tags['seed']}" if tags.get("seed") else ""
    if tags.get("variant"):
        return " ".join(filter(None, [tags["variant"], seed, name]))
    varies = tags.get("variation") or tags.get("dvc.exp", "")
    recipe = tags.get("recipe", "")
    recipe = recipe.removesuffix("+changes") if varies else recipe
    # The laptop recipe is the default, and naming it would only take room.
    return " ".join(filter(None, [name, seed, "" if recipe == "laptop" else recipe, varies]))


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        # These two mean that the request is wrong. Other codes may be temporary: a locked database, a full server.
        if error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
            raise Refused(str(error)) from error
        raise


@contextmanager
def _only_one_creates(uri: str) -> Iterator[None]:
    """Several processes that create a SQLite database at once leave it broken (MLflow 3.17: 1 of 6 got one)."""
    database = _sqlite_file(uri)
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with open(database.with_suffix(".lock"), "w") as lock:
        # Held while the client creates its tables; an existing database is opened in a moment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sqlite_file(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")).absolute() if uri.startswith("sqlite:///") else None


def _machine_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the user of the stage, its visible GPUs, its ranks, the hash of its code, and the seed of the run."""
    machine = {
        "mlflow.user": getpass.getuser(),
        "gpus": str(len(list_gpus("CUDA_VISIBLE_DEVICES"))),
        "ranks": os.environ.get("WORLD_SIZE", "1"),
    }
    machine |= {"code": digest} if (digest := code_digest(tags.get("stage", ""))) else {}
    return machine | ({"seed": seed} if "seed" in tags and (seed := _seed_of_the_run()) else {})


def _seed_of_the_run() -> str:
    """Returns `seed` of the parameter file: a stage may have another one (grade's bootstrap), equal in all runs."""
    try:
        content = load_yaml(Path("params.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return ""
    return str(content["seed"]) if isinstance(content, dict) and "seed" in content else ""


def _git_tags() -> dict[str, str]:
    """Returns the commit and whether tracked files differ; DVC's records change during a run and do not count."""
    commit = ask_git(Path(), "rev-parse", "HEAD")
    if not commit:  # no git, or no repository
        return {}
    changes = ask_git(Path(), "status", "--porcelain", "-uno", "--", ".", ":!dvc.lock", ":!data", ":!reports")
    return {"git.commit": commit, "mlflow.source.git.commit": commit, "git.dirty": str(bool(changes)).lower()}
