"""Creates an MLflow run for every stage on record in a `dvc.lock`, from its metric files and curves.

A stage that was restored from a cache never ran here, so it was not tracked; it gets a run with `mirrored: true`. A
stage that did run already has its run, with its key as tag `lock_hash`.

Runs that were executed here are restored from their kept tracking logs, with every point, time and tag (`replay_kept`).
Logs that MLflow did not receive are delivered (`deliver_unfinished`).
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException

from pipelines.records.lock_snapshots import LockSnapshot
from stages.foundations.dvc_lock import LockedStage
from stages.foundations.errors import without_password
from stages.foundations.files import write_json
from stages.foundations.stage import about
from stages.observe.git import ask_git
from stages.observe.mlflow_store import MlflowStore, Refused
from stages.observe.mlflow_uploader import Delivery, end_ms, kept_logs, read_log
from stages.observe.tracking import LOG_NAME, final_numbers, recipe_name


def runs_by_key(store: MlflowStore) -> dict[str, Any]:
    """Returns the newest finished run of each key (`run_key`), page by page. A run without a key was run by hand."""
    # Oldest first, so that the newest run of a key replaces those before it.
    found, token = {}, None
    wanted = "tags.lock_hash LIKE '%' and attributes.status = 'FINISHED'"
    while True:
        page = store.client.search_runs(
            [store.experiment_id], wanted, max_results=1000, order_by=["attributes.start_time ASC"], page_token=token
        )
        found |= {run.data.tags["lock_hash"]: run for run in page}
        token = page.token
        if not token:
            return found


def mirror_entries(store: MlflowStore, snapshots: Sequence[LockSnapshot], ledger: Iterable[Mapping[str, Any]]) -> int:
    """Makes a run for each entry that MLflow lacks; returns how many. The first snapshot with an entry describes it.

    Its times are those of the ledger's newest line, where the run was executed here.
    """
    known, made = set(runs_by_key(store)), 0
    lines = {line.get("lock_hash"): line for line in ledger}
    commits = first_commits(snapshots)
    for snapshot in snapshots:
        for entry in snapshot.entries.values():
            numbers = None if entry.key in known else recorded_numbers(snapshot, entry)
            if numbers is None:
                continue
            line = lines.get(entry.key)
            _make(store, snapshot, entry, numbers, line, _tags(snapshot, entry, line, commits.get(entry.key, "")))
            # Many commits have the same stage on record. It is one run.
            known.add(entry.key)
            made += 1
    return made


def first_commits(snapshots: Iterable[LockSnapshot]) -> dict[str, str]:
    """Returns key -> the first commit with such an entry on record, of commits from the oldest on."""
    commits: dict[str, str] = {}
    for snapshot in snapshots:
        for entry in snapshot.entries.values() if snapshot.folder is None else ():
            # Setdefault, because commits come oldest first: the first one with this key created the result.
            commits.setdefault(entry.key, snapshot.commit)
    return commits


def recorded_numbers(snapshot: LockSnapshot, entry: LockedStage) -> dict[str, float] | None:
    """The final numbers in its metric files that MLflow shows; None without metric files, or if they are lost."""
    found: dict[str, float] = {}
    paths = [path for path in entry.outs if path.startswith("data/metrics/") and path.endswith(".json")]
    for path in paths:
        content = snapshot.content(path)
        try:
            values = json.loads(content) if content is not None else None
        except ValueError:
            values = None
        # A run without its final numbers would look like one that measured nothing, so it is left out.
        if not isinstance(values, dict):
            return None
        found |= {name: value for name, value in values.items() if isinstance(value, int | float)}
    numbers = {name: float(value) for name, value in found.items() if math.isfinite(value)}
    curves = {name for row in _curve(snapshot, entry) for name in row if name != "step"}
    return final_numbers(numbers, curves) if paths else None


def _make(
    store: MlflowStore,
    snapshot: LockSnapshot,
    entry: LockedStage,
    numbers: Mapping[str, float],
    line: Mapping[str, Any] | None,
    tags: Mapping[str, str],
) -> None:
    seconds = line["seconds"] if line else 0.0
    times = {f"time/{name}_seconds": spent for name, spent in (line or {}).get("phases", {}).items()}
    times |= {"time/total_seconds": seconds} if line else {}
    started = int(datetime.fromisoformat(line["started"]).timestamp() * 1000) if line else recorded_ms(snapshot, entry)
    # When each step ended is not on record: all points get the time at which the stage ended.
    ended = started + int(1000 * seconds)
    sources = {
        path: {"path": path, "digest": digest}
        for path, digest in entry.deps.items()
        if not path.startswith("data/code/")
    }
    message = {"ms": started, "name": entry.name, "params": entry.params, "inputs": sources}
    points = [
        {"ms": ended, "step": int(row["step"]), "values": {name: row[name] for name in row if name != "step"}}
        for row in _curve(snapshot, entry)
    ]
    points.append({"ms": ended, "step": 0, "values": {**numbers, **times}})
    with whole_run(store, message, tags) as run_id:
        log_what_fits(store, run_id, points)
        store.end(run_id, "FINISHED", ended)


def _tags(snapshot: LockSnapshot, entry: LockedStage, line: Mapping[str, Any] | None, commit: str) -> dict[str, str]:
    """Returns the tags of a tracked run, as far as they are on record."""
    tags = {
        "stage": entry.stage,
        "dvc.stage": entry.name,
        "lock_hash": entry.key,
        "mirrored": "true",
        "code": entry.code,
    }
    # Where the stage was executed here, later attempts find its run by this hash.
    tags["stage_hash"] = line["stage_hash"] if line else entry.key
    tags |= dict.fromkeys(about(entry.stage).named_after, entry.item or entry.stage)
    seed = entry.params.get("seed")
    if entry in snapshot.graded.values():  # its seed is the bootstrap's: that of the stage it scores identifies the run
        seeds = [one.params.get("seed") for one in snapshot.entries.values() if entry.deps.keys() & one.outs.keys()]
        seed = next((own for own in seeds if own is not None), None)
    seed = snapshot.about.get("seed", seed) if seed is not None else None
    tags |= {"seed": str(seed)} if seed is not None else {}
    tags["ablation"] = snapshot.about.get("ablation", "none")
    tags["variant"] = snapshot.about.get("variant", "")
    tags["recorded_in"] = snapshot.label
    commit, is_dirty = snapshot.commit or commit, snapshot.about.get("is_dirty")
    if snapshot.folder is not None and not snapshot.is_kept:
        tags["recipe"] = recipe_name(snapshot.folder)
        if not commit:
            commit = ask_git(snapshot.root, "rev-parse", "HEAD")
            is_dirty = True  # the record here is in no commit yet
    tags |= {"git.commit": commit, "mlflow.source.git.commit": commit} if commit else {}
    tags |= {"git.dirty": str(bool(is_dirty)).lower()} if commit and is_dirty is not None else {}
    tags |= {"mlflow.source.name": f"stages.{entry.stage}", "mlflow.source.type": "LOCAL"}
    return {name: value for name, value in tags.items() if value}


def _curve(snapshot: LockSnapshot, entry: LockedStage) -> list[dict[str, float]]:
    """Returns the points of its curves; a cell without a finite number is left out."""
    rows = []
    for path in entry.outs:
        content = snapshot.content(path) if path.startswith("data/curves/") and path.endswith(".csv") else None
        for row in csv.DictReader(io.StringIO((content or b"").decode("utf-8", "replace"))):
            values = {name: _number(text) for name, text in row.items() if name}
            if values.get("step") is not None:
                rows.append({name: value for name, value in values.items() if value is not None})
    return rows


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def recorded_ms(snapshot: LockSnapshot, entry: LockedStage) -> int:
    """Returns when the stage was put on record: its metric file's time, or the commit's."""
    if snapshot.folder is not None:
        for path in entry.outs:
            own = snapshot.folder / (path.removeprefix("data/") if snapshot.is_kept else path)
            if path.startswith("data/metrics/") and own.exists():
                return int(own.stat().st_mtime * 1000)
    return (
        1000 * int(ask_git(snapshot.root, "show", "-s", "--format=%ct", snapshot.commit) or 0) if snapshot.commit else 0
    )


SECONDS_TO_START = 20.0
KNOWN_BY = ("stage_hash", "lock_hash", "graph_run", "results")
HALF_MADE = "half_made"
MLFLOW_TAGS = ("mlflow.source.name", "mlflow.source.type", "mlflow.source.git.commit", "mlflow.user")
"""MLflow's standard tags that a run keeps."""


