"""One MLflow run for each run of the graph: all parameters, the scores and the gain on one line of MLflow's table.

The runs of its stages are its child runs. A record in `state/graph_runs/` has the same content, so that
`retrace mirror` can rebuild the MLflow run:

    {"key": "...", "ms": 1795597252116, "name": "laptop rl.group_size=8 s1", "lock_hashes": ["..."],
     "params": {"rl.group_size": "8"}, "metrics": {"score": 0.94}, "tags": {"kind": "graph_run"},
     "result": {"scores": []}, "page": {"path": "reports/index.html", "md5": "..."},
     "given_to": "...", "experiment_id": "1", "run_id": "..."}

Two states of `dvc.lock` are the same run of the graph when each stage before the report has equal code, inputs and
parameters.
"""

from __future__ import annotations

import fcntl
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.graph.result import changes_from_recipe, result_of
from pipelines.output import shortened
from pipelines.records.lock_snapshots import LockSnapshot, cached_object, readable, snapshot_at, working_snapshot
from pipelines.records.tracking_store import (
    is_tracking_off,
    mlflow_faults,
    open_store,
    remove_half_made,
    runs_by_key,
    whole_run,
)
from stages.foundations.dvc_lock import LockedStage, recorded_outs, stages_behind
from stages.foundations.errors import UserError, without_password
from stages.foundations.files import dvc_md5, load_yaml, stable_hash, write_json
from stages.foundations.machine import state_folder
from stages.foundations.stage_graph import stages_of
from stages.observe.git import ask_git
from stages.observe.progress import say
from stages.observe.tracking import recipe_name, tracking_uri

if TYPE_CHECKING:
    from stages.observe.mlflow_store import MlflowStore

REMEDY = "the run is complete, and `retrace mirror` adds it to MLflow later"
PARENT = "mlflow.parentRunId"
EXPERIMENTS = "git refs/exps/"
"""Beginning of a DVC experiment's label."""
LONGEST_TAG = 2000
MOST_METRICS = 30
MOST_NAMED_CHANGES = 2
"""With more changes, a run's name has only their number; its tag `changes` lists them."""

_SETTINGS = ["sft.optimizer.learning_rate", "rl.optimizer.learning_rate", "rl.group_size"]
_COLUMNS = [
    *(f"metrics.`{name}`" for name in ("score", "score_low", "score_high", "gain")),
    "tags.`recipe`",
    *(f"params.`{name}`" for name in ("seed", *_SETTINGS)),
]
_SECTION = {"uuid": "scores", "name": "Settings and scores", "display": True, "isReordered": False}
_CHART = {"metricSectionId": "scores", "deleted": False, "isGenerated": False, "runsCountToCompare": 10}
VIEW = {
    "searchFilter": "tags.kind = 'graph_run'",
    "orderByKey": "metrics.`score`",
    "orderByAsc": False,
    "selectedColumns": _COLUMNS,
    "columnOrder": ["attributes.`Run Name`", *_COLUMNS],
    "columnWidths": {"attributes.`Run Name`": 300},
    "isAccordionReordered": True,  # or other sections come first
    "compareRunSections": [{**_SECTION, "deleted": False, "isGenerated": False}],
    "compareRunCharts": [
        {
            **_CHART,
            "uuid": "settings",
            "type": "PARALLEL",
            "selectedParams": _SETTINGS,
            "selectedMetrics": ["score"],
            "showAllRuns": True,
        },
        {**_CHART, "uuid": "score", "type": "BAR", "metricKey": "score"},
    ],
}
"""How MLflow shows the experiment: sorted by score, with these columns and charts; the format is MLflow 3's."""
VIEW_KEY = f"retrace-{stable_hash(VIEW)[:8]}"
"""In a link: `?viewStateShareKey=...`. Another view has another key, so two versions can share a server."""


def keep_view(store: MlflowStore) -> None:
    """Ensures that the experiment has the view."""
    name = f"mlflow.sharedViewState.{VIEW_KEY}"
    if name not in store.client.get_experiment(store.experiment_id).tags:
        store.client.set_experiment_tag(store.experiment_id, name, json.dumps(VIEW))


def record_graph_run(root: Path, tell: Callable[[str], object] = say) -> dict[str, Any] | None:
    """Keeps the record of a finished run of the graph and sends it to MLflow; does nothing for a known run.

    Returns the record; None where there is none. Never fails, because the run has ended well: `tell` gets a warning
    with the remedy. RETRACE_TRACKING=off skips all.
    """
    if is_tracking_off():
        return None
    record = None
    try:
        state = state_folder()
        record = keep_record(working_snapshot(root), state)
        if record and (record["given_to"] != without_password(tracking_uri()) or "run_id" not in record):
            _give(root, state, record)
    except UserError as error:
        tell(f"WARNING: {error}")
    # Whatever MLflow raises, a run that ended well must not be reported as failed.
    except Exception as error:
        tell(f"WARNING: MLflow lacks this run of the graph ({type(error).__name__}: {error}); {REMEDY}")
    return record


