"""The requests to MLflow behind a tracking log: experiment, run, parameters, inputs, points, end.

All runs are in the experiment `retrace`: runs of the graph, with stage runs below them. Stages do not load this module,
because it imports MLflow.

`LoggedRun` is the run of one log. A running stage, one that was killed, and a database that is filled again all use it.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from stages.observe.tracking import end_of, metric_name, shown_name

EXPERIMENT = "retrace"
LONGEST_PARAM = 500  # characters; MLflow cuts longer ones (at 6000) and its table shows far fewer
# MLflow's own limits, for the digest of a dataset and for the parameters of one batch.
LONGEST_DIGEST = 36
PARAMS_PER_REQUEST = 100
POINTS_PER_REQUEST = 1000  # MLflow rejects more in one batch
SET_BY_MLFLOW = {"mlflow.runName", "mlflow.parentRunId"}
"""Tags in the logs of earlier versions that belong to the run in the earlier database."""


class MlflowStore:
    """One tracking address. Failures may be temporary: the caller keeps its data and tries again."""

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

    def create(self, message: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        """Creates a run with these tags and the message's parameters and inputs; returns its id."""
        run = self.client.create_run(
            self.experiment_id, message["ms"], dict(tags), describe_name(message["name"], tags)
        )
        self.describe(run.info.run_id, message)
        return run.info.run_id

    def describe(self, run_id: str, message: Mapping[str, Any]) -> None:
        """Writes parameters and inputs; repeating it changes nothing."""
        self._write_params(run_id, message["params"])
        self._write_inputs(run_id, message["inputs"])

    def run_begun(self, start: Mapping[str, Any]) -> Run | None:
        """Returns the run of the log that begins with this `start`."""
        wanted = f"tags.stage_hash = '{start['tags']['stage_hash']}' and attributes.start_time = {int(start['ms'])}"
        runs = self.client.search_runs([self.experiment_id], wanted, max_results=1)
        return runs[0] if runs else None

    def log(self, run_id: str, messages: Sequence[Mapping[str, Any]]) -> None:
        points = [
            Metric(metric_name(shown_name(name)), value, message["ms"], message["step"])
            for message in messages
            for name, value in message["values"].items()
        ]
        for first in range(0, len(points), POINTS_PER_REQUEST):
            self.client.log_batch(run_id, metrics=points[first : first + POINTS_PER_REQUEST])

    def end(self, run_id: str, status: str, ms: int) -> None:
        """Closes the run as FINISHED, FAILED or KILLED at `ms` (since 1970)."""
        self.client.set_terminated(run_id, status, ms)

    def _write_params(self, run_id: str, params: Mapping[str, Any]) -> None:
        flat = dict(flatten(params))
        long = {name: value for name, value in flat.items() if len(value) > LONGEST_PARAM}
        if long:
            self.client.log_text(run_id, json.dumps(params, indent=2, default=str), "params.json")
        short = [Param(metric_name(name), "see params.json" if name in long else value) for name, value in flat.items()]
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


class LoggedRun:
    """The run of one log. Its messages may be sent again, in order from any one on, and change nothing then.

    So nobody records what MLflow has. The run is found by the stage's hash and its first start, tags and status are
    set, and MLflow keeps equal points once.
    """

    def __init__(self, store: MlflowStore) -> None:
        self.store = store
        self.run_id = ""
        self._starts: dict[int, Mapping[str, Any]] = {}
        self._surroundings: dict[str, str] = {}

    def send(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Sends messages of the log; MLflow's errors when it cannot take them now."""
        for kind, group in groupby(messages, itemgetter("kind")):
            if kind == "values":
                self.store.log(self.run_id, list(group))
                continue
            for message in group:
                if kind == "start":
                    self._start(message)
                elif kind == "tags":
                    self._surroundings |= {
                        name: message["tags"][name] for name in message["tags"].keys() - SET_BY_MLFLOW
                    }
                    self._describe_attempt()
                elif kind == "end":
                    self.store.end(self.run_id, message["status"], message["ms"])

    def _start(self, message: Mapping[str, Any]) -> None:
        self._starts[message["ms"]] = message
        first = next(iter(self._starts.values()))
        found = self.store.run_begun(first)
        run = found or self.store.client.create_run(self.store.experiment_id, first["ms"], first["tags"])
        self.run_id = run.info.run_id
        if message is first or not found:  # MLflow rejects another value of a parameter later
            self.store.describe(self.run_id, first)
        # The attempt before was closed as KILLED or FAILED.
        self.store.client.update_run(self.run_id, status="RUNNING")
        self._describe_attempt()

    def _describe_attempt(self) -> None:
        """Sets name and tags: those of the latest attempt."""
        if not self.run_id:  # a log of an earlier version, which begins with its tags
            return
        latest = list(self._starts.values())[-1]
        attempts = {"attempts": str(len(self._starts))} if len(self._starts) > 1 else {}
        tags = {**latest["tags"], **self._surroundings, **attempts}
        self.store.client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        self.store.client.update_run(self.run_id, name=describe_name(latest["name"], tags))


def send_log(store: MlflowStore, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Sends a whole log of no running stage; False when MLflow has its run to the end, or the log has no start."""
    starts = {message["ms"]: message for message in messages if message["kind"] == "start"}
    if not starts:
        return False
    end, run = end_of(messages), store.run_begun(next(iter(starts.values())))
    # An attempt sets its number first and its status last.
    whole = (end["status"], str(len(starts)))
    if run and (run.info.status, run.data.tags.get("attempts", "1")) == whole:
        return False
    logged = LoggedRun(store)
    logged.send([*messages, end])
    if run is None:
        store.client.set_tag(logged.run_id, "rebuilt", "true")
    return True


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
