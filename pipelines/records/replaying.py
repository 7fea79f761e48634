"""Gives kept and unfinished tracking logs to MLflow: executed runs come back with every point, time and tag."""

from __future__ import annotations

import fcntl
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException

from stages.foundations.addresses import without_password
from stages.foundations.files import write_json
from stages.observe.kept_logs import end_ms, kept_logs, read_log
from stages.observe.mlflow_store import MlflowStore, Refused
from stages.observe.mlflow_uploader import POINTS_PER_REQUEST, Delivery
from stages.observe.tracking import LOG_NAME

SECONDS_TO_START = 20.0
KNOWN_BY = ("stage_hash", "lock_hash", "graph_run")
HALF_MADE = "half_made"
MLFLOW_TAGS = ("mlflow.source.name", "mlflow.source.type", "mlflow.source.git.commit", "mlflow.user")
"""MLflow's own tags that a run takes along."""


def replay_kept(store: MlflowStore, state: Path) -> tuple[int, list[str]]:
    """Makes a run of each kept log that MLflow lacks; returns how many, and a line for each that is not readable."""
    made, problems = 0, []
    for place in kept_logs(state):
        try:
            messages = read_log(place)
            start = next(message for message in messages if message["kind"] == "start")
            stage_hash, ms = start["tags"]["stage_hash"], int(start["ms"])
        except (OSError, EOFError, zlib.error, LookupError, TypeError, ValueError, StopIteration) as error:
            problems.append(f"{place} is not readable ({type(error).__name__}): its numbers stay out")
            continue
        if not has_run(store, stage_hash, ms):
            replay(store, messages, start)
            made += 1
    return made, problems


def has_run(store: MlflowStore, stage_hash: str, ms: int) -> bool:
    """True when MLflow has a run with this stage hash that started at `ms`."""
    wanted = f"tags.stage_hash = '{stage_hash}' and attributes.start_time = {ms}"
    return bool(store.client.search_runs([store.experiment_id], wanted, max_results=1))


def replay(store: MlflowStore, messages: Sequence[Mapping[str, Any]], start: Mapping[str, Any]) -> str:
    """One run out of a log; returns its id."""
    kept = next((message["tags"] for message in messages if message["kind"] == "tags"), {})
    tags = {
        name: value for name, value in kept.items() if not name.startswith("mlflow.") or name in MLFLOW_TAGS
    }
    end = next((message for message in reversed(messages) if message["kind"] == "end"), None)
    last = {"kind": "end", "ms": messages[-1].get("ms", start["ms"])}
    status, ms = (end["status"], end_ms(messages)) if end else ("KILLED", end_ms([*messages, last]))
    with whole_run(store, start, {**start["tags"], **tags, "rebuilt": "true"}) as run_id:
        for batch in batches(message for message in messages if message["kind"] == "values"):
            log_what_fits(store, run_id, batch)
        store.end(run_id, status, ms)
    return run_id


@contextmanager
def whole_run(store: MlflowStore, message: Mapping[str, Any], tags: Mapping[str, str]) -> Iterator[str]:
    """A run that gets the tags by which it is known only when the block has ended: half of one is no run."""
    run_id = store.create(
        message, {**{key: tags[key] for key in tags if key not in KNOWN_BY}, HALF_MADE: "true"}
    )
    yield run_id
    for name in KNOWN_BY:
        if name in tags:
            store.client.set_tag(run_id, name, tags[name])
    store.client.delete_tag(run_id, HALF_MADE)


def remove_half_made(store: MlflowStore) -> None:
    """Deletes what a mirroring that was killed had begun; the caller sees to it that none is going on."""
    for run in store.client.search_runs(
        [store.experiment_id], f"tags.{HALF_MADE} = 'true'", max_results=1000
    ):
        store.client.delete_run(run.info.run_id)


def log_what_fits(store: MlflowStore, run_id: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Writes points; what MLflow refuses it refused the first time too, and the rest arrives."""
    try:
        store.log(run_id, messages)
    except Refused:
        store.client.set_tag(run_id, "refused", "true")


def batches(messages: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The points in requests that MLflow accepts."""
    batch: list[Mapping[str, Any]] = []
    points = 0
    for message in messages:
        if batch and points + len(message["values"]) > POINTS_PER_REQUEST:
            yield batch
            batch, points = [], 0
        batch.append(message)
        points += len(message["values"])
    if batch:
        yield batch


def deliver_unfinished(store: MlflowStore, state: Path) -> int:
    """Delivers the logs that wait in scratch folders and belong to no stage that is running; returns how many did.

    Where MLflow has lost the run, the whole log is delivered again, and the next attempt goes on with the new run.
    """
    delivered = 0
    for log in sorted((state / "scratch").glob(f"*/{LOG_NAME}")):
        with open(log.parent / "tracking.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # its stage is running, and delivers by itself
                continue
            if not _may_be_starting(log):
                delivered += _deliver(store, log)
    return delivered


def _may_be_starting(log: Path) -> bool:
    """A stage writes its first lines a second or two before its delivery process takes the lock.

    A log from the future was written before somebody set the clock back.
    """
    return (
        abs(time.time() - log.stat().st_mtime) < SECONDS_TO_START
        and b'"kind": "end"' not in log.read_bytes()[-200:]
    )


def _deliver(store: MlflowStore, log: Path) -> int:
    state_file = log.parent / "tracking_state.json"
    known = json.loads(state_file.read_text()) if state_file.exists() else {}
    run_id = known.get("run_id") or known.get("last_run_id", "")
    if run_id and known.get("uri") == without_password(store.uri) and not _exists(store, run_id):
        write_json(state_file, {**known, "offset": 0, "run_id": "", "last_run_id": ""})
    delivery = Delivery(log.parent)
    before = delivery.state["offset"]
    delivery.close_if_killed()
    if delivery.deliver():
        delivery.forget_if_done()
    return int(delivery.state["offset"] > before)


def _exists(store: MlflowStore, run_id: str) -> bool:
    try:
        store.client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return True
