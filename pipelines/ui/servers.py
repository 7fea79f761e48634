"""`make ui`: Prefect and MLflow on loopback, their databases under state/, and a worker for the deployments.

Ports: PREFECT_PORT (4200) and MLFLOW_PORT (5000). Ctrl-C ends everything, including running flows. Logs are in
state/logs/. Both servers require a login, because every account of the machine reaches their ports, and Prefect runs
flows as this user. A new login is generated at each start. The printed links contain it.

    make ui PREFECT_PORT=4201 MLFLOW_PORT=5001

Flow runs that end with `make ui` get a message that says why they ended and how to resume (`tell_ended`). Prefect alone
leaves them with "Execution was aborted by a termination signal." This uses only the standard library: Prefect's client
takes seconds to load, while the user waits after Ctrl-C.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from pipelines.records.graph_run import VIEW_KEY, keep_view
from pipelines.runtime.locks import refusing_lock
from pipelines.runtime.process_group import end_groups, environment, supervised, terminated_as_interrupt
from pipelines.ui.guard import (
    ENTER,
    HEALTH,
    HOST,
    LOGIN,
    PORT,
    basic,
    draw_login,
    forget_login,
    keep_login,
    login_settings,
)
from stages.foundations.errors import UserError, without_password
from stages.foundations.machine import PROJECT, state_folder
from stages.observe.command import run_stage

SECONDS_TO_START = 300.0
LONGEST_LOG = 5 * 2**20
"""Bytes. A log and the part before it take twice that."""
SERVER_LOGS = ("prefect", "mlflow")
"""Logs whose errors are reported. The worker's log has the output of flows: their errors are on the runs' pages."""
# Where Prefect, MLflow and uvicorn write a record's level: first, or after the time.
ERROR = re.compile(rb"^[\d/:.,| \t-]*\b(?:ERROR|CRITICAL)\b[:| \t]*(.*)", re.MULTILINE)
WORKER = ["-m", "pipelines.ui.deployments"]
READY = "the deployments are registered, the worker starts"
"""Message of the worker when it is ready (deployments.py)."""


def main() -> None:
    """Starts the servers and the worker, prints the addresses and waits for Ctrl-C. A dead worker is replaced.

    UserError when a port is taken, or another `make ui` uses the databases of this project.
    """
    state = state_folder()
    with refusing_lock(state / "locks" / "ui", f"another `make ui` runs on {state}: use that one, or end it"):
        _serve(state, port("PREFECT_PORT", 4200), port("MLFLOW_PORT", 5000))


def _serve(state: Path, prefect_port: int, mlflow_port: int) -> None:
    (state / "logs").mkdir(parents=True, exist_ok=True)
    started: dict[str, subprocess.Popen] = {}
    api = f"http://{HOST}:{prefect_port}/api"
    settings, login = server_settings(state, prefect_port, mlflow_port), draw_login()
    try:
        with terminated_as_interrupt():
            experiment_id = make_tracking_database(state)
            started["mlflow"] = start(
                "mlflow", mlflow_command(state, mlflow_port), {**settings, LOGIN: login, PORT: str(mlflow_port)}
            )
            settings = {**settings, **login_settings(login)}
            started["prefect"] = start("prefect", prefect_command(prefect_port), settings)
            _wait("prefect", started, lambda: answers(f"{api}/health"))
            _wait("mlflow", started, lambda: answers(f"http://{HOST}:{mlflow_port}{HEALTH}"))
            if not tracking_server():
                settings = {**settings, "RETRACE_MLFLOW_EXPERIMENT": experiment_id}
            started["worker"] = start("worker", WORKER, settings)
            _wait("worker", started, is_ready)
            keep_login(state, api, login)
            print_addresses(prefect_port, mlflow_port, experiment_id, login)
            reports = [error_reports(log_path(state, name)) for name in SERVER_LOGS]
            while True:
                time.sleep(1)
                for report in filter(None, map(next, reports)):
                    print(report, flush=True)
                shorten_logs(state, started)
                # A worker that never came up would only fail again: `require_alive` shows its lines.
                if started["worker"].poll() is not None and is_ready():
                    print(
                        "the worker has ended: another one takes its place, its runs are marked as crashed", flush=True
                    )
                    started["worker"] = start("worker", WORKER, settings)
                require_alive(started)
    except KeyboardInterrupt:
        print("\nending the servers", flush=True)
    finally:
        # A second Ctrl-C must not leave a server behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The worker ends first, while the servers can still record the end of its runs.
        if "worker" in started:
            runs = going_runs(api, login)
            end_groups([started.pop("worker")])
            tell_ended(api, login, runs)
        end_groups(list(started.values()))
        forget_login(state)


def print_addresses(prefect_port: int, mlflow_port: int, experiment_id: str, login: str) -> None:
    address = f"http://{HOST}:{prefect_port}{ENTER}#{login}"
    print(f"Prefect: {address}   reproduce, retrain, ablate, evaluate: Run")
    # The bare address opens MLflow on its pages for agents' traces.
    runs = f"/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={VIEW_KEY}"
    print(f"MLflow:  http://{HOST}:{mlflow_port}{ENTER}#{login}{runs}")
    if elsewhere := tracking_server():
        print(f"MLFLOW_TRACKING_URI is set: flows report to {elsewhere}, not to this MLflow")
    print("Both links contain the login. Ctrl-C ends both.", flush=True)


def port(name: str, default: int) -> int:
    """Returns the port from the environment; UserError when it is not a number or is already in use."""
    text = os.environ.get(name) or str(default)
    number = port_number(text)
    if number is None:
        raise UserError(f"{name}={text} is no port number: give one from 1 to 65535, or none for {default}")
    if fault := port_fault(number):
        raise UserError(
            f"port {number} on {HOST} cannot be used ({fault}): end what listens there, "
            f"or choose another: make ui {name}={number + 1}"
        )
    return number


def port_fault(number: int) -> str:
    """Returns why nothing more can listen on the port; "" where something can."""
    with socket.socket() as probe:
        # As the servers do: a port whose last connection has just closed is free for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, number))
        except OSError as error:
            return str(error.strerror)
    return ""


def port_number(text: str) -> int | None:
    """Returns None for text that is not a TCP port."""
    return int(text) if text.isdecimal() and 0 < int(text) < 65536 else None


def server_settings(state: Path, prefect_port: int, mlflow_port: int) -> Mapping[str, str]:
    """Returns the environment of servers and flow runs, in which MLflow's database is the tracking address."""
    home = state / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    return {
        **environment(),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
        "PREFECT_HOME": str(home),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect.db'}",
        "PREFECT_API_URL": f"http://{HOST}:{prefect_port}/api",
        # SQLite has one writer, and on a busy machine others wait for it.
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_WORKER_QUERY_SECONDS": "5",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "RETRACE_MLFLOW_URL": _shown_tracking(mlflow_port),
    }


