"""Ray for as long as a block runs: the cluster at RAY_ADDRESS, else one of this process's own.

Its own listens on loopback only, asks for a token that nobody else has, starts no dashboard and reports nothing home.
It ends with this process, however that one ends: see `relays/guards.py`. `map_with_ray` uses it: a function over rows,
one task a row.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from stages.engines.relays.guards import remove_abandoned
from stages.foundations.code_guard import guard_environment
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT, state_folder, variables_set
from stages.observe.progress import say

OBJECT_STORE_BYTES = 100 << 20
"""Next to Ray's minimum: what passes through Ray here are names of files and verdicts."""
LONGEST_SOCKET = 107
"""Characters of a Unix socket's path, a limit of the kernel."""
SOCKET_IN_FOLDER = "/session_2026-11-21_18-24-03_847922_1234567/sockets/plasma_store.1"
"""An example of the longest name that Ray gives a socket below its folder: only its length counts."""
START_SECONDS = 300.0
"""For Ray to start, and for a node of a cluster to answer."""
GUARD = "stages.engines.relays.guards"


def total_gpus() -> float:
    """Of all nodes of the session."""
    return float(_ray().cluster_resources().get("GPU", 0.0))


@contextlib.contextmanager
def ray_session(processes: int, packages: Sequence[str] = ()) -> Iterator[str]:
    """Connects to Ray and disconnects; without RAY_ADDRESS, starts a Ray for that many CPUs and ends all of it. Inside
    another session it uses that one.

    Yields a name for what this session keeps in the memory of its nodes (`published_weights.weights_folder`), which is
    removed here when this process is gone. A cluster's nodes must have `packages`. UserError when Ray is not installed
    or does not start, no cluster answers at RAY_ADDRESS, or one of its nodes cannot run the code.
    """
    remove_abandoned()
    run = f"{os.getpid()}.{secrets.token_hex(4)}"
    address = os.environ.get("RAY_ADDRESS")
    if "ray" in sys.modules and _ray().is_initialized():
        session = _guard(None, run)
    else:
        session = _cluster(address, run, packages) if address else _own(processes, run)
    with session:
        yield run


def this_node() -> str:
    """Ray's id of the node that this process is on."""
    return _ray().get_runtime_context().get_node_id()


@contextlib.contextmanager
def _cluster(address: str, run: str, packages: Sequence[str]) -> Iterator[None]:
    with _guard(None, run):
        ray = _connected(address)
        try:
            _require(ray, packages)
            yield
        finally:
            ray.shutdown()


def _connected(address: str) -> Any:
    ray = _ray()
    try:
        # Workers there need not have the project: they get the package `stages`, and must have its requirements.
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.WARNING,
            runtime_env={
                "py_modules": [str(PROJECT / "stages")],
                "excludes": ["__pycache__"],
                "env_vars": guard_environment(),
            },
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster to work with at RAY_ADDRESS={address} ({error}): start it (`ray start --head`); "
            "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to what it was started with, where it asks for a token; or "
            "unset RAY_ADDRESS to use Ray on this machine"
        ) from error
    return ray


def _require(ray: Any, packages: Sequence[str]) -> None:
    """UserError when a node cannot import the project's code or lacks one of the packages."""
    if not packages:
        return
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    check = ray.remote(num_cpus=0, max_retries=0)(missing_packages)
    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    answers = {
        node: check.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(list(packages))
        for node in nodes
    }
    for node, answer in answers.items():
        try:
            missing = ray.get(answer, timeout=START_SECONDS)
        except ray.exceptions.RayError as error:
            raise UserError(
                f"{nodes[node]} of the Ray cluster cannot run the project's code "
                f"({str(error).strip().splitlines()[-1][:200]}): install requirements.lock there, with the Python of "
                "this machine"
            ) from error
        if missing:
            raise UserError(
                f"{nodes[node]} of the Ray cluster lacks {', '.join(missing)}: install requirements.lock there, or "
                "unset RAY_ADDRESS to use Ray on this machine"
            )


