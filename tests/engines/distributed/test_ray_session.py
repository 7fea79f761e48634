"""A session whose process is killed leaves nothing behind; its error when Ray does not start."""

import fcntl
import os
import signal
import subprocess
import sys

import psutil
import pytest

from stages.engines.distributed.ray_session import missing_packages
from stages.engines.relays.guards import CLAIM, remove_abandoned
from stages.engines.relays.published_weights import MEMORY, PREFIX
from tests.fakes.processes import assert_becomes

KEEPS_WEIGHTS = """
import os, time, torch{imported}
from stages.engines.distributed.ray_session import ray_session, this_node
from stages.engines.relays.published_weights import PublishedWeights, weights_folder
with ray_session(1) as run:
    weights = PublishedWeights(weights_folder(run, this_node()))
    weights.publish(1, [("w", torch.zeros(10))])
    import ray
    with ray_session(1) as inner:
        PublishedWeights(weights_folder(inner, this_node())).publish(1, [("w", torch.zeros(10))])
        assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)  # as its neighbours
        print(run, inner, flush=True)
        time.sleep({seconds})
"""


def start(program, folder, **settings):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"RETRACE_STATE": str(folder), "PYTHONPATH": os.getcwd()} | settings,
    )


def folders_of(runs):
    return [path for run in runs for path in MEMORY.glob(f"{PREFIX}{run}-*")]


def of_session(folder):
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        said = [*(process.info["cmdline"] or []), (process.info["environ"] or {}).get("RETRACE_STATE", "")]
        if any(str(folder) in part for part in said):
            found.append(process)
    return found


def test_a_session_removes_what_killed_ones_left_and_nothing_else(tmp_path):
    """The guard was also killed, as by a batch system that ends all processes of a job."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    living, gone = os.getpid(), ended.pid
    names = {
        f"{gone}.aa-node": True,
        f"{gone}.claimed-node": False,
        f"{living}.aa-node": False,
        f"{living}.old-node": True,  # its number belonged to another process then
        "notes": False,
        f"{gone}": True,
    }
    for name in names:
        (tmp_path / f"{PREFIX}{name}" / "00000001").mkdir(parents=True)
    os.utime(tmp_path / f"{PREFIX}{living}.old-node", (1, 1))
    (tmp_path / f"{PREFIX}{gone}.link-node").symlink_to(tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    (tmp_path / f"other-{gone}.aa-node").mkdir()
    with open(tmp_path / f"{PREFIX}{gone}.claimed-node" / CLAIM, "w") as claim:
        fcntl.flock(claim, fcntl.LOCK_SH)
        removed = {path.name.removeprefix(PREFIX) for path in remove_abandoned(tmp_path)}
    assert removed == {name for name, is_removed in names.items() if is_removed}
    left = {f"{PREFIX}{name}" for name, is_removed in names.items() if not is_removed}
    assert {path.name for path in tmp_path.iterdir()} == left | {
        f"{PREFIX}{gone}.link-node",
        "kept",
        f"other-{gone}.aa-node",
    }


@pytest.mark.parametrize("is_killed", [False, True])
def test_nothing_is_left_in_memory_whatever_ends_the_process(tmp_path, is_killed):
    """A session also starts if Ray was imported before, as by vLLM: Ray has then already read its settings."""
    program = KEEPS_WEIGHTS.format(imported="" if is_killed else ", ray", seconds=600 if is_killed else 0)
    process = start(program, tmp_path)
    runs = process.stdout.readline().split()
    if is_killed:
        assert len(runs) == 2 and len(folders_of(runs)) == 2, process.stderr.read()
        process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(runs) == 2, process.stderr.read()
    assert_becomes(lambda: (folders_of(runs), of_session(tmp_path)), ([], []))


def test_a_ray_that_cannot_start_is_one_sentence(tmp_path):
    program = """
from stages.engines.distributed import ray_session as module
from stages.engines.distributed.ray_session import ray_session
module.OBJECT_STORE_BYTES = 1  # Ray refuses it
from stages.foundations.errors import UserError
try:
    with ray_session(1):
        print("started")
except UserError as error:
    print(error)
"""
    said, _ = start(program, tmp_path).communicate()
    assert said.startswith("Ray does not start on this machine (") and said.count("\n") == 1
    assert "rl.loop: {kind: synchronous}" in said


def test_packages_are_looked_for_without_importing_them():
    assert missing_packages(["pydantic", "no_such_package"]) == ["no_such_package"]
