"""The whole graph with real DVC, at miniature size: what runs again, and what does not."""

import os
import signal
import subprocess
import time

import psutil
import pytest
import yaml

from tests.fakes.miniature import (
    LAPTOP,
    copy_project,
    dvc,
    environment,
    output_hashes,
    stages_run,
    use_miniature,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = copy_project(tmp_path_factory.mktemp("project"))
    use_miniature(folder, "laptop", LAPTOP)
    printed = dvc(folder, "repro")
    assert stages_run(printed)[-1] == "report"
    return folder


def edit_params(project, name, value):
    path = project / "params.yaml"
    params = yaml.safe_load(path.read_text())
    *sections, last = name.split(".")
    place = params
    for section in sections:
        place = place[section]
    place[last] = value
    path.write_text(yaml.safe_dump(params, sort_keys=False))


def test_the_report_is_there_and_a_second_run_runs_only_code(project):
    assert "rl_2" in (project / "reports" / "index.html").read_text()
    assert stages_run(dvc(project, "repro")) == ["code"]


def test_metrics_and_plots_are_known_to_dvc(project):
    shown = dvc(project, "metrics", "show")
    assert "arithmetic_held_out/avg_at_2" in shown and "data/metrics/grade/rl_2.json" in shown
    assert "metrics/grade/rl_1.json" in dvc(project, "metrics", "diff")
    dvc(project, "plots", "show", "-o", "plots")
    assert "rl_round_rl_1_csv" in (project / "plots" / "index.html").read_text()


def test_comments_and_docstrings_run_nothing_again(project):
    for name in ("foundations/tables.py", "rl_round/learning.py", "algorithms/policy_losses.py"):
        source = project / "stages" / name
        text = source.read_text()
        changed = text.replace('"""', '"""Said in other words: ', 1) + "\n# a comment more\n"
        assert changed != text
        source.write_text(changed)
    assert stages_run(dvc(project, "repro")) == ["code"]


def test_a_change_of_code_runs_what_uses_it(project):
    source = project / "stages" / "grade" / "scores.py"
    source.write_text(source.read_text() + "\nUNUSED = 1\n")
    # The verdicts come out equal, so the report is not made again.
    assert stages_run(dvc(project, "repro")) == ["code", *[f"grade@{name}" for name in ("base", "sft", "rl_1", "rl_2")]]


def test_a_change_of_a_round_runs_what_starts_from_it(project):
    edit_params(project, "rl_rounds.rl_2.warmup_steps", 1)
    assert set(stages_run(dvc(project, "repro"))) == {"code", "rl_round@rl_2", "respond@rl_2", "grade@rl_2", "report"}
    edit_params(project, "rl_rounds.rl_2.warmup_steps", 2)
    assert stages_run(dvc(project, "repro")) == ["code"]


def test_forced_runs_give_equal_hashes(project):
    before = output_hashes(project)
    assert len(stages_run(dvc(project, "repro", "--force"))) > 15
    assert output_hashes(project) == before


@pytest.mark.parametrize(("victim", "shell", "warmup_steps"), [("dvc", "/bin/sh", 3), ("stage", "/bin/bash", 4)])
def test_nothing_survives_a_kill_and_the_next_run_goes_on(project, victim, shell, warmup_steps):
    """kill -9 in the middle of sft: no process is left, and the outputs end as those of an undisturbed run."""
    edit_params(project, "sft.warmup_steps", warmup_steps)  # a result that DVC's run cache does not have
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    surroundings = environment() | {"SHELL": shell}  # bash replaces itself with the stage, /bin/sh may wait for it
    process = subprocess.Popen(["dvc", "repro", "sft"], cwd=project, env=surroundings, **silent)
    deadline = time.monotonic() + 120
    while not list((project / "state" / "scratch").glob("sft-*/step-*/manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    family = psutil.Process(process.pid).children(recursive=True)
    stage = next(child for child in family if "stages.sft" in " ".join(child.cmdline()))
    os.kill(process.pid if victim == "dvc" else stage.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive
    printed = dvc(project, "repro", "sft")
    assert "sft" in stages_run(printed) and "going on from step" in printed
    resumed = output_hashes(project)
    assert "going on from step" not in dvc(project, "repro", "--force", "--single-item", "sft")
    assert output_hashes(project) == resumed
