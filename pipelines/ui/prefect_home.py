"""Prefect's settings of this project. Imported before Prefect, which reads them once.

Its database belongs to the project, and nothing is reported home. A client of the server that `make ui` runs here
sends that server's login, unless another one is set. Prefect imports pandas for the cache keys of data frames. No task
here has cache keys, and the import takes a third of a flow's start, so it is prevented.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from pipelines.ui.guard import kept_login
from stages.foundations.machine import state_folder

if "PREFECT_HOME" not in os.environ:
    home = state_folder() / "prefect"
    # Prefect then reports it. It creates no folder above its home, and starts no server without it.
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    os.environ["PREFECT_HOME"] = str(home)
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
if "PREFECT_API_AUTH_STRING" not in os.environ and (login := kept_login(os.environ.get("PREFECT_API_URL", ""))):
    os.environ["PREFECT_API_AUTH_STRING"] = login

if not {"pandas", "prefect.cache_policies"} & set(sys.modules):
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        import prefect.cache_policies  # noqa: F401
    finally:
        del sys.modules["pandas"]
