"""Mirroring against real MLflow databases: deleted, rebuilt, run again."""

import fcntl
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipelines.commands.mirroring import rebuild
from pipelines.comparing.results import compare
from pipelines.comparing.sides import read_sides
from pipelines.comparing.tracking import run_finder, track_comparison
from pipelines.records.graph_run import PARENT, VIEW_KEY, record_graph_run
from pipelines.records.lock_snapshots import snapshots_in_git, working_snapshot
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, sha256_of, write_json, write_text_atomically
from stages.foundations.job import attempt_at
from stages.observe.mlflow_store import MlflowStore
from stages.observe.tracking import kept_logs, track
from tests.fakes.graded_project import STAGES as GRAPH
from tests.fakes.graded_project import commit_all, git, write_kept_run, write_lock, write_project


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Makes an empty MLflow database, once: creating its tables takes four seconds."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def project(tmp_path, monkeypatch, database):
    """Makes a finished project, with an empty database, in the working folder."""
    for name in ("RETRACE_TRACKING", "MLFLOW_TRACKING_URI", "DVC_STAGE", "DVC_ROOT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    root = write_project(tmp_path / "project")
    monkeypatch.setenv("RETRACE_STATE", str(root / "state"))
    monkeypatch.chdir(root)
    write_graph(root)
    forget(root, database)
    return root


def forget(root: Path, database: Path) -> None:
    """Replaces MLflow's database by an empty one, which saves four seconds."""
    (root / "state").mkdir(exist_ok=True)
    shutil.rmtree(root / "state" / "mlartifacts", ignore_errors=True)
    shutil.copy(database, root / "state" / "mlflow.db")


def mirror(root: Path):
    return rebuild(root, root / "state")


def runs_of(root: Path, wanted: str = ""):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{root / 'state' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("retrace")
    return client, client.search_runs([experiment.experiment_id], wanted, order_by=["attributes.start_time ASC"])


def everything(root: Path):
    """Returns all that MLflow holds of each run, except its id, its parent's, and the tag of a run that was lost."""
    client, runs = runs_of(root)
    told = {}
    for run in runs:
        tags = {name: value for name, value in run.data.tags.items() if name not in ("rebuilt", PARENT)}
        points = {
            name: sorted((p.step, p.timestamp, p.value) for p in client.get_metric_history(run.info.run_id, name))
            for name in run.data.metrics
        }
        inputs = sorted((one.dataset.name, one.dataset.digest) for one in run.inputs.dataset_inputs)
        info = (run.info.run_name, run.info.status, run.info.start_time, run.info.end_time)
        told[tags.get("stage_hash", ""), run.info.start_time] = (info, tags, run.data.params, points, inputs)
    return told


def execute(root: Path, monkeypatch, name: str = "sft", fails: bool = False):
    """Runs a stage as `dvc repro` does, on the project's inputs."""
    monkeypatch.setenv("DVC_STAGE", name)
    params = yaml.safe_load((root / "params.yaml").read_text())
    metrics = json.loads((root / f"data/metrics/{name}.json").read_text())
    inputs = {"policy": Path("data/policies/base"), "train": Path("data/problems/train.parquet")}
    attempt = attempt_at(name, {"sft": params["sft"]}, inputs, seed=params["seed"], policy="sft")
    with track(attempt) as run:
        with run.phase("update"):
            run.log({"loss/train": 2.0, "time/step_seconds": 0.125}, 1)
        if fails:
            raise ZeroDivisionError
        run.log({"loss/train": 0.5, "time/step_seconds": 0.25}, 2)
        run.summary(metrics)
    monkeypatch.delenv("DVC_STAGE")


def test_a_run_that_was_tracked_knows_its_key_and_comes_back_whole(project, monkeypatch, database):
    execute(project, monkeypatch)
    assert mirror(project).is_nothing
    live = everything(project)
    (told,) = live.values()
    assert told[1]["code"] and told[1]["gpus"] and told[0][0] == "sft s0"
    assert told[1]["lock_hash"] == working_snapshot(project).entries["sft"].key
    forget(project, database)
    with monkeypatch.context() as off:
        off.setenv("RETRACE_TRACKING", "off")
        assert mirror(project).is_nothing
    assert mirror(project).stage_runs == 1
    assert everything(project) == live, "curves, times, parameters, inputs and tags"
    assert mirror(project).is_nothing


def test_a_failed_run_comes_back_and_its_next_attempt_goes_on_with_it(project, monkeypatch, database):
    with pytest.raises(ZeroDivisionError):
        execute(project, monkeypatch, fails=True)
    monkeypatch.delenv("DVC_STAGE")
    forget(project, database)
    assert mirror(project).stage_runs == 1
    (run,) = runs_of(project, "attributes.status = 'FAILED'")[1]
    assert run.data.metrics["loss/train"] == 2.0
    assert mirror(project).is_nothing
    execute(project, monkeypatch)
    (run,) = runs_of(project)[1]
    assert (run.info.status, run.data.tags["attempts"]) == ("FINISHED", "2")
    assert run.data.metrics["loss/train"] == 0.5
    assert mirror(project).is_nothing, "its kept log is of that very run"


def test_an_ablations_results_have_variant_and_seed(project):
    for variant in ("plain", "slow"):
        made = write_project(project.parent / variant, seed=5 + len(variant))
        write_kept_run(project / "state" / "ablations" / "mini" / "results", made, variant, 5)
    mirror(project)
    parents = graph_runs(project)[1]
    assert sorted(run.info.run_name for run in parents) == ["mini plain s5", "mini slow s5"]
    assert all("score/rl_1" in run.data.metrics and run.data.tags["seed"] == "5" for run in parents)


def test_a_comparison_is_a_run_of_its_own_kind_and_comes_back(project, monkeypatch, database):
    execute(project, monkeypatch)
    finder = run_finder(project, project / "state")
    sides = read_sides(["sft s0", "rl_1"], project, finder)
    assert sides[0].name == "sft" and sides[0].answers[0].seed == 0
    findings = compare(sides, ["avg"], False, False)
    for _ in range(2):
        assert track_comparison(findings, project / "state") == ""
    client, (run,) = runs_of(project, "tags.kind = 'comparison'")
    assert run.data.tags["claim"] == "these two policies"
    assert run.info.run_name == "compare: sft, rl_1"
    assert run.data.metrics["sums/avg_at_4/rl_1 minus sft"] > 0.5
    files = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert files == {"comparison.md", "comparison.json", "comparison_table.json"}
    forget(project, database)
    assert mirror(project).results == 1
    assert runs_of(project, "tags.kind = 'comparison'")[1][0].data.metrics == run.data.metrics
    assert finder("no such run") is None


KILLED = """
from stages.foundations.job import attempt_at
from stages.observe.tracking import track
import os, signal, time
with track(attempt_at("sft", {}, {}, seed=1)) as run:
    run.log({"loss/train": 1.0}, 0)
    os.killpg(0, signal.SIGKILL)
"""


def test_the_log_of_a_killed_stage_is_delivered(project):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, start_new_session=True, check=False)
    assert done.returncode == -signal.SIGKILL
    (log,) = (project / "state" / "scratch").glob("*/tracking.jsonl")
    with open(log, "rb") as of_stage:
        fcntl.flock(of_stage, fcntl.LOCK_EX)
        assert mirror(project).is_nothing, "it runs"
    assert mirror(project).stage_runs == 1 and mirror(project).is_nothing
    (run,) = runs_of(project, "attributes.status = 'KILLED'")[1]
    assert run.data.metrics["loss/train"] == 1.0


def test_broken_records_are_told_and_the_rest_goes_on(project):
    (project / "state" / "runs").mkdir()
    (project / "state" / "runs" / "1-ab.jsonl.gz").write_bytes(b"no gzip")
    broken = bytearray(gzip.compress(b'{"kind": "start"}' * 50, mtime=0))
    broken[12:20] = b"\xff" * 8
    (project / "state" / "runs" / "2-cd.jsonl.gz").write_bytes(bytes(broken))
    strays = {"notes": b"not ours", "3-ef": b'{"kind": "start", "tags": 7}', "copy": b'{"kind": "start", "ms": "?"}'}
    for name, line in strays.items():
        (project / "state" / "runs" / f"{name}.jsonl.gz").write_bytes(gzip.compress(line))
    assert [path.name[:2] for path in kept_logs(project / "state")] == ["1-", "2-", "3-", "co", "no"]
    (project / "state" / "comparisons").mkdir()
    (project / "state" / "comparisons" / "x.json").write_text("{")
    report = mirror(project)
    assert len(report.problems) == 2 + len(strays)
    (project / "dvc.lock").write_text("stages: [")
    assert "not readable" in " ".join(mirror(project).problems)


def test_a_lock_committed_with_a_conflict_in_it_hides_no_other_commit(project, database):
    first = commit_all(project, "first")
    whole = (project / "dvc.lock").read_text()
    write_text_atomically(project / "dvc.lock", "<<<<<<< ours\n" + whole)
    broken = commit_all(project, "conflict")
    write_text_atomically(project / "dvc.lock", whole + "\n")
    last = commit_all(project, "mended")
    told = []
    assert [place.commit for place in snapshots_in_git(project, told.append)] == [first, last]
    assert len(told) == 1 and f"git {broken[:12]}" in told[0]
    assert run_finder(project, project / "state")("no such run") is None
    assert mirror(project).problems == told


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:///{state}/broken.db"])
@pytest.mark.timeout(200)  # MLflow alone tries for four minutes
def test_an_mlflow_that_is_gone_is_told(project, monkeypatch, uri):
    (project / "state" / "broken.db").write_text("no database " * 1000)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(state=project / "state"))
    with pytest.raises(UserError, match="start the server or unset MLFLOW_TRACKING_URI; finished runs are kept"):
        mirror(project)
    with pytest.raises(UserError, match="start the server or unset MLFLOW_TRACKING_URI"):
        run_finder(project, project / "state")("some run")


