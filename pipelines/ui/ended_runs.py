"""The flow runs that `make ui` ends with itself: the UI says why they ended and how to go on.

Prefect itself leaves them with "Execution was aborted by a termination signal." Standard library only: Prefect's
client takes seconds to load, and whoever pressed Ctrl-C waits.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any

from pipelines.ui.login import basic

TAG = "retrace"
"""Of our deployments (prefect.yaml)."""
MESSAGE = "`make ui` was ended while this ran. Start it and run this again: finished stages are skipped."
SECONDS_TO_ANSWER = 20.0


def going_runs(api: str, login: str) -> list[str]:
    """Ids of the runs of our deployments that are running or about to; none where the server does not answer."""
    wanted = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
    with suppress(OSError, HTTPException, ValueError):
        found = _ask(
            f"{api}/flow_runs/filter", login, {"flow_runs": wanted, "deployments": {"tags": {"all_": [TAG]}}}
        )
        return [run["id"] for run in found]
    return []


def tell_ended(api: str, login: str, runs: Sequence[str]) -> None:
    """Marks the runs as crashed, with the message; a server that does not answer is left alone."""
    state = {"type": "CRASHED", "name": "Crashed", "message": MESSAGE}
    for run in runs:
        with suppress(OSError, HTTPException, ValueError):
            _ask(f"{api}/flow_runs/{run}/set_state", login, {"state": state, "force": True})


def _ask(address: str, login: str, content: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(
        address, json.dumps(content).encode(), {"Content-Type": "application/json", **basic(login)}
    )
    with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as answer:
        return json.load(answer)
