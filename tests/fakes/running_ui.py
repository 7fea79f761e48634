"""`make ui` for tests, and the Prefect server's API without a client."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from pipelines.runtime.process_group import supervised
from pipelines.ui.guard import basic, kept_login
from tests.fakes.processes import PATIENCE_SECONDS, assert_becomes, wait_until

PROJECT = Path(__file__).resolve().parents[2]


def unused_port() -> int:
    """Returns a free port below those that the system assigns to connections, so it stays free for the server."""
    for number in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", number))
            return number
    raise AssertionError("a hundred ports are taken")


class RunningUi:
    """`make ui` with its state in a folder; it may be ended and started again.

    `settings` are variables of its environment, such as the intervals of Prefect's services.
    """

    def __init__(self, state: Path, **settings: str) -> None:
        self.state, self.prefect, self.mlflow, self.settings = state, unused_port(), unused_port(), settings
        self.printed: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self.path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def start(self) -> None:
        settings = {
            "PREFECT_PORT": str(self.prefect),
            "MLFLOW_PORT": str(self.mlflow),
            "RETRACE_STATE": str(self.state),
            "PYTHONPATH": str(PROJECT),
            "RETRACE_TRACKING": "off",
            "PATH": self.path,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        command = supervised([sys.executable, "-m", "pipelines.ui.servers"])  # it ends with the tests, however they end
        self.process = subprocess.Popen(
            command,
            cwd=PROJECT,
            text=True,
            env={**environment, **settings, **self.settings},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.printed = [self.process.stdout.readline(), self.process.stdout.readline()]

    @property
    def link(self) -> str:
        """Returns the link that a user clicks to open Prefect's UI."""
        return self.printed[0].split()[1]

    @property
    def login(self) -> str:
        return kept_login(f"http://127.0.0.1:{self.prefect}/api", self.state)

    def end(self) -> None:
        (servers,) = psutil.Process(self.process.pid).children()
        servers.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_SECONDS) == 0

    def ask(self, path: str, content: dict[str, Any] | None = None, method: str = "POST") -> Any:
        """Returns the answer of the Prefect API."""
        body = None if method == "GET" else json.dumps(content or {}).encode()
        api = f"http://127.0.0.1:{self.prefect}/api"
        headers = {"Content-Type": "application/json", **basic(self.login)}
        request = urllib.request.Request(f"{api}/{path}", body, headers, method=method)
        for attempt in range(30):
            try:
                text = urllib.request.urlopen(request, timeout=120).read()
            except urllib.error.HTTPError as error:
                if error.code != 503 or attempt == 29:  # 503: the database is busy, so try again
                    raise
                time.sleep(2)
            else:
                return json.loads(text) if text else None
        return None

    def deployments(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.ask("deployments/filter")}

    def run(self, deployment: str, **parameters: Any) -> str:
        """Starts a deployment; returns the flow run's id."""
        place = f"deployments/{self.deployments()[deployment]['id']}/create_flow_run"
        return self.ask(place, {"parameters": parameters})["id"]

    def state_of(self, flow_run: str) -> dict[str, Any]:
        return self.ask(f"flow_runs/{flow_run}", method="GET")["state"]

    def wait_for(self, flow_run: str, seconds: float = 600) -> dict[str, Any]:
        """Returns the state in which a flow run ends."""
        ended = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        wait_until(lambda: self.state_of(flow_run)["type"] in ended, seconds)
        return self.state_of(flow_run)

    def assert_tasks(self, flow_run: str, expected: dict[str, str]) -> None:
        """Waits until the tasks of a flow run have these states: the server records them some seconds late."""
        assert_becomes(lambda: self.tasks(flow_run), expected)

    def tasks(self, flow_run: str) -> dict[str, str]:
        """Returns the states that the server has recorded so far."""
        found = self.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
        return {one["name"]: one["state_name"] for one in found}

    def log(self, flow_run: str) -> str:
        lines = self.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"})
        return "\n".join(line["message"] for line in lines)