def test_a_mirroring_that_is_killed_anywhere_is_completed_by_the_next(project, monkeypatch, database):
    execute(project, monkeypatch)
    finish(project)
    record_graph_run(project)
    complete = everything(project)
    forget(project, database)
    whole, kills = MlflowStore.log, 0
    while True:
        allowed = iter(range(kills))

        def log(*given, allowed=allowed):
            if next(allowed, None) is None:
                raise KeyboardInterrupt
            whole(*given)

        monkeypatch.setattr(MlflowStore, "log", log)
        try:
            mirror(project)
            break
        except KeyboardInterrupt:
            kills += 1
    assert kills >= 2, "in the run of the stage, and in that of the graph"
    assert everything(project) == complete and mirror(project).is_nothing


def finish(root: Path, changes=None, score: float = 0.9) -> None:
    """Ends the project's run of the graph: parameters are changed, every stage has run, and the report exists."""
    params = yaml.safe_load((root / "params.yaml").read_text())
    for section, values in (changes or {}).items():
        params[section] = params[section] | values
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    graded = {"sft": 0.2, "rl_1": score}
    for policy, value in graded.items():
        write_json(root / f"data/metrics/grade/{policy}.json", {"sums/avg_at_4": value})
    write_lock(root)
    named = {"benchmark": "sums", "metric": "avg@4", "problems": 30}
    scores = [
        {"policy": policy, "value": value, "low": value - 0.1, "high": value + 0.1, **named}
        for policy, value in graded.items()
    ]
    gain = {"policy": "rl_1", "baseline": "sft", "value": score - 0.2, "low": 0.1, "high": 0.9, **named}
    result = {"title": "t", "page": "index.html", "scores": scores, "gains": [gain], "warnings": ["no step trained"]}
    write_json(root / "reports/result.json", result)
    write_text_atomically(root / "reports/index.html", f"<p>{score}</p>")
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    outs = [
        {"path": f"reports/{name}", "md5": dvc_md5(root / f"reports/{name}")} for name in ("index.html", "result.json")
    ]
    deps = [{"path": f"data/{name}", "md5": dvc_md5(root / f"data/{name}")} for name in ("metrics", "verdicts")]
    lock["stages"]["report"] = {"cmd": "python -m stages.report", "deps": deps, "outs": outs}
    (root / "dvc.lock").write_text(yaml.safe_dump(lock, sort_keys=False))


