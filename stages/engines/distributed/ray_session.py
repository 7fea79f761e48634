"""Ray for as long as a block runs: the cluster at RAY_ADDRESS, else one of this process's own.

Its own listens on loopback only, asks for a token that nobody else has, starts no dashboard and reports nothing home.
It ends with this process, however that one ends: see `ray_guard.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stages.foundations.environment_variables import variables_set
from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT, state_folder
from stages.observe.progress import say

OBJECT_STORE_BYTES = 100 << 20
"""Next to Ray's minimum: what passes through Ray here are names of files and verdicts."""
LONGEST_SOCKET = 107
"""Characters of a Unix socket's path, a limit of the kernel."""
SOCKET_IN_FOLDER = "/session_2026-11-21_18-24-03_847922_1234567/sockets/plasma_store.1"
START_SECONDS = 300.0
GUARD = "stages.engines.distributed.ray_guard"


@contextlib.contextmanager
def ray_session(processes: int) -> Iterator[None]:
    """Connects to Ray and disconnects; without RAY_ADDRESS, starts a Ray with that many CPUs and ends all of it.

    UserError when Ray is not installed, or no cluster answers at RAY_ADDRESS.
    """
    address = os.environ.get("RAY_ADDRESS")
    with _cluster(address) if address else _own(processes):
        yield


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[None]:
    ray = _ray()
    try:
        # Workers there need not have the project: they get the package `stages`, and must have its requirements.
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.WARNING,
            runtime_env={"py_modules": [str(PROJECT / "stages")], "excludes": ["__pycache__"]},
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster to work with at RAY_ADDRESS={address} ({error}): start it (`ray start --head`), "
            "or unset the variable to use Ray on this machine"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _own(processes: int) -> Iterator[None]:
    # Ray reads these when it is imported, and hands them to its processes.
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the name misleads: 0 is what keeps Ray on 127.0.0.1
        "RAY_gcs_server_port_wait_time_s": "300",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # without it Ray writes one into the home folder
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
    with variables_set(settings), _folder() as folder, _guard(folder):
        ray = _ray()
        try:
            _start(ray, processes, folder)
            yield
        finally:
            ray.shutdown()


def _start(ray, processes: int, folder: Path) -> None:
    """Starts Ray's servers and connects. Ray itself gives up after 30 seconds, which a busy machine may exceed, and
    leaves the servers starting: then they are waited for."""
    common = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(
            address="local",
            num_cpus=processes,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
            **common,
        )
        return
    except Exception as error:  # Ray has no class for this one
        ports = list(folder.glob("session_latest/gcs_server_port_*"))
        if not ports:
            raise
        say(f"Ray is slow to start, waiting for it ({str(error)[:60]}...)")
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ray.init(address=f"127.0.0.1:{ports[0].read_text().strip()}", **common)
            return
        except (
            Exception
        ):  # not up yet; what Ray raises differs by how far it is, and after the deadline it is raised
            ray.shutdown()
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


@contextlib.contextmanager
def _guard(folder: Path) -> Iterator[None]:
    """A process that outlives this one, in a session of its own, and ends what Ray leaves behind."""
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", GUARD, str(folder), str(os.getpid())],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.stdin.close()  # type: ignore[union-attr]
        guard.wait()


def _ray():
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
    shutil.rmtree(folder, ignore_errors=True)  # of a process that had this number before a power cut
    place.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
