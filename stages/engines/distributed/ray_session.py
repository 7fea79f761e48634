"""Ray for the duration of a block: the cluster at RAY_ADDRESS, else a Ray that this process starts.

A Ray started here listens only on loopback, requires a secret token, starts no dashboard and reports nothing home.
It ends with this process, however that one ends: see `relays/guards.py`. `map_with_ray` uses it: a function over rows,
one task per row.
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

from stages.engines.distributed.waiting import StuckError, watched
from stages.engines.relays.guards import remove_abandoned
from stages.foundations.code_guard import guard_environment
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT, state_folder, variables_set
from stages.foundations.packages import require_package
from stages.observe.progress import say

OBJECT_STORE_BYTES = 100 << 20
"""Close to Ray's minimum: only file names and verdicts pass through Ray here."""
LONGEST_SOCKET = 107
"""Characters of a Unix socket's path, a limit of the kernel."""
SOCKET_IN_FOLDER = "/session_2026-11-21_18-24-03_847922_1234567/sockets/plasma_store.1"
"""An example of the longest name that Ray gives a socket below its folder: only its length counts."""
START_SECONDS = 300.0
"""Time for Ray to start, and for a node of a cluster to answer."""
END_SECONDS = 300.0
"""Time for Ray's processes to end."""
GUARD = "stages.engines.relays.guards"


def total_gpus() -> float:
    """Resources of all nodes of the session."""
    return float(_ray().cluster_resources().get("GPU", 0.0))


@contextlib.contextmanager
def ray_session(processes: int, packages: Sequence[str] = ()) -> Iterator[str]:
    """Connects to Ray and disconnects; without RAY_ADDRESS, starts a Ray for that many CPUs and ends all of it. Inside
    another session it uses that one.

    Yields a name for this session's files in the memory of its nodes (`published_weights.weights_folder`), which are
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
    """Returns Ray's id of the node that this process is on."""
    return _ray().get_runtime_context().get_node_id()


@contextlib.contextmanager
def _cluster(address: str, run: str, packages: Sequence[str]) -> Iterator[None]:
    with _guard(None, run):
        ray = _connected(address)
        try:
            _require(ray, packages)
            yield
        finally:
            _shut_down(ray)


def _shut_down(ray: Any) -> None:
    with watched("Ray", "its processes to end", END_SECONDS):
        ray.shutdown()


def _connected(address: str) -> Any:
    ray = _ray()
    try:
        # Workers there may lack the project: they get the package `stages`, and must have its requirements installed.
        with watched("Ray", f"the cluster at {address}", START_SECONDS):
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
    # A StuckError is a RuntimeError too.
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster to work with at RAY_ADDRESS={address} ({error}): start it (`ray start --head`); "
            "if it requires a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to that token; or unset RAY_ADDRESS to "
            "use Ray on this machine"
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
            with watched("Ray", f"{nodes[node]} of the cluster", 2 * START_SECONDS):
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
    """Returns the packages that cannot be found here."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def read_settings_again(ray: ModuleType) -> None:
    """Has Ray read the environment again. It does so on import, and others (vLLM) may have imported it before.

    Without this Ray connects without a token to a server that requires one, and waits for ever.
    """
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _own(processes: int, run: str) -> Iterator[None]:
    # Ray reads these when it is imported, and hands them to its processes.
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # The name misleads: 0 keeps Ray on 127.0.0.1.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_gcs_server_port_wait_time_s": "300",
        # Ray's default is 15, with which an actor beside a busy process gets a thirtieth of a core and seems to hang.
        "RAY_worker_niceness": "0",
        # Otherwise Ray starts one for each CPU, and most are not needed.
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
            _shut_down(ray)


def _start_or_say(ray: Any, processes: int, folder: Path) -> None:
    try:
        # More than the deadline of `_start`, which says more of the reason.
        with watched("Ray", f"its start in {folder}", 2 * START_SECONDS):
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
    """The token of this process, for all its sessions: Ray reads it once, and a session with another one would hang."""
    return secrets.token_hex(32)


def _start(ray: Any, processes: int, folder: Path) -> None:
    """Starts Ray's servers and connects. Ray gives up after 30 seconds, which a busy machine may exceed, and leaves the
    servers starting: in that case this function waits for them."""
    common = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(
            address="local",
            # Twice as many, because a process that was stopped and then killed keeps its CPU for 5 seconds, and the
            # next one does not wait for that. An actor's threads are set, however many CPUs are free.
            num_cpus=2 * processes,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
            **common,
        )
        return
    # Ray has no class for this error. A ValueError concerns the arguments, and without a port nothing is starting.
    except Exception as error:
        ports = list(folder.glob("session_latest/gcs_server_port_*"))
        if not ports or isinstance(error, ValueError | StuckError):
            raise
        say(f"Ray is slow to start, waiting for it ({str(error)[:60]}...)")
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ray.init(address=f"127.0.0.1:{ports[0].read_text().strip()}", **common)
            return
        # Not up yet: which error Ray raises depends on its progress. After the deadline it is raised.
        except Exception as error:
            ray.shutdown()
            if isinstance(error, StuckError) or time.monotonic() > deadline:
                raise
            time.sleep(1)


@contextlib.contextmanager
def _guard(folder: Path | None, run: str) -> Iterator[None]:
    """Starts a process that outlives this one, in a separate session, and cleans up after it."""
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
        with watched("Ray", "its last processes to end", END_SECONDS):
            guard.wait()


def _ray() -> Any:
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    require_package("ray", "kind: ray")
    import ray

    return ray


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Returns a folder for Ray's sockets and logs: under the state folder, or among temporary files if that path is too
    long for a socket."""
    place, prefix = state_folder() / "ray", ""
    if len(f"{place}/{os.getpid()}") + len(SOCKET_IN_FOLDER) > LONGEST_SOCKET:
        place, prefix = Path(tempfile.gettempdir()), "retrace-ray-"
    folder = place / f"{prefix}{os.getpid()}"
    # Left by a process that had this number before a power cut.
    shutil.rmtree(folder, ignore_errors=True)
    place.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


Row = dict[str, Any]


def map_with_ray(function: Callable[[Row], Row], rows: Sequence[Row], processes: int) -> Iterator[Row]:
    """Yields the function's rows in the order in which they end, `processes` at once.

    Ray runs for as long as the caller reads. Values are numbers and text. A row whose task raises, or loses its worker,
    is left out and logged. The function must belong to a module: workers import it.
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
