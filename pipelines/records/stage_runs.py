"""An MLflow run for every stage on record in a `dvc.lock`, out of its metric files and curves.

A stage that a cache hit restored never ran here, so nothing was tracked; it gets a run with `mirrored: true`. One that
did run has its run already, which is recognised by its inputs, parameters and numbers and given the tag `lock_hash`.

Runs that were executed here come back from their kept tracking logs, with every point, time and tag (`replay_kept`).
Logs that MLflow did not get are delivered (`deliver_unfinished`).
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
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException

from pipelines.records.places import Place, git_bytes
from stages.foundations.dvc_lock import Entry
from stages.foundations.files import write_json
from stages.foundations.legible import without_password
from stages.foundations.stage import about
from stages.observe.mlflow_store import LONGEST_PARAM, MlflowStore, Refused, flatten
from stages.observe.mlflow_uploader import POINTS_PER_REQUEST, Delivery, end_ms, kept_logs, read_log
from stages.observe.tracking import LOG_NAME, final_numbers, recipe_name, shown_name

SECONDS_BETWEEN_METRICS_AND_END = 60.0
"""A line of the ledger belongs to a metric file that was written at most so long before or after its end."""


@dataclass
class Known:
    """What MLflow has: runs by the hash of their entry, others by their DVC stage, all by stage hash and start."""

    by_key: dict[str, Any] = field(default_factory=dict)
    by_start: dict[tuple[str, int], Any] = field(default_factory=dict)
    untagged: dict[str, list[Any]] = field(default_factory=dict)
    stage_hashes: set[str] = field(default_factory=set)


def known_runs(store: MlflowStore) -> Known:
    """All runs of stages, a page at a time."""
    known, token = Known(), None
    while True:
        page = store.client.search_runs(
            [store.experiment_id], "tags.stage LIKE '%'", max_results=1000, page_token=token
        )
        for run in page:
            tags = run.data.tags
            known.stage_hashes.add(tags.get("stage_hash", ""))
            known.by_start[tags.get("stage_hash", ""), run.info.start_time] = run
            if "lock_hash" in tags:
                known.by_key[tags["lock_hash"]] = run
            elif run.info.status == "FINISHED" and "dvc.stage" in tags:
                known.untagged.setdefault(tags["dvc.stage"], []).append(run)
        token = page.token
        if not token:
            return known


def mirror_entries(store: MlflowStore, places: Sequence[Place], ledger: list[dict[str, Any]]) -> tuple[int, int]:
    """Makes or tags a run for each entry; returns how many were made and how many tagged.

    The first place that has an entry tells of it, and the first commit that has it is its commit.
    """
    known, made, tagged = known_runs(store), 0, 0
    commits: dict[str, str] = {}
    for place in places:
        if place.folder is None:
            commits = {entry.key: place.commit for entry in place.entries.values()} | commits
    for place in places:
        for entry in place.entries.values():
            if entry.key in known.by_key:
                continue
            numbers = recorded_numbers(place, entry)
            if numbers is None:
                continue
            run = next((one for one in known.untagged.get(entry.name, []) if belongs(one, entry, numbers)), None)
            known.by_key[entry.key] = run or entry
            if run:
                known.untagged[entry.name].remove(run)
                store.client.set_tag(run.info.run_id, "lock_hash", entry.key)
                tagged += 1
            else:
                line = _line_of(ledger, place, entry, known)
                tags = _tags(place, entry, line, commits.get(entry.key, ""))
                _make(store, place, entry, numbers, line, tags)
                made += 1
    return made, tagged


def recorded_numbers(place: Place, entry: Entry) -> dict[str, float] | None:
    """The final numbers in its metric files that MLflow shows; None without metric files, or where they are lost."""
    found: dict[str, float] = {}
    paths = [path for path in entry.outs if path.startswith("data/metrics/") and path.endswith(".json")]
    for path in paths:
        content = place.content(path)
        try:
            values = json.loads(content) if content is not None else None
        except ValueError:
            values = None
        if not isinstance(values, dict):
            return None
        found |= {name: value for name, value in values.items() if isinstance(value, int | float)}
    numbers = {name: float(value) for name, value in found.items() if math.isfinite(value)}
    curves = {name for row in _curve(place, entry) for name in row if name != "step"}
    return final_numbers(numbers, curves) if paths else None


def belongs(run: Any, entry: Entry, numbers: Mapping[str, float]) -> bool:
    """True when the run has the entry's code and inputs, and no number or parameter says otherwise."""
    if run.data.tags.get("code", entry.code) != entry.code:
        return False
    for one in run.inputs.dataset_inputs:
        path = json.loads(one.dataset.source)["path"]
        if path in entry.deps and entry.deps[path][:36] != one.dataset.digest:
            return False
    metrics = run.data.metrics
    if any(
        not math.isclose(metrics.get(shown_name(name), value), value, rel_tol=1e-9) for name, value in numbers.items()
    ):
        return False
    wanted = dict(flatten(entry.params))
    return all(_says_the_same(run.data.params[name], wanted[name]) for name in wanted if name in run.data.params)


def _says_the_same(first: str, second: str) -> bool:
    """`1.0` is `1`, and texts too long for MLflow agree with anything."""
    if first == second or max(len(first), len(second)) > LONGEST_PARAM or first == "see params.json":
        return True
    try:
        return json.loads(first) == json.loads(second)
    except ValueError:
        return False


