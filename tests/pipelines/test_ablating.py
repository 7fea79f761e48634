"""An ablation of two variants and two seeds: real graph, parameters, DVC and worktrees, with replaced stages.

(With the real stages it takes four minutes of CPU time, most of it for importing torch and MLflow 40 times.)
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from pipelines.ablating.session import Choice, run_ablation, show_markdown, show_plan
from tests.fakes.graded_project import git
from tests.fakes.mini_ablation import mini_ablation, write_ablation
from tests.fakes.miniature import PROJECT, copy_project, environment, stages_run
from tests.fakes.processes import assert_all_end, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
COMMAND = [sys.executable, "-c", "from pipelines.cli import app; app()", "ablate"]


def retrace(project, *arguments, check=True):
    own = environment(tracking=True) | {"PYTHONPATH": str(project)}
    done = subprocess.run([*COMMAND, *arguments], cwd=project, env=own, text=True, capture_output=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def stages_of(project, run):
    return stages_run((project / "state/ablations/mini/logs" / f"{run}.log").read_text())


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Makes the project after `retrace ablate mini`, whose first call was killed in the middle of a run."""
    folder = copy_project(tmp_path_factory.mktemp("project"))
    for main in folder.glob("stages/*/run.py"):
        if main.parent.name != "code":
            shutil.copy2(PROJECT / "tests" / "fakes" / "stand_in_stage.py", main)
    write_ablation(folder, mini_ablation())
    for command in (["add", "-A"], ["commit", "-qm", "stand-ins"]):
        git(folder, *command)
    command = [*COMMAND, "mini", "--jobs", "2"]
    with subprocess.Popen(command, cwd=folder, env=environment(tracking=True) | {"PYTHONPATH": str(folder)}) as process:
        logs = folder / "state/ablations/mini/logs"
        wait_until(lambda: any("sft" in stages_run(log.read_text()) for log in logs.glob("*.log")), 600)
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait() == 130
    assert_all_end(family)
    folder.joinpath("first_stages").write_text(json.dumps([stages_of(folder, "plain-0"), stages_of(folder, "plain-1")]))
    retrace(folder, "mini", "--jobs", "2")
    return folder


def test_shared_stages_ran_once_for_each_seed_and_others_came_from_the_cache(project):
    before = json.loads((project / "first_stages").read_text())
    for seed in (0, 1):
        stages = before[seed] + stages_of(project, f"plain-{seed}")
        assert stages.count("base") == 1 and stages.count("rl_round@rl_1") == 1, "it did not go on"
        assert stages_of(project, f"slow-{seed}") == ["code", "rl_round@rl_1", "respond@rl_1", "grade@rl_1"]


def test_the_results_are_written_and_tagged(project):
    found = json.loads((project / "reports/ablations/mini.json").read_text())
    assert found["seeds"] == [0, 1] and not found["missing"] and not found["is_dirty"]
    own = found["metrics"]["accuracy"]["slow"]
    plain = found["metrics"]["accuracy"]["plain"]
    assert own["minus_baseline"]["mean"] == pytest.approx(own["mean"] - plain["mean"])
    assert own["minus_baseline"]["over_problems"] is not None and own["published"] == 36.0
    page = (project / "reports/ablations/mini.html").read_text()
    assert "<svg" in page and "half the learning rate" in page
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{project / 'state/mlflow.db'}")
    experiment = client.get_experiment_by_name("retrace").experiment_id
    runs = client.search_runs([experiment], "tags.ablation = 'mini' and tags.variant = 'slow'")
    stages = {(run.data.tags["seed"], run.data.tags["stage"]) for run in runs if "stage" in run.data.tags}
    assert ("0", "rl_round") in stages
    assert all(run.data.tags["git.dirty"] == "false" for run in runs if "stage" in run.data.tags)
    results = [run for run in runs if run.data.tags.get("kind") == "ablation_result"]
    assert len(results) == 1 and "accuracy/mean" in results[0].data.metrics


def test_a_second_call_runs_nothing(project):
    lines = []
    choice = Choice(project, project / "state", "mini", None, None, 1, "HEAD", False, False)
    assert run_ablation(choice, lines.append) == 0
    assert lines[0] == "mini: all 4 runs are done, nothing to run"
    assert show_plan(choice)[-1].startswith("0 of 4 runs to do")
    assert "| slow |" in show_markdown(choice)


def test_no_worktree_is_left(project):
    listed = subprocess.run(["git", "worktree", "list"], cwd=project, capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 1
    left = {path.name for path in (project / "state/ablations/mini").iterdir()}
    assert left == {"lock", "logs", "results"}


def test_a_failing_variant_is_told_and_the_others_go_on(project):
    content = mini_ablation()
    content["seeds"] = [0]
    content["variants"]["broken"] = {"says": "too few problems", "rl.problems_per_step": 500}
    write_ablation(project, content)
    done = retrace(project, "mini", check=False)
    assert done.returncode == 1
    assert "broken seed 0: FAILED" in done.stderr and "fewer problems than rl.problems_per_step" in done.stderr
    assert json.loads((project / "reports/ablations/mini.json").read_text())["missing"] == ["seed 0 of broken"]