def write_graph(root: Path) -> None:
    """Writes a dvc.yaml with the stages of the project's dvc.lock."""
    stages = {"report": {"cmd": "x"}}
    items = {"collect": "sources", "rl_round": "rl_rounds", "respond": "policies", "grade": "policies"}
    for name, (deps, params, _) in GRAPH.items():
        stage, _, item = name.partition("@")
        key = "${item}" if items.get(stage) == "policies" else "${key}"
        deps, params = ([one.replace(item, key) if item else one for one in names] for names in (deps, params))
        body = {"cmd": "x", "deps": deps, "params": params}
        stages[stage] = {"foreach": f"${{{items[stage]}}}", "do": body} if item else body
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))


def graph_runs(root: Path):
    """Returns MLflow's runs of the graph, the best score first, as its table sorts them."""
    client, _ = runs_of(root)
    experiment = client.get_experiment_by_name("retrace").experiment_id
    return client, client.search_runs([experiment], "tags.kind = 'graph_run'", order_by=["metrics.score DESC"])


def children(client, parent):
    wanted = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    return client.search_runs([parent.info.experiment_id], wanted)


def test_a_run_of_the_graph_is_one_run_with_parameters_and_score_and_its_stages_below(project, monkeypatch):
    execute(project, monkeypatch)
    finish(project)
    told = []
    records = [record_graph_run(project, told.append) for _ in range(2)]
    client, (parent,) = graph_runs(project)
    ids = {"run_id": parent.info.run_id, "experiment_id": parent.info.experiment_id}
    assert [{key: record[key] for key in ids} for record in records] == [ids, ids], "a link leads there"
    assert told == [] and parent.info.status == "FINISHED"
    assert parent.data.metrics["score"] == parent.data.metrics["score/rl_1"] == 0.9
    assert parent.data.metrics["score_low/rl_1"] == pytest.approx(0.8)
    assert parent.data.metrics["gain/rl_1_over_sft"] == pytest.approx(0.7)
    assert parent.data.params["rl.policy_loss.clip_high"] == "0.28" and parent.data.params["seed"] == "0"
    assert parent.data.tags["warnings"] == "no step trained"
    assert parent.data.tags["last_policy.md5"] == dvc_md5(project / "data/policies/rl_1")
    assert {one.path for one in client.list_artifacts(parent.info.run_id)} == {"index.html", "result.json"}
    view = client.get_experiment(parent.info.experiment_id).tags[f"mlflow.sharedViewState.{VIEW_KEY}"]
    assert json.loads(view)["searchFilter"] == "tags.kind = 'graph_run'"
    (executed,) = children(client, parent)
    assert executed.data.tags["dvc.stage"] == "sft"
    assert mirror(project).is_nothing


