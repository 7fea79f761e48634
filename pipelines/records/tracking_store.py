"""MLflow as commands and flows reach it: when the server is gone, they say so within seconds and name the remedy.

MLflow by itself tries for several minutes, in which a command prints nothing and a flow does not end.
"""

from __future__ import annotations

import os
import re
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
    """False where the local database was never made: opening the store would create it, only to find it empty."""
    uri = tracking_uri()
    return not uri.startswith("sqlite:///") or Path(uri.removeprefix("sqlite:///")).exists()


def metric_name(text: str) -> str:
    """`_` for each character that MLflow refuses in the name of a metric, and at most its 250 characters."""
    return re.sub(r"[^\w\-. /]", "_", text)[:250]


def open_store() -> MlflowStore:
    """The store at `$MLFLOW_TRACKING_URI`, else that of state/mlflow.db; raises what MLflow raises."""
    # MLflow takes its timeouts and retries from the environment. What the user has set there stays.
    for name, value in DELIVERY_SETTINGS.items():
        os.environ.setdefault(name, value)
    from stages.observe.mlflow_store import MlflowStore

    return MlflowStore(tracking_uri())


@contextmanager
def mlflow_faults(afterwards: str) -> Iterator[None]:
    """Inside, what MLflow, its database or the network raise becomes a UserError; `afterwards` ends its remedy."""
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