def _shown_tracking(mlflow_port: int) -> str:
    """Returns the address in links to runs. One that is set beside a foreign server is how a browser reaches it."""
    elsewhere = tracking_server()
    return (os.environ.get("RETRACE_MLFLOW_URL") or elsewhere) if elsewhere else f"http://{HOST}:{mlflow_port}"


def tracking_server() -> str:
    """Returns the server that `$MLFLOW_TRACKING_URI` names for tracking; "" when that is this project's database."""
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    return without_password(address) if address.startswith(("http://", "https://")) else ""


def make_tracking_database(state: Path) -> str:
    """Creates MLflow's database under the lock that stages use too, before a server could create it at the same time.

    Returns the id of the experiment with the runs.
    """
    from stages.observe.mlflow_store import MlflowStore

    store = MlflowStore(f"sqlite:///{state / 'mlflow.db'}")
    keep_view(store)
    return store.experiment_id


def mlflow_command(state: Path, mlflow_port: int) -> list[str]:
    return [
        *("-m", "mlflow", "server", "--app-name", "retrace", "--workers", "1"),
        *("--host", HOST, "--port", str(mlflow_port)),
        *("--backend-store-uri", f"sqlite:///{state / 'mlflow.db'}"),
        *("--default-artifact-root", (state / "mlartifacts").as_uri()),
    ]


def prefect_command(prefect_port: int) -> list[str]:
    return ["-m", "pipelines.ui.prefect_server", "--port", str(prefect_port)]