def test_two_settings_are_two_runs_that_share_stages_and_come_back(project, monkeypatch, database):
    execute(project, monkeypatch)
    finish(project)
    commit_all(project, "first")
    record_graph_run(project)
    finish(project, {"rl": {"policy_loss": {"clip_high": 0.5}}}, score=0.95)
    record_graph_run(project)
    client, (better, first) = graph_runs(project)
    assert [run.data.metrics["score"] for run in (better, first)] == [0.95, 0.9]
    assert [run.data.params["rl.policy_loss.clip_high"] for run in (better, first)] == ["0.5", "0.28"]
    assert [run.data.tags["dvc.stage"] for run in children(client, first)] == ["sft"]
    assert children(client, better) == [], "a run has one parent"
    before = [(run.info.run_name, run.data.params, run.data.metrics) for run in (better, first)]
    forget(project, database)
    assert mirror(project).graph_runs == 2
    runs = graph_runs(project)[1]
    assert [(run.info.run_name, run.data.params, run.data.metrics) for run in runs] == before
    assert mirror(project).is_nothing
    forget(project, database)
    shutil.rmtree(project / "state" / "graph_runs")
    shutil.rmtree(project / "reports")
    assert mirror(project).graph_runs == 2, "from dvc.lock and metrics: here, and in the commit"
    assert [run.data.metrics["score"] for run in graph_runs(project)[1]] == [0.95, 0.9]


