"""Tracking against real MLflow stores: SQLite, a server that is down, a server that goes away, kills."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from pipelines.commands.mirroring import rebuild
from pipelines.runtime.process_group import end_groups, supervised
from stages.foundations.files import dvc_md5
from stages.foundations.job import attempt_at
from stages.observe.tracking import end_of, final_numbers, kept_logs, latest_runs, read_log, recipe_name, track
from tests.fakes.processes import wait_until
from tests.fakes.running_ui import unused_port


@pytest.fixture(scope="session")
def database(tmp_path_factory):
    """An empty MLflow database, made once: creating its tables takes four seconds."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def state(empty_state, database):
    """A project folder of its own with an empty MLflow database; returns its state folder."""
    empty_state.mkdir()
    shutil.copy(database, empty_state / "mlflow.db")
    return empty_state


@pytest.fixture
def empty_state(tmp_path, monkeypatch):
    """A project folder of its own, without a state folder yet."""
    for name in ("RETRACE_TRACKING", "MLFLOW_TRACKING_URI", "DVC_STAGE", "DVC_ROOT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"problem": "1+1"}\n')
    return tmp_path / "state"


def runs_in(state: Path):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{state / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("retrace")
    places = [experiment.experiment_id] if experiment else []
    return client, client.search_runs(places, order_by=["attributes.start_time ASC"])


def run_once(values=((0, {"loss/train": 2.0}), (1, {"loss/train": 1.0})), **changes):
    params = {"learning_rate": 0.1, "sampler": {"kind": "torch"}}
    settings = {"params": params, "inputs": {"train": Path("train.jsonl")}, "seed": 3, "policy": "sft"}
    attempt = attempt_at("sft", **settings | changes)
    with track(attempt) as run:
        for step, row in values:
            with run.phase("update"):
                time.sleep(0.01)
            run.log(row, step)
        run.summary({"rows/kept": 5})
    return attempt


def test_a_finished_run_has_curves_params_inputs_tags_and_a_ledger_line(state):
    attempt = run_once(params={"learning_rate": 0.1, "sampler": {"kind": "torch"}, "texts": ["x" * 9000]})
    client, (recorded,) = runs_in(state)
    assert recorded.info.status == "FINISHED"
    history = client.get_metric_history(recorded.info.run_id, "loss/train")
    assert [(point.step, point.value) for point in history] == [(0, 2.0), (1, 1.0)]
    assert recorded.data.metrics["rows/kept"] == 5
    assert recorded.data.metrics["system/time/update_seconds"] >= 0.02
    assert recorded.data.params["sampler.kind"] == "torch"
    assert recorded.data.params["texts"] == "see params.json"
    (artifact,) = client.list_artifacts(recorded.info.run_id)
    assert artifact.path == "params.json"
    (dataset,) = recorded.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("train", dvc_md5(Path("train.jsonl")))
    tags = recorded.data.tags
    assert (tags["stage"], tags["policy"], tags["seed"], tags["ablation"]) == ("sft", "sft", "3", "none")
    assert tags["stage_hash"] == attempt.stage_hash
    (line,) = latest_runs(state / "ledger.jsonl")
    assert (line["name"], line["run_id"]) == ("sft@sft", recorded.info.run_id)
    assert line["phases"]["update"] >= 0.02 and line["seconds"] >= 0.02
    timings = (state.parent / "reports" / "timings.js").read_text()
    assert json.loads(timings.removeprefix("window.RETRACE_TIMINGS = ").rstrip(";\n")) == [line]
    assert not list(attempt.scratch.glob("*.jsonl"))


def test_numbers_that_sum_up_a_curve_are_no_charts_and_variants_give_way():
    curves = {"loss/train", "groups/drawn"}
    values = {"loss/train_last": 1.0, "loss/best": 0.5, "groups/drawn": 70.0, "rows/kept": 5.0}
    assert final_numbers(values, curves) == {"loss/best": 0.5, "rows/kept": 5.0}
    many = {f"sums/{'variant_' * (place % 2)}score_{place}": 1.0 for place in range(80)}
    kept = final_numbers(many, curves)
    assert len(kept) == 29, "30 less the curve loss/train; groups are folded"
    assert not any("variant" in name for name in kept)


def test_an_exception_fails_the_run_and_the_next_attempt_goes_on_with_it(state):
    with pytest.raises(ZeroDivisionError), track(attempt_at("sft", {}, {}, seed=1)) as run:
        run.log({"loss/train": 1.0}, 0)
        raise ZeroDivisionError
    assert runs_in(state)[1][0].info.status == "FAILED"
    with track(attempt_at("sft", {}, {}, seed=1)) as run:
        run.log({"loss/train": 0.5}, 1)
    client, (recorded,) = runs_in(state)
    assert recorded.info.status == "FINISHED" and recorded.data.tags["attempts"] == "2"
    assert len(client.get_metric_history(recorded.info.run_id, "loss/train")) == 2
    with track(attempt_at("sft", {}, {}, seed=1)):
        pass
    assert len(runs_in(state)[1]) == 2, "a finished run is not continued"


STAGE = """
import sys, time
from stages.foundations.job import attempt_at
from stages.observe.tracking import track
with track(attempt_at("rl_round", {}, {}, policy=sys.argv[4], round="rl_1")) as run:
    for step in range(int(sys.argv[1]), int(sys.argv[2])):
        run.log({"reward/mean": step}, step)
    print("logged", flush=True)
    time.sleep(float(sys.argv[3]))
"""


def start_stage(first, last, seconds, policy="rl_1"):
    command = [sys.executable, "-c", STAGE, str(first), str(last), str(seconds), policy]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_killed_run_is_continued(state, whole_group):
    stage = start_stage(0, 10, 60)
    assert stage.stdout.readline() == "logged\n"
    (os.killpg if whole_group else os.kill)(stage.pid, signal.SIGKILL)
    stage.wait()
    (scratch,) = (state / "scratch").iterdir()
    with open(scratch / "tracking.jsonl", "ab") as log:
        log.write(b'{"kind": "values", "cut o')
    again = start_stage(10, 20, 0)
    assert again.wait() == 0
    client, (recorded,) = runs_in(state)
    assert recorded.info.status == "FINISHED"
    history = client.get_metric_history(recorded.info.run_id, "reward/mean")
    assert sorted(point.value for point in history) == list(range(20))


def test_a_log_may_be_sent_again_from_any_message_on_and_is_one_run(state, monkeypatch):
    from stages.observe.mlflow_store import LoggedRun, MlflowStore

    store = MlflowStore(f"sqlite:///{state / 'mlflow.db'}")
    tags, inputs = {"stage": "sft", "stage_hash": "ab" * 32}, {"train": {"path": "train.jsonl", "digest": "cd" * 16}}
    start = {"kind": "start", "ms": 1_700_000_000_123, "name": "sft", "params": {"steps": 7}, "inputs": inputs}
    points = [{"kind": "values", "ms": start["ms"] + step, "step": step, "values": {"loss": 1.0}} for step in (1, 2)]
    log = [start | {"tags": tags}, *points, {"kind": "end", "ms": start["ms"] + 9, "status": "FINISHED"}]
    with monkeypatch.context() as killed:  # while it makes the run
        killed.setattr(store, "_write_params", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            LoggedRun(store).send(log)
    run = LoggedRun(store)
    for messages in (log[:2], log, log[1:], log):
        run.send(messages)
    LoggedRun(store).send(log)
    client, (recorded,) = runs_in(state)
    assert (recorded.info.status, recorded.data.params) == ("FINISHED", {"steps": "7"})
    assert len(client.get_metric_history(recorded.info.run_id, "loss")) == 2 and "attempts" not in recorded.data.tags
    assert len(recorded.inputs.dataset_inputs) == 1
    LoggedRun(store).send([{**log[0], "ms": start["ms"] + 1}])
    assert len(runs_in(state)[1]) == 2, "another execution is another run"


def test_a_killed_stage_is_marked_killed(state):
    stage = start_stage(0, 10, 60)
    stage.stdout.readline()
    os.kill(stage.pid, signal.SIGKILL)
    stage.wait()
    wait_until(lambda: [run.info.status for run in runs_in(state)[1]] == ["KILLED"])


def test_nan_is_left_out_and_counted_and_a_name_that_mlflow_rejects_is_mended(state, monkeypatch):
    monkeypatch.setenv("DVC_STAGE", "sft@nan")
    run_once(
        values=[(0, {"loss/train": float("nan"), "reward/mean": 1.0, "what?": 2.0}), (1, {"loss/train": float("inf")})]
    )
    _, (recorded,) = runs_in(state)
    assert recorded.data.metrics["nan_steps"] == 2 and recorded.info.run_name.split()[0] == "sft@nan"
    assert "loss/train" not in recorded.data.metrics
    assert (recorded.data.metrics["reward/mean"], recorded.data.metrics["what_"]) == (1.0, 2.0)


@pytest.mark.slow
def test_many_stages_may_make_the_database_at_once(empty_state):
    stages = [start_stage(n, n + 1, 0, policy=f"rl_{n}") for n in range(2)]
    assert [stage.wait() for stage in stages] == [0, 0]
    assert [run.info.status for run in runs_in(empty_state)[1]] == ["FINISHED"] * 2


@pytest.mark.slow
def test_equal_attempts_at_once_have_a_run_each_and_leave_one_folder(state):
    stages = [start_stage(10 * n, 10 * n + 10, 5 - n) for n in range(3)]  # the first to begin is the last to end
    assert [stage.wait() for stage in stages] == [0, 0, 0]
    client, runs = runs_in(state)
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    histories = [client.get_metric_history(run.info.run_id, "reward/mean") for run in runs]
    found = sorted(sorted(point.value for point in history) for history in histories)
    assert found == [list(range(10 * n, 10 * n + 10)) for n in range(3)]
    [scratch] = (state / "scratch").iterdir()
    assert not list(scratch.glob("*.jsonl"))


@pytest.mark.slow
def test_a_server_that_goes_away_loses_nothing(state, monkeypatch, capfd):
    port, address = unused_port(), f"sqlite:///{state / 'mlflow.db'}"
    command = [sys.executable, *f"-m mlflow server --port {port} --workers 1 --backend-store-uri".split(), address]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    settings = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # no jobs run here
    server = subprocess.Popen(supervised(command), start_new_session=True, env=settings, **silent)
    wait_until(lambda: is_up(port))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with track(attempt_at("sft", {"a": 1}, {}, seed=1)) as run:
        run.log({"loss/train": 3.0}, 0)
        wait_until(lambda: any("loss/train" in one.data.metrics for one in runs_in(state)[1]))
        end_groups([server])
        run.log({"loss/train": 2.0}, 1)
    assert "not everything reached MLflow" in capfd.readouterr().err
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)  # it was the server's
    assert [one.info.status for one in runs_in(state)[1]] == ["RUNNING"]
    assert rebuild(state.parent, state).stage_runs == 1
    client, (recorded,) = runs_in(state)
    assert recorded.info.status == "FINISHED"
    assert [p.value for p in client.get_metric_history(recorded.info.run_id, "loss/train")] == [3.0, 2.0]
    assert rebuild(state.parent, state).is_nothing


def is_up(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30).status == 200
    except OSError:
        return False


@pytest.mark.slow
def test_without_mlflow_a_stage_works_and_the_next_attempt_sends_its_numbers_and_no_password_shows(
    state, monkeypatch, capfd
):
    for address in (
        "http://me:S3CRETPW@127.0.0.1:9",
        "postgresql://me:S3CRETPW@127.0.0.1:9/x",
        "nothing://me:S3CRETPW@h",
    ):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(ZeroDivisionError), track(attempt_at("sft", {}, {}, seed=1)) as run:
            run.log({"loss/train": 2.0}, 0)
            raise ZeroDivisionError
        told = "".join(capfd.readouterr())
        assert f"not everything reached MLflow at {address.replace(':S3CRETPW', '')}" in told
        assert "S3CRETPW" not in told
        for path in state.parent.rglob("*"):
            assert not path.is_file() or b"S3CRETPW" not in path.read_bytes(), path
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with track(attempt_at("sft", {}, {}, seed=1)) as run:
        run.log({"loss/train": 1.0}, 1)
    assert "not everything" not in capfd.readouterr().err
    client, (recorded,) = runs_in(state)
    assert (recorded.info.status, recorded.data.tags["attempts"]) == ("FINISHED", "4")
    history = client.get_metric_history(recorded.info.run_id, "loss/train")
    assert [point.value for point in history] == [2.0, 2.0, 2.0, 1.0]
    (kept,) = kept_logs(state)
    assert end_of(read_log(kept))["status"] == "FINISHED" and not list((state / "scratch").glob("*/tracking.jsonl"))


def test_a_finished_log_of_a_killed_stage_is_no_part_of_the_next_run(state, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr("stages.observe.tracking.keep_if_finished", lambda log: False)
        attempt = run_once()
    assert (attempt.scratch / "tracking.jsonl").exists()
    run_once()
    assert [run.info.status for run in runs_in(state)[1]] == ["FINISHED"] * 2
    assert len(kept_logs(state)) == 2 and rebuild(state.parent, state).is_nothing


def test_an_attempt_with_another_address_takes_the_earlier_ones_along(state, database, monkeypatch, tmp_path):
    with pytest.raises(ZeroDivisionError), track(attempt_at("sft", {}, {}, seed=1)) as run:
        run.log({"loss/train": 2.0}, 0)
        raise ZeroDivisionError
    assert [one.info.status for one in runs_in(state)[1]] == ["FAILED"]
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(database, other / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{other / 'mlflow.db'}")
    with track(attempt_at("sft", {}, {}, seed=1)) as run:
        run.log({"loss/train": 1.0}, 1)
    client, (recorded,) = runs_in(other)
    assert recorded.info.status == "FINISHED"
    assert [p.value for p in client.get_metric_history(recorded.info.run_id, "loss/train")] == [2.0, 1.0]
    assert [one.info.status for one in runs_in(state)[1]] == ["FAILED"], "the first one keeps what it has"


def test_switched_off_it_writes_nothing_but_the_scratch_folder(state, monkeypatch):
    monkeypatch.setenv("RETRACE_TRACKING", "off")
    attempt = run_once()
    assert sorted(path.name for path in state.iterdir()) == ["mlflow.db", "scratch"]
    assert list(attempt.scratch.iterdir()) == []


def test_recipe_name_says_when_params_were_edited(tmp_path):
    (tmp_path / "pipelines/recipes").mkdir(parents=True)
    (tmp_path / "pipelines/recipes/laptop.yaml").write_text("seed: 1\n")
    assert recipe_name(tmp_path) == ""
    for seed, name in ((1, "laptop"), (2, "laptop+changes")):
        (tmp_path / "params.yaml").write_text(f"seed: {seed}\n")
        assert recipe_name(tmp_path) == name
