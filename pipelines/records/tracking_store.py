"""MLflow for commands and flows: when the server is gone, they report it within seconds with the remedy.

MLflow by itself retries for several minutes, in which a command prints nothing and a flow does not end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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
