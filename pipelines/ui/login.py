"""The login of the servers of `make ui`, drawn at each start. Standard library only: it is read before Prefect.

Every account of a shared machine reaches a port on loopback, and so does every page in the user's browser. Whoever can
talk to the server can start flows, so the server answers only requests that carry this login.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from stages.foundations.scratch import state_folder

LOGIN, PORT = "RETRACE_MLFLOW_LOGIN", "RETRACE_MLFLOW_PORT"
"""Variables of MLflow's server alone."""


def draw_login() -> str:
    """A new login in the form `user:password`, which is how Prefect takes it."""
    return f"retrace:{secrets.token_urlsafe(24)}"


def login_settings(login: str) -> dict[str, str]:
    """Environment variables for a server that requires the login, and for clients that send it."""
    return {"PREFECT_SERVER_API_AUTH_STRING": login, "PREFECT_API_AUTH_STRING": login}


def basic(login: str) -> Mapping[str, str]:
    """The header that carries the login; none for an empty one."""
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}


def keep_login(state: Path, api: str, login: str) -> None:
    """Writes the login where only this user can read it, for commands that are run beside `make ui`."""
    path = _path(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    forget_login(state)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"api": api, "login": login}, file)


def forget_login(state: Path) -> None:
    """Removes what `keep_login` wrote; the server that knew it is gone."""
    _path(state).unlink(missing_ok=True)


def kept_login(api: str, state: Path | None = None) -> str:
    """The login of the `make ui` whose API has this address; "" when no such `make ui` runs here."""
    try:
        content = json.loads(_path(state or state_folder()).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return content["login"] if content["api"] == api.rstrip("/") else ""


def _path(state: Path) -> Path:
    return state / "prefect" / "login.json"