def _give(root: Path, state: Path, record: dict[str, Any]) -> None:
    # `retrace mirror` holds the same lock. Two processes that search before they create would both create the run.
    with open(state / "mirror.lock", "w") as lock, mlflow_faults(REMEDY):
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = open_store()
        # No other process writes under this lock, so a half-made run belongs to a killed process.
        remove_half_made(store)
        log_records(store, root, state, [record])


def experiment_snapshots(root: Path, tell: Callable[[str], object] = str) -> Iterator[LockSnapshot]:
    """DVC's experiments, oldest first. One whose `dvc.lock` cannot be read is left out, with a warning."""
    references = ask_git(root, "for-each-ref", "--sort=creatordate", "--format=%(refname)", "refs/exps").split()
    return readable(lambda reference: snapshot_at(root, reference), references, tell)


def keep_record(snapshot: LockSnapshot, state: Path) -> dict[str, Any] | None:
    """Returns the record of a snapshot's run of the graph, and creates it if necessary; None where no run has ended."""
    entries = _entries_of_run(snapshot)
    if not entries:
        return None
    # The report is left out: a page that was rendered again shows the same run.
    hashes = sorted(entry.key for entry in entries if not _writes_page(entry))
    key = stable_hash(hashes)
    file = state / "graph_runs" / f"{key[:16]}.json"
    # Kept in its first form: the files behind it may already be those of a later run.
    if file.exists():
        return _read(file)
    record = _describe(snapshot, entries)
    if record:
        record |= {"key": key, "lock_hashes": hashes, "given_to": ""}
        write_json(file, record)
    return record


def kept_records(state: Path, tell: Callable[[str], object] = str) -> list[dict[str, Any]]:
    """All records, oldest first. A broken one is left out, with a warning."""
    records = readable(_read, sorted((state / "graph_runs").glob("*.json")), tell)
    return sorted(records, key=lambda record: (record["ms"], record["key"]))


def _read(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        lacking = {"key", "ms", "name", "lock_hashes", "params", "metrics", "tags", "given_to"} - set(record)
        if lacking:
            raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} is not a record of a run ({error}): delete it") from None
    return record


def _entries_of_run(snapshot: LockSnapshot) -> list[LockedStage]:
    """The stages behind the report, or behind the grades of an ablation's run; [] if one ran on older inputs."""
    entries = _of_the_graph(snapshot)
    graded = [entry.name for entry in snapshot.graded.values() if entry.name in entries]
    # An ablation's run stops at its grades: it has no report to start from.
    ends = graded if snapshot.is_kept else [name for name, entry in entries.items() if _writes_page(entry)]
    behind, made = set(stages_behind(entries, ends)), recorded_outs(entries)
    found = [entry for name, entry in entries.items() if name in behind]
    # After a `dvc repro` of one stage the later ones have older inputs: their scores are not those of this run.
    is_current = all(made.get(path, digest) == digest for entry in found for path, digest in entry.deps.items())
    return found if is_current else []


def _of_the_graph(snapshot: LockSnapshot) -> Mapping[str, LockedStage]:
    """Returns entries of stages that params.yaml still has: DVC also keeps those of the previous recipe in dvc.lock."""
    graph, params = (None if snapshot.is_kept else snapshot.content(name) for name in ("dvc.yaml", "params.yaml"))
    if graph is None or params is None:
        return snapshot.entries
    names = {stage.address for stage in stages_of(load_yaml(graph)["stages"], load_yaml(params) or {})}
    return {name: entry for name, entry in snapshot.entries.items() if name in names}


def _writes_page(entry: LockedStage) -> bool:
    return any(path.startswith("reports/") for path in entry.outs)


def _describe(snapshot: LockSnapshot, entries: list[LockedStage]) -> dict[str, Any] | None:
    from stages.observe.mlflow_store import flatten

    outs = {path: digest for entry in entries for path, digest in entry.outs.items()}
    result = result_of(snapshot.content, outs)
    # result.json is then older than the grades, and would give this run the scores of the previous one.
    if result and _is_outdated(result["scores"], snapshot, entries):
        return None
    scores = result["scores"] if result else _grades(snapshot, entries)
    if not scores:
        return None
    params = {name: text for entry in entries for name, text in flatten(entry.params)}
    policy = scores[-1]["policy"]
    page = next((path for path in outs if path == (result or {}).get("page")), "")
    tags = _tags(snapshot, params, result["warnings"] if result else [])
    tags["last_policy"] = policy
    if f"data/policies/{policy}" in outs:
        weights = f"data/policies/{policy}"
        tags |= {"last_policy.path": weights, "last_policy.md5": outs[weights]}
    return {
        "ms": max(snapshot.recorded_ms(entry) for entry in entries),
        "name": _run_name(tags),
        "params": params,
        "metrics": dict(islice(_metrics(scores, result["gains"] if result else []), MOST_METRICS)),
        "tags": {name: value for name, value in tags.items() if value},
        "result": result,
        "page": {"path": page, "md5": outs.get(page, "")},
    }