def _line_of(ledger: list[dict[str, Any]], place: Place, entry: Entry, known: Known) -> dict[str, Any] | None:
    """The ledger's line of this very run: of its name, ended when the metrics were written, not in MLflow."""
    if place.folder is None or place.is_kept:
        return None
    written = [
        (place.folder / path).stat().st_mtime
        for path in entry.outs
        if path.startswith("data/metrics/") and (place.folder / path).exists()
    ]
    for line in reversed(ledger):
        if line.get("name") == entry.name and line.get("stage_hash") not in known.stage_hashes:
            ended = datetime.fromisoformat(line["started"]).timestamp() + line["seconds"]
            if any(abs(time - ended) < SECONDS_BETWEEN_METRICS_AND_END for time in written):
                return line
    return None


def _make(
    store: MlflowStore,
    place: Place,
    entry: Entry,
    numbers: Mapping[str, float],
    line: Mapping[str, Any] | None,
    tags: Mapping[str, str],
) -> None:
    seconds = line["seconds"] if line else 0.0
    times = {f"time/{name}_seconds": spent for name, spent in (line or {}).get("phases", {}).items()}
    times |= {"time/total_seconds": seconds} if line else {}
    started = int(datetime.fromisoformat(line["started"]).timestamp() * 1000) if line else recorded_ms(place, entry)
    ended = started + int(1000 * seconds)
    sources = {
        path: {"path": path, "digest": digest}
        for path, digest in entry.deps.items()
        if not path.startswith("data/code/")
    }
    message = {"ms": started, "name": entry.name, "params": entry.params, "inputs": sources}
    points = [
        {"ms": ended, "step": int(row["step"]), "values": {name: row[name] for name in row if name != "step"}}
        for row in _curve(place, entry)
    ]
    points.append({"ms": ended, "step": 0, "values": {**numbers, **times}})
    with whole_run(store, message, tags) as run_id:
        for batch in batches(points):
            log_what_fits(store, run_id, batch)
        store.end(run_id, "FINISHED", ended)


def _tags(place: Place, entry: Entry, line: Mapping[str, Any] | None, commit: str) -> dict[str, str]:
    """The tags of a tracked run, as far as they are on record."""
    tags = {
        "stage": entry.stage,
        "dvc.stage": entry.name,
        "lock_hash": entry.key,
        "mirrored": "true",
        "code": entry.code,
    }
    tags["stage_hash"] = line["stage_hash"] if line else entry.key
    tags |= dict.fromkeys(about(entry.stage).named_after, entry.item or entry.stage)
    seed = entry.params.get("seed")
    if entry in place.graded.values():  # its own seed is the bootstrap's: that of what it scores tells the run
        seeds = [one.params.get("seed") for one in place.entries.values() if entry.deps.keys() & one.outs.keys()]
        seed = next((own for own in seeds if own is not None), None)
    seed = place.about.get("seed", seed) if seed is not None else None
    tags |= {"seed": str(seed)} if seed is not None else {}
    tags["ablation"] = place.about.get("ablation", "none")
    tags["variant"] = place.about.get("variant", "")
    tags["recorded_in"] = place.told
    commit, is_dirty = place.commit or commit, place.about.get("is_dirty")
    if place.folder is not None and not place.is_kept:
        tags["recipe"] = recipe_name(place.folder)
        if not commit:
            commit = (git_bytes(place.root, "rev-parse", "HEAD") or b"").decode().strip()
            is_dirty = True  # what is on record here is in no commit yet
    tags |= {"git.commit": commit, "mlflow.source.git.commit": commit} if commit else {}
    tags |= {"git.dirty": str(bool(is_dirty)).lower()} if commit and is_dirty is not None else {}
    tags |= {"mlflow.source.name": f"stages.{entry.stage}", "mlflow.source.type": "LOCAL"}
    return {name: value for name, value in tags.items() if value}


def _curve(place: Place, entry: Entry) -> list[dict[str, float]]:
    """The points of its curves; a cell that holds no finite number is left out."""
    rows = []
    for path in entry.outs:
        content = place.content(path) if path.startswith("data/curves/") and path.endswith(".csv") else None
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


def recorded_ms(place: Place, entry: Entry) -> int:
    """When the stage was put on record: its metric file's time, or the commit's."""
    if place.folder is not None:
        for path in entry.outs:
            own = place.folder / (path.removeprefix("data/") if place.is_kept else path)
            if path.startswith("data/metrics/") and own.exists():
                return int(own.stat().st_mtime * 1000)
    stamp = (git_bytes(place.root, "show", "-s", "--format=%ct", place.commit) or b"0") if place.commit else b"0"
    return int(stamp.decode().strip() or 0) * 1000


def read_ledger(state: Path) -> list[dict[str, Any]]:
    """All lines of the ledger, oldest first; one that was cut off is left out."""
    file, lines = state / "ledger.jsonl", []
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and {"name", "started", "seconds", "stage_hash"} <= set(line):
            lines.append(line)
    return lines


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
    tags = {name: value for name, value in kept.items() if not name.startswith("mlflow.") or name in MLFLOW_TAGS}
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
    run_id = store.create(message, {**{key: tags[key] for key in tags if key not in KNOWN_BY}, HALF_MADE: "true"})
    yield run_id
    for name in KNOWN_BY:
        if name in tags:
            store.client.set_tag(run_id, name, tags[name])
    store.client.delete_tag(run_id, HALF_MADE)


def remove_half_made(store: MlflowStore) -> None:
    """Deletes what a mirroring that was killed had begun; the caller sees to it that none is going on."""
    for run in store.client.search_runs([store.experiment_id], f"tags.{HALF_MADE} = 'true'", max_results=1000):
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
    return abs(time.time() - log.stat().st_mtime) < SECONDS_TO_START and b'"kind": "end"' not in log.read_bytes()[-200:]


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
