"""`make ui` for real: both servers answer, the flow waits to be started, and one signal ends everything."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from pipelines.servers import port
from stages.foundations.errors import UserError

PROJECT = Path(__file__).resolve().parents[2]


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_port_in_use_is_refused_with_the_remedy(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        monkeypatch.setenv("PREFECT_PORT", str(number))
        with pytest.raises(UserError, match=rf"port {number} .* make ui PREFECT_PORT={number + 1}"):
            port("PREFECT_PORT", 4200)
    assert port("PREFECT_PORT", 4200) == number


@pytest.mark.parametrize("text", ["http", "0", "70000"])
def test_what_is_no_port_is_refused(monkeypatch, text):
    monkeypatch.setenv("MLFLOW_PORT", text)
    with pytest.raises(UserError, match=f"MLFLOW_PORT={text} is no port number"):
        port("MLFLOW_PORT", 5000)


@pytest.mark.slow
def test_both_servers_and_the_deployment_start_and_end(tmp_path):
    prefect, mlflow = unused_port(), unused_port()
    settings = {
        "PREFECT_PORT": str(prefect),
        "MLFLOW_PORT": str(mlflow),
        "RETRACE_STATE": str(tmp_path / "state"),
    }
    ui = subprocess.Popen([sys.executable, "-m", "pipelines.servers"], cwd=PROJECT, env={**os.environ, **settings},
                          stdout=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    try:
        printed = [ui.stdout.readline(), ui.stdout.readline()]
        assert f"http://127.0.0.1:{prefect}" in printed[0] and f"http://127.0.0.1:{mlflow}" in printed[1]
        wait_until(lambda: "reproduce" in deployments(prefect))
        experiments = (
            f"http://127.0.0.1:{mlflow}/api/2.0/mlflow/experiments/get-by-name?experiment_name=retrace"
        )
        assert json.load(urllib.request.urlopen(experiments))["experiment"]["name"] == "retrace"
        assert (tmp_path / "state/prefect/prefect.db").exists()
    finally:
        ui.send_signal(signal.SIGINT)
        ui.wait(60)
    for number in (prefect, mlflow):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", number)) != 0, "a server is left"


def deployments(number):
    request = urllib.request.Request(
        f"http://127.0.0.1:{number}/api/deployments/filter", b"{}", {"Content-Type": "application/json"}
    )
    return [deployment["name"] for deployment in json.load(urllib.request.urlopen(request))]


def wait_until(condition, seconds=90):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.5)
