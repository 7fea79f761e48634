"""MLflow as commands and flows reach it: a server that is gone is told within seconds, and how to go on.

MLflow by itself tries for several minutes, in which a command says nothing and a flow does not end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stages.foundations.errors import UserError
from stages.foundations.legible import without_password
from stages.observe.tracking import DELIVERY_SETTINGS, tracking_uri

if TYPE_CHECKING:
    from stages.observe.mlflow_store import MlflowStore


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