def _numbers(snapshot: LockSnapshot, entry: LockedStage) -> dict[str, float]:
    """Returns the metrics of a stage that scores a policy; {} where its file is not available."""
    path = next((path for path in entry.outs if path.startswith("data/metrics/")), "")
    return json.loads((snapshot.content(path) if path else None) or b"{}")


def _is_outdated(scores: list[dict[str, Any]], snapshot: LockSnapshot, entries: list[LockedStage]) -> bool:
    """True if the grades were computed again after the report."""
    numbers = {policy: _numbers(snapshot, entry) for policy, entry in snapshot.graded.items() if entry in entries}
    for score in scores:
        name = f"{score['benchmark']}/{score['metric'].replace('@', '_at_')}"
        graded = numbers.get(score["policy"], {}).get(name)
        # Both numbers come from one computation and went through JSON: a difference beyond rounding means a new one.
        if graded is not None and not math.isclose(graded, score["value"], rel_tol=1e-9):
            return True
    return False


def _grades(snapshot: LockSnapshot, entries: list[LockedStage]) -> list[dict[str, Any]]:
    """Computes scores as in a report, from the metrics of grades: for a run without a report."""

    from stages.grade.scores import headlines

    scores = []
    for policy, entry in snapshot.graded.items():
        numbers = _numbers(snapshot, entry) if entry in entries else {}
        for benchmark, names in headlines(numbers).items():
            values = {key: numbers.get(names[key], numbers[names["score"]]) for key in ("low", "high")}
            scores.append({"policy": policy, "benchmark": benchmark, "value": numbers[names["score"]], **values})
    return scores