def start(name: str, arguments: list[str], settings: Mapping[str, str]) -> subprocess.Popen:
    """Starts `python ARGUMENTS` under a supervisor, writing to state/logs/<name>.log; keeps the previous log."""
    path = log_path(state_folder(), name)
    if path.exists():
        path.replace(path.with_name(f"{name}.before.log"))
    # Appending, so that it may be truncated while it is written.
    with open(path, "a") as log:
        return subprocess.Popen(
            supervised([sys.executable, *arguments]),
            cwd=PROJECT,
            env=settings,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def log_path(state: Path, name: str) -> Path:
    return state / "logs" / f"{name}.log"


def errors_in(log: Path, place: int = 0) -> tuple[list[str], int]:
    """Returns the records of errors after byte `place`, without time and level, and where the next look begins.

    An unfinished last line is left for the next look. A log that is shorter than `place` was cut: all of it is read.
    """
    with open(log, "rb") as file:
        file.seek(place if place <= os.fstat(file.fileno()).st_size else 0)
        lines = file.read()
        complete = lines[: lines.rfind(b"\n") + 1]
        place = file.tell() - len(lines) + len(complete)
    return [text.decode(errors="replace") for text in ERROR.findall(complete)], place


def error_reports(log: Path) -> Iterator[str]:
    """Yields a sentence on the log's errors each time it is asked: at the first, and when their number has doubled.

    In between "".
    """
    place, count, told = 0, 0, 0
    while True:
        errors, place = errors_in(log, place)
        count += len(errors)
        if errors and count >= 2 * told:
            told = count
            yield sentence_on(log, count, errors[-1])
        else:
            yield ""


def sentence_on(log: Path, count: int, last: str) -> str:
    """Returns what to say of the errors in a log."""
    return f"{log} has {count} error{'s' if count > 1 else ''}, the last: {last[:120]}"


def shorten_logs(state: Path, names: Iterable[str], longest: int = LONGEST_LOG) -> None:
    """Moves a log of more than `longest` bytes to <name>.before.log; its process continues to write.

    Lines that are written at this very moment are lost.
    """
    for name in names:
        path = log_path(state, name)
        if path.stat().st_size <= longest:
            continue
        was_ready = is_ready()
        before = path.with_name(f"{name}.before.log")
        shutil.copyfile(path, before)
        os.truncate(path, 0)
        with open(path, "a") as log:
            log.write(f"(what came before is in {before})\n")
            if name == "worker" and was_ready:
                log.write(f"{READY}\n")


def _wait(name: str, started: Mapping[str, subprocess.Popen], is_done: Callable[[], bool]) -> None:
    """Waits until a process is at work; UserError with its last log lines when it ends or takes too long."""
    until = time.monotonic() + SECONDS_TO_START
    while True:
        # First, as a foreign server may answer at the port that kept this one from starting.
        require_alive(started)
        if is_done():
            return
        if time.monotonic() > until:
            raise UserError(f"{name} was not ready within {SECONDS_TO_START:.0f} s:\n{last_lines(name)}")
        time.sleep(0.3)


def answers(address: str) -> bool:
    """True if a healthy server answers."""
    try:
        with urllib.request.urlopen(address, timeout=3) as answer:
            return answer.status == 200
    except (OSError, HTTPException):
        # HTTPException comes from a listener that does not speak HTTP.
        return False


def is_ready() -> bool:
    """True if the worker has become ready; one that has not is not replaced when it ends."""
    return READY in log_path(state_folder(), "worker").read_text(errors="replace")


def require_alive(started: Mapping[str, subprocess.Popen]) -> None:
    """Raises UserError with the last log lines of a process that ended."""
    for name, process in started.items():
        if process.poll() is not None:
            raise UserError(f"{name} ended with exit code {process.returncode}:\n{last_lines(name)}")


def last_lines(name: str, count: int = 15) -> str:
    log = log_path(state_folder(), name)
    return "\n".join([*log.read_text(errors="replace").splitlines()[-count:], f"(all of it: {log})"])


TAG = "retrace"
"""Tag of the project's deployments (prefect.yaml)."""
MESSAGE = "`make ui` was ended while this ran. Start it and run this again: finished stages are skipped."
SECONDS_TO_ANSWER = 20.0


def going_runs(api: str, login: str) -> list[str]:
    """Returns ids of this project's runs that are running or about to; none where the server does not answer."""
    wanted = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}
    with suppress(OSError, HTTPException, ValueError):
        found = _ask(f"{api}/flow_runs/filter", login, {"flow_runs": wanted, "deployments": {"tags": {"all_": [TAG]}}})
        return [run["id"] for run in found]
    return []


def tell_ended(api: str, login: str, runs: Sequence[str]) -> None:
    """Marks the runs as crashed, with the message; ignores a server that does not answer."""
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


if __name__ == "__main__":
    run_stage(main)
