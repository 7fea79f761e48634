"""MLflow's server behind the guard: the app `retrace` of `mlflow server --app-name`, which pyproject.toml names.

By itself MLflow accepts every page of a loopback port, and requires a login only with a further package.
"""

from __future__ import annotations

import os
from typing import Any

from pipelines.ui.guard import LOGIN, PORT, guarded

# A request with name and password makes the browser keep both for this address and port, and for no other.
_ENTER = """
const request = new XMLHttpRequest(), [name, word] = login.split(":");
request.onload = () => request.status == 200 ? location.replace("/" + place.replace(/^\\//, "#/"))
  : document.getElementById("text").textContent = "The login is not that of this server. Use the link printed last.";
request.open("GET", "/version", true, name, word);
request.send();
"""


def app() -> Any:
    """Returns the application that uvicorn serves."""
    from mlflow.server.fastapi_app import app as mlflow_app

    return guarded(mlflow_app, int(os.environ[PORT]), _ENTER, os.environ[LOGIN])
