"""Runs in MLflow by what identifies them, and runs that are made whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipelines.records.lock_snapshots import LockSnapshot
from stages.foundations.dvc_lock import LockedStage
from stages.observe.git import ask_git
from stages.observe.mlflow_store import MlflowStore

KNOWN_BY = ("graph_run", "results")
"""Tags by which a search finds a run that a command makes."""
HALF_MADE = "half_made"


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


def first_commits(snapshots: Iterable[LockSnapshot]) -> dict[str, str]:
    """Returns key -> the first commit with such an entry on record, of commits from the oldest on."""
    commits: dict[str, str] = {}
    for snapshot in snapshots:
        for entry in snapshot.entries.values() if snapshot.folder is None else ():
            # Setdefault, because commits come oldest first: the first one with this key created the result.
            commits.setdefault(entry.key, snapshot.commit)
    return commits


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
