"""Comparisons and MLflow: a table becomes a run of `kind: comparison`, and a run of the graph becomes a side.

Each table is also kept under `state/comparisons/`, so that `retrace mirror` can send it to a new database.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pipelines.comparing.page import HEAD, as_json, cells, markdown
from pipelines.comparing.results import ComparisonFindings
from pipelines.comparing.sides import FindRun, policies_of
from pipelines.records.lock_snapshots import LockSnapshot, kept_snapshots, snapshots_in_git, working_snapshot
from pipelines.records.tracking_store import HALF_MADE, has_database, is_tracking_off, mlflow_faults, open_store
from stages.foundations.errors import UserError
from stages.foundations.files import stable_hash, write_json
from stages.observe.tracking import metric_name


def keep_comparison(findings: ComparisonFindings, state: Path) -> dict[str, Any]:
    """Writes the table to state/comparisons/<hash>.json, unless these results exist there; returns the kept record."""
    content = as_json(findings)
    digest = stable_hash(content)
    file = state / "comparisons" / f"{digest[:16]}.json"
    # Equal results keep their first record: its time and hash belong to the run in MLflow.
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    rows = [dict(zip(HEAD, cells(one), strict=True)) for one in findings.comparisons]
    record = {
        "hash": digest,
        "ms": int(time.time() * 1000),
        "content": content,
        "rows": rows,
        "markdown": markdown(findings),
    }
    write_json(file, record)
    return record


def log_comparison(store: Any, record: Mapping[str, Any]) -> bool:
    """Creates the MLflow run of a kept table; False when it exists already."""
    from mlflow.entities import Metric

    if store.client.search_runs([store.experiment_id], f"tags.results = '{record['hash']}'", max_results=1):
        return False
    content = record["content"]
    sides = [side["name"] for side in content["sides"]]
    claims = ", ".join(sorted({one["claim"] for one in content["comparisons"]}))
    tags = {"kind": "comparison", HALF_MADE: "true", "sides": ", ".join(sides)[:500], "claim": claims}
    name = f"compare: {', '.join(sides)}"[:120]
    run_id = store.client.create_run(store.experiment_id, record["ms"], tags, name).info.run_id
    points = [
        Metric(metric_name(key), value, record["ms"], 0)
        for one in content["comparisons"]
        for key, value in _numbers(one)
    ]
    # MLflow takes at most 1,000 metrics in a batch.
    for start in range(0, len(points), 1000):
        store.client.log_batch(run_id, metrics=points[start : start + 1000])
    columns = {key: [row[key] for row in record["rows"]] for key in record["rows"][0]}
    store.client.log_table(run_id, columns, "comparison_table.json")
    store.client.log_text(run_id, record["markdown"], "comparison.md")
    store.client.log_dict(run_id, content, "comparison.json")
    store.client.set_terminated(run_id, "FINISHED", record["ms"])
    store.client.set_tag(run_id, "results", record["hash"])  # last: a run without it is ignored and removed later
    store.client.delete_tag(run_id, HALF_MADE)
    return True


def _numbers(one: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    name = f"{one['benchmark']}/{one['metric']}/{one['second']} minus {one['first']}"
    yield name, one["difference"]
    for key in ("low", "high", "p_corrected"):
        yield f"{name}/{key}", one[key]


def track_comparison(findings: ComparisonFindings, state: Path) -> str:
    """Keeps the table and sends it to MLflow; returns a warning when MLflow could not be reached, else ""."""
    record = keep_comparison(findings, state)
    if is_tracking_off():
        return ""
    try:
        with mlflow_faults("the table is kept, and `retrace mirror` adds it to MLflow later"):
            log_comparison(open_store(), record)
    except UserError as error:
        return str(error)
    return ""


def run_finder(root: Path, state: Path) -> FindRun:
    """Finds the snapshot and policy of an MLflow run by its id or name."""

    def find(text: str) -> tuple[LockSnapshot, str] | None:
        runs = _runs(text)
        if not runs:
            return None
        problem = ""
        for run in runs:
            policy = run.data.tags.get("policy", "")
            if not policy:
                problem = (
                    problem or f"MLflow run {text!r} is of stage {run.data.tags.get('stage', '?')} and has no policy"
                )
                continue
            # A run has its key. The first dvc.lock with this key has the bytes that the run made.
            for snapshot in chain([working_snapshot(root)], kept_snapshots(root, state), snapshots_in_git(root)):
                entry = snapshot.entries.get(run.data.tags.get("dvc.stage", ""))
                if entry and run.data.tags.get("lock_hash") == entry.key and policy in policies_of(snapshot):
                    return snapshot, policy
            problem = problem or (
                f"MLflow run {text!r} is of policy {policy!r}; no dvc.lock (here, in git, in an ablation's results) "
                "has verdicts that belong to it"
            )
        raise UserError(f"{problem}: give a policy, REV:POLICY or FOLDER:POLICY")

    return find


def _runs(text: str) -> list[Any]:
    """Runs of that id or name, the newest first; none without a tracking database."""
    if not has_database():
        return []
    from mlflow.exceptions import MlflowException

    # A quotation mark would end the string in the filter of MLflow.
    if not re.fullmatch(r"[\w@.:+\- ]+", text):
        return []
    with mlflow_faults("or compare policies by name"):
        store = open_store()
        # An id is unique. A name may belong to many runs, of which the newest with verdicts counts.
        if re.fullmatch(r"[0-9a-f]{32}", text):
            try:
                return [store.client.get_run(text)]
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return []
                raise
        wanted = (f"attributes.run_name = '{text}'", f"tags.`dvc.stage` = '{text}'")
        search, experiments = store.client.search_runs, [store.experiment_id]
        return [run for one in wanted for run in search(experiments, one, max_results=100)]
