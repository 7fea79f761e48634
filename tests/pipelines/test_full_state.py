"""The disk of the state folder is full while tracking is on; the test needs the right to mount a tmpfs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.observe.mlflow_store import MlflowStore
from stages.observe.mlflow_uploader import Delivery
from tests.fakes.small_disks import fill, mount_small

PROJECT = Path(__file__).resolve().parents[2]
STAGE = """
import os, sys, time
from stages.engines.trainers.checkpoints import Checkpoints
from stages.observe.command import run_stage
from stages.foundations.job import attempt_at
from stages.foundations.files import replace_folder
from stages.observe.tracking import track

def fill():
    with open(sys.argv[1], "wb", buffering=0) as filler:
        while True:
            filler.write(b"0" * 4096)

def main():
    attempt = attempt_at("rl_round", {}, {}, policy="rl_1", round="rl_1")
    with track(attempt) as run:
        checkpoints = Checkpoints(attempt.scratch)
        latest = checkpoints.latest()
        print("from", latest[0] if latest else 0)
        for step in range(latest[0] if latest else 0, 120):
            run.log({"reward/mean": step}, step)
            if step == 9:
                with replace_folder(checkpoints.folder(10)) as folder:
                    (folder / "weights").write_text("10")
                checkpoints.keep_last()
                try:
                    fill()
                except OSError:
                    pass

run_stage(main)
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Makes an empty MLflow database, which takes four seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowStore(f"sqlite:///{path}")
    return path


@pytest.fixture
def disk(tmp_path, database):
    """Makes a small separate file system with the database on it."""
    place = tmp_path / "disk"
    place.mkdir()
    mount_small(place, 8 << 20)
    try:
        shutil.copy(database, place / "mlflow.db")
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def runs_in(database):
    client = MlflowStore(f"sqlite:///{database}").client
    return client, client.search_runs([client.get_experiment_by_name("retrace").experiment_id])


@pytest.mark.slow
def test_a_stage_whose_state_has_no_room_says_so_and_the_next_attempt_goes_on(disk, tmp_path):
    kept = {name: value for name, value in os.environ.items() if name not in ("RETRACE_TRACKING", "DVC_STAGE")}
    surroundings = {**kept, "RETRACE_STATE": str(disk), "PYTHONPATH": str(PROJECT)}

    def attempt(filler):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", STAGE, str(filler)], cwd=tmp_path, env=surroundings, **pipes)
        process.wait()
        filler.unlink(missing_ok=True)  # its delivery, which still retries, gets room
        return process.returncode, *process.communicate()

    code, out, said = attempt(disk / "filler")
    assert (code, out) == (1, "from 0\n") and "no disk space left at" in said and "Traceback" not in said, said
    assert attempt(tmp_path / "nowhere" / "filler") == (0, "from 10\n", "")
    client, (recorded,) = runs_in(disk / "mlflow.db")
    assert recorded.info.status == "FINISHED"
    points = client.get_metric_history(recorded.info.run_id, "reward/mean")
    assert sorted({(point.step, point.value) for point in points}) == [(step, step) for step in range(120)]
    assert not list((disk / "scratch").glob("*/tracking.jsonl"))


def test_numbers_wait_while_the_database_has_no_room(disk, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{disk / 'mlflow.db'}")
    tags = {"stage": "sft", "stage_hash": "ab" * 32}
    start = {"kind": "start", "ms": 1_700_000_000_000, "name": "sft", "params": {}, "inputs": {}, "tags": tags}
    points = {f"loss/{name}": 1.0 for name in range(99)}
    values = [{"kind": "values", "ms": start["ms"] + step, "step": step, "values": points} for step in range(50)]
    lines = [start, *values, {"kind": "end", "ms": start["ms"] + 9, "status": "FINISHED"}]
    (tmp_path / "tracking.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open(tmp_path / "tracking.jsonl", "rb") as log:
        delivery = Delivery(log)
        fill(disk)
        assert not delivery.deliver(is_over=True) and "database or disk is full" in delivery.error
        (disk / "filler").unlink()
        assert delivery.deliver(is_over=True) and not delivery.error
    client, (recorded,) = runs_in(disk / "mlflow.db")
    assert recorded.info.status == "FINISHED"
    assert len(client.get_metric_history(recorded.info.run_id, "loss/98")) == 50