def missing_packages(packages: list[str]) -> list[str]:
    """Those that cannot be found here."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def read_settings_again(ray: ModuleType) -> None:
    """Has Ray read the environment once more. It does so when it is imported, which others (vLLM) may have done before.

    Without it Ray asks a server that wants a token without one, and waits for ever.
    """
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _own(processes: int, run: str) -> Iterator[None]:
    # Ray reads these when it is imported, and hands them to its processes.
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # The name misleads: 0 is what keeps Ray on 127.0.0.1.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_gcs_server_port_wait_time_s": "300",
        # Ray's is 15, with which an actor beside any busy process gets a thirtieth of a core and looks as if it hung.
        "RAY_worker_niceness": "0",
        # Else Ray starts one for each CPU, and most are not needed.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_AUTH_MODE": "token",
        # Without it Ray writes one into the home folder.
        "RAY_AUTH_TOKEN": session_token(),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
    with variables_set(settings), _folder() as folder, _guard(folder, run):
        ray = _ray()
        read_settings_again(ray)
        try:
            _start_or_say(ray, processes, folder)
            yield
        finally:
            ray.shutdown()


def _start_or_say(ray: Any, processes: int, folder: Path) -> None:
    try:
        _start(ray, processes, folder)
    except Exception as error:  # Ray has no class for this one
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"Ray does not start on this machine ({first_line[:200]}): it needs a local disk for {folder.parent}, "
            "about 0.5 GiB of memory and some 200 processes and threads (`ulimit -u`); without Ray a round runs with "
            "`rl.loop: {kind: synchronous}` and no `sampler.replicas`"
        ) from error


@cache
def session_token() -> str:
    """This process's, for all its sessions: Ray reads it once, and a second session with another one would hang."""
    return secrets.token_hex(32)


def _start(ray: Any, processes: int, folder: Path) -> None:
    """Starts Ray's servers and connects. Ray itself gives up after 30 seconds, which a busy machine may exceed, and
    leaves the servers starting: then they are waited for."""
    common = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(
            address="local",
            # Twice as many, because a process that was stopped and then killed keeps its CPU for 5 seconds, and the
            # next one does not wait for that. An actor has the threads that it was given, whatever is free.
            num_cpus=2 * processes,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
            **common,
        )
        return
    # Ray has no class for this one. A ValueError is about the arguments, and without a port nothing is starting.
    except Exception as error:
        ports = list(folder.glob("session_latest/gcs_server_port_*"))
        if not ports or isinstance(error, ValueError):
            raise
        say(f"Ray is slow to start, waiting for it ({str(error)[:60]}...)")
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ray.init(address=f"127.0.0.1:{ports[0].read_text().strip()}", **common)
            return
        # Not up yet: what Ray raises differs by how far it is. After the deadline it is raised.
        except Exception:
            ray.shutdown()
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


@contextlib.contextmanager
def _guard(folder: Path | None, run: str) -> Iterator[None]:
    """A process that outlives this one, in a session of its own, and ends and removes what is left behind."""
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", GUARD, "session", str(folder or ""), str(os.getpid()), run],
        stdin=subprocess.PIPE,
        # Signals to this process's group, such as Ctrl-C, must not end the guard before its work.
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.stdin.close()  # type: ignore[union-attr]
        guard.wait()


def _ray() -> Any:
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"Ray is not installed ({error}): `python3 pipelines/set_up.py repro RECIPE` installs it for a recipe that "
            "names it (engine: {kind: ray, ...})"
        ) from error
    return ray


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for Ray's sockets and logs under the state folder, or where temporary files lie when that path is too
    long for a socket."""
    place, prefix = state_folder() / "ray", ""
    if len(f"{place}/{os.getpid()}") + len(SOCKET_IN_FOLDER) > LONGEST_SOCKET:
        place, prefix = Path(tempfile.gettempdir()), "retrace-ray-"
    folder = place / f"{prefix}{os.getpid()}"
    # Of a process that had this number before a power cut.
    shutil.rmtree(folder, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


Row = dict[str, Any]


def map_with_ray(function: Callable[[Row], Row], rows: Sequence[Row], processes: int) -> Iterator[Row]:
    """The function's rows in the order in which they end, `processes` at once.

    Ray runs for as long as the caller reads. Values are numbers and text. A row whose task raises, or loses its worker,
    is left out and logged. The function is a module's own: workers import it.
    """
    with ray_session(processes):
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.WARNING)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # Any number of rows may fail: they are left out, as the docstring says.
        context.max_errored_blocks = -1
        table = ray.data.from_items(list(rows), override_num_blocks=len(rows))
        yield from table.map(function, num_cpus=1, concurrency=processes).iter_rows()
