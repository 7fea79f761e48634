"""MLflow for commands and flows: runs by what identifies them, and runs that are made whole or not at all.

When the server is gone, they report it within seconds with the remedy. MLflow by itself retries for several minutes, in
which a command prints nothing and a flow does not end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.foundations.errors import UserError, without_password
from stages.observe.tracking import DELIVERY_SETTINGS, tracking_uri

if TYPE_CHECKING:
    from stages.observe.mlflow_store import MlflowStore


def is_tracking_off() -> bool:
    return os.environ.get("RETRACE_TRACKING") == "off"


def has_database() -> bool:
    """False where the local database was never created: opening the store would create an empty one."""
    uri = tracking_uri()
    return not uri.startswith("sqlite:///") or Path(uri.removeprefix("sqlite:///")).exists()


def open_store() -> MlflowStore:
    """Returns the store at `$MLFLOW_TRACKING_URI`, else that of state/mlflow.db; raises MLflow's errors."""
    # MLflow takes its timeouts and retries from the environment. Values that the user has set stay.
    for name, value in DELIVERY_SETTINGS.items():
        os.environ.setdefault(name, value)
    from stages.observe.mlflow_store import MlflowStore

    # Otherwise messages about a new database's tables would interrupt a command's output.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    return MlflowStore(tracking_uri())


@contextmanager
def mlflow_faults(afterwards: str) -> Iterator[None]:
    """Inside, errors of MLflow, its database or the network become a UserError; `afterwards` ends its remedy."""
    # MLflow takes seconds to import, and commands that never reach it should not wait.
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        address = without_password(tracking_uri())
        first = (without_password(str(error)).splitlines() or [""])[0][:200]
        raise UserError(
            f"MLflow at {address} failed ({type(error).__name__}: {first}): start the server or unset "
            f"MLFLOW_TRACKING_URI; {afterwards}"
        ) from error


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