def test_names_say_the_change(project, monkeypatch):
    recipes = project / "pipelines" / "recipes"
    recipes.mkdir(parents=True)
    shutil.copy(project / "params.yaml", recipes / "small.yaml")
    (project / "state" / "recipe").write_text(f"small\n{sha256_of(recipes / 'small.yaml')}\n")
    finish(project, {"grade": {"bootstrap_draws": 7}})
    execute(project, monkeypatch)
    record_graph_run(project)
    client, (parent,) = graph_runs(project)
    assert parent.info.run_name == "small grade.bootstrap_draws=7 s0"
    assert parent.data.tags["changes"].startswith("grade.bootstrap_draws: ")
    assert "sft s0 small grade.bootstrap_draws=7" in {run.info.run_name for run in children(client, parent)}


def test_an_executed_stage_comes_back_below_its_run_when_dvc_lock_has_moved_on(project, monkeypatch, database):
    execute(project, monkeypatch)
    finish(project)
    record_graph_run(project)
    finish(project, {"sft": {"epochs": 2}}, score=0.95)
    record_graph_run(project)
    forget(project, database)
    mirror(project)
    client, (_, first) = graph_runs(project)
    (executed,) = (run for run in children(client, first) if "rebuilt" in run.data.tags)
    assert executed.data.tags["dvc.stage"] == "sft" and executed.data.metrics["loss/train"] == 0.5
    assert mirror(project).is_nothing


def test_an_experiments_name_is_the_runs_name(project):
    finish(project)
    commit_all(project, "first")
    finish(project, {"rl": {"policy_loss": {"clip_high": 0.5}}}, score=0.95)
    commit = commit_all(project, "an experiment")
    git(project, "update-ref", "refs/exps/12/3456/wide-clip", commit)
    git(project, "reset", "-q", "--hard", "HEAD~1")
    mirror(project)
    (experiment, first) = graph_runs(project)[1]
    assert (experiment.info.run_name, experiment.data.tags["variation"]) == ("run wide-clip s0", "wide-clip")
    assert first.data.params["rl.policy_loss.clip_high"] == "0.28"


def test_what_the_recipe_before_left_in_dvc_lock_is_no_part_of_a_run(project):
    finish(project, {"sft": {"shares": {3: 0.5}}})  # a number as a key, as digits has it
    lock = yaml.safe_load((project / "dvc.lock").read_text())
    policy = {"path": "data/policies/sft", "md5": "of the recipe before"}
    outs = [{"path": "data/metrics/grade/gone.json", "md5": "0"}]
    lock["stages"]["grade@gone"] = {"cmd": "x", "deps": [policy], "params": {}, "outs": outs}
    (project / "dvc.lock").write_text(yaml.safe_dump(lock))
    record_graph_run(project)
    (parent,) = graph_runs(project)[1]
    assert parent.data.metrics["score"] == 0.9 and parent.data.params["sft.shares.3"] == "0.5"


def test_a_stage_that_ran_again_without_the_rest_makes_no_run_of_the_graph(project):
    finish(project)
    write_json(project / "data/policies/sft/config.json", {"policy": "another"})
    lock = yaml.safe_load((project / "dvc.lock").read_text())
    (out,) = (out for out in lock["stages"]["sft"]["outs"] if out["path"] == "data/policies/sft")
    out["md5"] = dvc_md5(project / "data/policies/sft")
    (project / "dvc.lock").write_text(yaml.safe_dump(lock))
    record_graph_run(project)
    assert mirror(project).graph_runs == 0


@pytest.mark.timeout(200)  # MLflow alone tries for four minutes
def test_a_finished_run_does_not_fail_when_mlflow_is_gone(project, monkeypatch):
    finish(project)
    told = []
    with monkeypatch.context() as gone:
        gone.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        record_graph_run(project, told.append)
    (warning,) = told
    assert warning.startswith("WARNING: MLflow at http://127.0.0.1:9 failed") and "retrace mirror" in warning
    assert mirror(project).graph_runs == 1
    (project / "reports" / "result.json").write_text("{")
    shutil.rmtree(project / "state" / "graph_runs")
    record_graph_run(project, told.append)
    assert "reports/result.json cannot be read" in told[1]