def _metrics(scores: list[dict[str, Any]], gains: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """The last policy's score and gain on the first benchmark, then all scores and gains, then their intervals.

    The first two are named alike in all runs, so that runs of different recipes share a column.
    """
    first, last = scores[0]["benchmark"], scores[-1]["policy"]
    # With one benchmark its name would only lengthen every column.
    is_one = len({score["benchmark"] for score in scores}) == 1
    rows = [("score", score["policy"], score) for score in scores]
    shown = {(score["benchmark"], score.get("metric")) for score in scores}
    rows += [
        ("gain", f"{gain['policy']}_over_{gain['baseline']}", gain)
        for gain in gains
        if (gain["benchmark"], gain["metric"]) in shown
    ]
    for kind in ("score", "gain"):
        of_last = [one for what, _, one in rows if (what, one["policy"], one["benchmark"]) == (kind, last, first)]
        for one in of_last[:1]:
            yield from ((kind, one["value"]), (f"{kind}_low", one["low"]), (f"{kind}_high", one["high"]))
    for kind in ("", "_low", "_high"):
        for what, name, one in rows:
            named = name if is_one else f"{one['benchmark']}/{name}"
            yield f"{what}{kind}/{named}", one[kind[1:] or "value"]


def _tags(snapshot: LockSnapshot, params: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    folder = snapshot.folder if snapshot.folder is not None and not snapshot.is_kept else None
    changes = changes_from_recipe(folder) if folder else {}
    commit = snapshot.commit or ask_git(snapshot.root, "rev-parse", "HEAD")
    seed = str(snapshot.about.get("seed", params.get("seed", "")))
    return {
        "kind": "graph_run",
        # Runs of one recipe share this tag. Its changes are in `changes`.
        "recipe": recipe_name(folder).removesuffix("+changes") if folder else "",
        "seed": seed,
        "variation": _experiment(snapshot) or snapshot.about.get("variant", "") or variation(changes),
        "changes": ", ".join(f"{name}: {change}" for name, change in changes.items())[:LONGEST_TAG],
        "ablation": snapshot.about.get("ablation", ""),
        "variant": snapshot.about.get("variant", ""),
        "warnings": "\n".join(warnings)[:LONGEST_TAG],
        "git.commit": commit,
        "mlflow.source.git.commit": commit,
        "mlflow.source.name": "dvc.yaml",
        "mlflow.source.type": "LOCAL",
    }


def variation(changes: Mapping[str, str]) -> str:
    """Returns the changes to the recipe, short: `rl.group_size=8`. The seed is in the run's name anyway."""
    values = {name: change.rpartition(" -> ")[2] for name, change in changes.items() if name != "seed"}
    named = [f"{name}={shortened(value, 40)}" for name, value in values.items()]
    return " ".join(named) if len(named) <= MOST_NAMED_CHANGES else f"{len(named)} changes"


def _experiment(snapshot: LockSnapshot) -> str:
    """Returns the name of the DVC experiment with this `dvc.lock`; "" for none."""
    if snapshot.label.startswith(EXPERIMENTS):
        return snapshot.label.rpartition("/")[2]
    if snapshot.folder is None or snapshot.is_kept:
        return ""
    # `dvc exp apply` copies the dvc.lock of an experiment here. Git finds the experiment by the hash of these bytes.
    lock = ask_git(snapshot.folder, "hash-object", "dvc.lock")
    for reference in ask_git(snapshot.folder, "for-each-ref", "--format=%(refname)", "refs/exps").split():
        if lock and ask_git(snapshot.folder, "rev-parse", "--quiet", "--verify", f"{reference}:dvc.lock") == lock:
            return reference.rpartition("/")[2]
    return ""


def _run_name(tags: Mapping[str, str]) -> str:
    """`laptop rl.group_size=8 s1`."""
    seed = f"s{tags['seed']}" if tags["seed"] else ""
    return " ".join(filter(None, [tags["recipe"] or tags["ablation"] or "run", tags["variation"], seed]))


def log_records(store: MlflowStore, root: Path, state: Path, records: Iterable[dict[str, Any]]) -> int:
    """Makes the MLflow run of each record that has none; returns how many. Stage runs must be in MLflow already.

    A stage run without a parent becomes a child of the first run of the graph that has it.
    """
    keep_view(store)
    runs, made = runs_by_key(store), 0
    for record in records:
        stages = [runs[key] for key in record["lock_hashes"] if key in runs]
        # A run in MLflow has one parent: a stage that several runs of the graph share stays below the first of them.
        orphans = [run for run in stages if PARENT not in run.data.tags]
        wanted = f"tags.graph_run = '{record['key']}'"
        found = store.client.search_runs([store.experiment_id], wanted, max_results=1)
        parent = found[0].info.run_id if found else _make(store, root, record, orphans)
        for run in orphans:
            _adopt(store, run, parent, record["tags"])
        made += not found
        changes = {"given_to": without_password(store.uri), "experiment_id": store.experiment_id, "run_id": parent}
        # A complete record stays untouched, so that mirroring twice writes nothing.
        if record | changes != record:
            record |= changes
            write_json(state / "graph_runs" / f"{record['key'][:16]}.json", record)
    return made


def _make(store: MlflowStore, root: Path, record: Mapping[str, Any], stages: list[Any]) -> str:
    started = min([run.info.start_time for run in stages], default=record["ms"])
    ended = max([run.info.end_time or 0 for run in stages], default=record["ms"])
    message = {"ms": started, "name": record["name"], "params": record["params"], "inputs": {}}
    tags = {**record["tags"], "graph_run": record["key"]}
    with whole_run(store, message, tags) as run_id:
        store.log(run_id, [{"ms": ended, "step": 0, "values": record["metrics"]}])
        if record["result"]:
            store.client.log_dict(run_id, record["result"], "result.json")
        page = record["page"]
        if content := _page(root, page["path"], page["md5"]):
            store.client.log_text(run_id, content.decode("utf-8"), Path(page["path"]).name)
        store.end(run_id, "FINISHED", ended)
    return run_id


def _page(root: Path, path: str, digest: str) -> bytes | None:
    """Returns the report: the existing file, or the object in DVC's cache; None where neither is that run's page."""
    if not path:
        return None
    # A later run overwrites the page. Only a file with the recorded hash is the page of this run.
    places = [root / path, cached_object(root, digest)]
    return next((one.read_bytes() for one in places if one and one.is_file() and dvc_md5(one) == digest), None)


def _adopt(store: MlflowStore, run: Any, parent: str, about: Mapping[str, str]) -> None:
    """Makes a stage run a child, whose name states its changes."""
    from stages.observe.mlflow_store import describe_name

    tags = {name: about[name] for name in ("variation",) if name in about}
    # The object in memory is updated too, because the name below is made from its tags.
    run.data.tags.update(tags | {PARENT: parent})
    for name, value in tags.items():
        store.client.set_tag(run.info.run_id, name, value)
    name = describe_name(run.data.tags.get("dvc.stage") or run.info.run_name, run.data.tags)
    store.client.update_run(run.info.run_id, name=name)
    # Last: if a process is killed before this line, the stage still counts as an orphan and is adopted next time.
    store.client.set_tag(run.info.run_id, PARENT, parent)