def replay_kept(store: MlflowStore, state: Path) -> tuple[int, list[str]]:
    """Makes a run of each kept log that MLflow lacks; returns how many, and a line for each unreadable log."""
    made, problems = 0, []
    for place in kept_logs(state):
        try:
            messages = read_log(place)
            # Reversed, so that the first message of each kind is kept.
            first = {message["kind"]: message for message in reversed(messages)}
            start = first["start"]
            stage_hash, ms = start["tags"]["stage_hash"], int(start["ms"])
        except (OSError, EOFError, zlib.error, LookupError, TypeError, ValueError) as error:
            problems.append(f"{place} is not readable ({type(error).__name__}): its numbers are left out")
            continue
        if store.run_begun(stage_hash, ms):
            continue
        kept = first.get("tags", {}).get("tags", {})
        own = {name: value for name, value in kept.items() if not name.startswith("mlflow.") or name in MLFLOW_TAGS}
        # A failed attempt has an end as well, and the next attempt continues the same log: the last end counts.
        status = next((one["status"] for one in reversed(messages) if one["kind"] == "end"), "KILLED")
        with whole_run(store, start, {**start["tags"], **own, "rebuilt": "true"}) as run_id:
            log_what_fits(store, run_id, [message for message in messages if message["kind"] == "values"])
            store.end(run_id, status, end_ms(messages))
        made += 1
    return made, problems


