"""An MLflow run for every stage on record in a `dvc.lock`, out of its metric files and curves.

A stage that a cache hit restored never ran here, so nothing was tracked; it gets a run with `mirrored: true`. One that
did run has its run already, which is recognised by its inputs, parameters and numbers and given the tag `lock_hash`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pipelines.records.places import Entry, Place, git_bytes
from pipelines.records.replaying import batches, log_what_fits, whole_run
from stages.foundations.stage import about
from stages.observe.mlflow_store import LONGEST_PARAM, MlflowStore, flatten
from stages.observe.tracking import final_numbers, recipe_name, shown_name

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


def mirror_entries(
    store: MlflowStore, places: Sequence[Place], ledger: list[dict[str, Any]]
) -> tuple[int, int]:
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
            run = next(
                (one for one in known.untagged.get(entry.name, []) if belongs(one, entry, numbers)), None
            )
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
        not math.isclose(metrics.get(shown_name(name), value), value, rel_tol=1e-9)
        for name, value in numbers.items()
    ):
        return False
    wanted = dict(flatten(entry.params))
    return all(
        _says_the_same(run.data.params[name], wanted[name]) for name in wanted if name in run.data.params
    )


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
    started = (
        int(datetime.fromisoformat(line["started"]).timestamp() * 1000) if line else recorded_ms(place, entry)
    )
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
    if entry.scores:  # its own seed is the bootstrap's: that of what it scores tells the run
        seeds = [
            one.params.get("seed") for one in place.entries.values() if entry.deps.keys() & one.outs.keys()
        ]
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
    stamp = (
        (git_bytes(place.root, "show", "-s", "--format=%ct", place.commit) or b"0") if place.commit else b"0"
    )
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
