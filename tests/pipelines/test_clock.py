"""The clock is changed during a run: hours ahead, then the run is killed and resumed, then ten hours back."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.graph.project_lock import project_lock
from pipelines.runtime.machine import watched
from stages.engines.trainers.checkpoints import Checkpoints
from stages.observe.tracking import end_of, kept_logs, latest_runs, read_log

PROJECT = Path(__file__).resolve().parents[2]
HOURS = 5
# Every process of the run reads the time from the file, as all read one clock. Python imports this module by itself.
SITECUSTOMIZE = """
import os, time
real = time.time
def shifted():
    try:
        with open(os.environ["CLOCK"]) as file:
            return real() + float(file.read() or 0)
    except OSError:
        return real()
time.time = shifted
"""
STAGE = """
import os, pathlib, signal, sys, time
from pipelines.graph.project_lock import project_lock
from stages.engines.trainers.checkpoints import Checkpoints
from stages.foundations.job import attempt_at
from stages.foundations.files import replace_folder
from stages.observe.tracking import track

is_first = sys.argv[1] == "first"
def set_clock(hours):
    pathlib.Path(os.environ["CLOCK"] + ".new").write_text(str(hours * 3600))
    os.replace(os.environ["CLOCK"] + ".new", os.environ["CLOCK"])
with project_lock(pathlib.Path("."), lambda line: print(line, flush=True)):
    attempt = attempt_at("rl_round", {}, {}, policy="rl_1", round="rl_1")
    with track(attempt) as run:
        checkpoints = Checkpoints(attempt.scratch)
        latest = checkpoints.latest()
        print("from", latest[0] if latest else 0, flush=True)
        for step in range(latest[0] if latest else 0, 6):
            with run.phase("update"):
                time.sleep(0.02)
            run.log({"reward/mean": step}, step)
            if is_first and step == 1:
                set_clock(5)
            if is_first and step == 2:
                with replace_folder(checkpoints.folder(3)) as folder:
                    (folder / "weights").write_text("3")
                checkpoints.keep_last()
                sys.stdin.readline()
                os.kill(os.getpid(), signal.SIGKILL)
            if not is_first and step == 4:
                set_clock(-5)
"""


@pytest.fixture
def clocked(tmp_path, monkeypatch):
    """Returns the environment of processes that take their clock from the file `clock`."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    for name in ("RETRACE_TRACKING", "MLFLOW_TRACKING_URI", "DVC_STAGE", "DVC_ROOT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    paths = os.pathsep.join([str(tmp_path / "site"), str(PROJECT)])
    return {**os.environ, "PYTHONPATH": paths, "CLOCK": str(tmp_path / "clock")}


@pytest.mark.slow
def test_a_clock_that_is_set_moves_no_duration_no_step_no_checkpoint_and_no_lock(tmp_path, clocked):
    from mlflow.tracking import MlflowClient

    state, began = Path(os.environ["RETRACE_STATE"]), time.time()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": clocked}
    first = subprocess.Popen([sys.executable, "-c", STAGE, "first"], **pipes)
    assert first.stdout.readline() == "from 0\n"
    second = subprocess.Popen([sys.executable, "-c", STAGE, "second"], **pipes)
    assert "waiting for the run of process" in second.stdout.readline(), "the lock holds while the clock is set"
    first.stdin.write("\n")
    first.stdin.flush()
    assert first.wait() == -signal.SIGKILL
    assert second.communicate()[0] == "from 3\n" and second.returncode == 0
    took = time.time() - began

    client = MlflowClient(f"sqlite:///{state / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("retrace").experiment_id])
    assert run.info.status == "FINISHED" and run.data.metrics["reward/mean"] == 5
    points = client.get_metric_history(run.info.run_id, "reward/mean")
    assert sorted((point.step, point.value) for point in points) == [(step, step) for step in range(6)]
    assert (
        0.06 <= run.data.metrics["system/time/update_seconds"] <= run.data.metrics["system/time/total_seconds"] < took
    )
    (line,) = latest_runs(state / "ledger.jsonl")
    assert line["seconds"] == pytest.approx(run.data.metrics["system/time/total_seconds"], abs=0.001)
    # The attempt that finished began five hours late; MLflow's column "Duration" counts from the first attempt's start.
    lasted = (run.info.end_time - run.info.start_time) / 1000
    assert HOURS * 3600 < lasted < HOURS * 3600 + took
    (kept,) = kept_logs(state)
    assert end_of(read_log(kept))["ms"] == run.info.end_time
    assert Checkpoints(state / "scratch").latest() is None


def test_usage_and_waiting_take_no_notice_of_the_clock(tmp_path, monkeypatch):
    real = time.time
    said = []
    with watched() as usage, project_lock(tmp_path, said.append):
        monkeypatch.setattr("time.time", lambda: real() - HOURS * 3600)
    assert 0 <= usage.wall_seconds < 3600 and said == []


def test_an_attempt_without_an_end_was_killed_at_its_last_message():
    start, values = {"kind": "start", "ms": 20_000}, {"kind": "values", "ms": 21_000, "values": {}}
    before = [{"kind": "start", "ms": 1000}, {"kind": "end", "ms": 9000, "status": "FAILED"}]
    killed = {"kind": "end", "status": "KILLED"}
    assert end_of([*before, start, values]) == killed | {"ms": 21_000}
    assert end_of([*before, start, values | {"ms": 3000}]) == killed | {"ms": 20_000}, "never before its start"
    assert end_of(before) == before[1] and end_of([]) == killed | {"ms": 0}