@contextmanager
def whole_run(store: MlflowStore, message: Mapping[str, Any], tags: Mapping[str, str]) -> Iterator[str]:
    """Creates a run that gets its identifying tags only at the end of the block: half a run does not count."""
    run_id = store.create(message, {**{key: tags[key] for key in tags if key not in KNOWN_BY}, HALF_MADE: "true"})
    yield run_id
    # From here on a search finds the run, so that everything else must be in it already.
    for name in KNOWN_BY:
        if name in tags:
            store.client.set_tag(run_id, name, tags[name])
    store.client.delete_tag(run_id, HALF_MADE)


def remove_half_made(store: MlflowStore) -> None:
    """Deletes remains of a killed mirroring; the caller ensures that none is running."""
    for run in store.client.search_runs([store.experiment_id], f"tags.{HALF_MADE} = 'true'", max_results=1000):
        store.client.delete_run(run.info.run_id)


def log_what_fits(store: MlflowStore, run_id: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Writes points; if MLflow rejects one, it did so the first time too, and the rest arrives."""
    try:
        store.log(run_id, messages)
    except Refused:
        store.client.set_tag(run_id, "refused", "true")


def deliver_unfinished(store: MlflowStore, state: Path) -> int:
    """Delivers logs in scratch folders that belong to no running stage; returns how many it delivered.

    If MLflow has lost the run, the whole log is delivered again, and the next attempt continues with the new run.
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

    A log with a time in the future was written before the clock was set back.
    """
    # A log with its `end` is delivered at any age: that message is the last line, and short.
    return abs(time.time() - log.stat().st_mtime) < SECONDS_TO_START and b'"kind": "end"' not in log.read_bytes()[-200:]


def _deliver(store: MlflowStore, log: Path) -> int:
    state_file = log.parent / "tracking_state.json"
    known = json.loads(state_file.read_text()) if state_file.exists() else {}
    run_id = known.get("run_id") or known.get("last_run_id", "")
    # Only where this server once had the run: a run of another server is not missing here.
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
