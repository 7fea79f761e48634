"""Deployments of prefect.yaml, their forms, the GPUs that a task takes, and a task's messages; no server."""

import json
import os
import threading
import time

import pytest
import yaml

from pipelines.ablating.definition import ablation_names
from pipelines.graph.graph import DvcStage, stages_in_order
from pipelines.launching.launchers import stage_gpus, stage_hours
from pipelines.runtime.machine import gpu_slots, lock_folder, visible_gpus
from pipelines.ui.servers import server_settings
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from tests.fakes.processes import wait_until

DEPLOYMENTS = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]


@pytest.fixture(autouse=True)
def prefect_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))


@pytest.mark.parametrize("entry", DEPLOYMENTS, ids=lambda entry: entry["name"])
def test_every_parameter_of_a_form_has_a_title_a_type_and_help(entry):
    from pipelines.ui.deployments import form, load_flow

    flow = load_flow(entry["entrypoint"])
    fields = form(flow)["properties"]
    assert flow.name == entry["name"] and flow.description
    for position, (name, field) in enumerate(fields.items()):
        assert field["position"] == position and field["title"] and field["type"], name
        assert field["description"].endswith("."), name
    assert set(entry.get("parameters", {})) <= set(fields)
    for name, value in entry.get("parameters", {}).items():
        assert value in fields[name]["enum"], "what prefect.yaml presets can be chosen"
    assert all(schedule["active"] is False for schedule in entry["schedules"])


def test_choices_are_the_files_that_are_there(tmp_path):
    from pipelines.flows.whole_graph import policy_names

    for name, text in {"a": "policies: [sft]\nrl_rounds: {rl_1: {}}", "b": "policies: [sft, base]"}.items():
        (tmp_path / "pipelines" / "recipes").mkdir(parents=True, exist_ok=True)
        (tmp_path / "pipelines" / "recipes" / f"{name}.yaml").write_text(text)
    assert policy_names(tmp_path) == ["sft", "base"]
    assert ablation_names(tmp_path) == []


# ------------------------------------------------------------------ GPUs
def test_gpus_are_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert visible_gpus() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert visible_gpus() == []
    monkeypatch.setenv("RETRACE_GPUS", "0")
    assert visible_gpus() == ["0"]


@pytest.fixture
def waiting(tmp_path, monkeypatch):
    """Takes GPUs in a thread; returns the thread, its log lines, and the GPUs it got."""
    monkeypatch.setenv("RETRACE_GPUS", "0,1")
    monkeypatch.setattr("pipelines.runtime.locks.SECONDS_BETWEEN_TRIES", 0.02)

    def start(wanted, locks=tmp_path):
        lines, got = [], []

        def take():
            with gpu_slots(wanted, locks, lines.append) as slots:
                got.append(slots.gpus)

        thread = threading.Thread(target=take)
        thread.start()
        wait_until(lambda: lines)
        return thread, lines, got

    return start


def test_two_tasks_get_different_gpus_and_the_third_waits_and_says_so(tmp_path, waiting):
    said = []
    with gpu_slots(1, tmp_path, said.append) as first:
        with gpu_slots(1, tmp_path, said.append) as second:
            assert (first.gpus, second.gpus, said) == (("0",), ("1",), [])
            third, lines, got = waiting(1)
            time.sleep(0.2)
            assert len(lines) == 1 and lines[0].startswith("waiting for 1 of the GPUs 0, 1; 0 is held by process")
            assert got == []
        third.join()
    assert got == [("1",)]


def test_clones_of_one_user_share_the_locks_and_say_which_clone_holds_one(tmp_path, monkeypatch, waiting):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("RETRACE_GPUS", "0,MIG-GPU-5/1/0")
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "one"))
    with gpu_slots(2, lock_folder(), print):
        monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "other"))
        other_clone, lines, got = waiting(1, lock_folder())
        assert got == [] and f"0 is held by process {os.getpid()} of {PROJECT}" in lines[0]
    other_clone.join()
    assert got == [("0",)] and lock_folder().stat().st_mode & 0o777 == 0o700


def test_a_lock_folder_that_somebody_else_made_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRACE_GPUS", "0")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="is a link or belongs to another user"):
        gpu_slots(1, tmp_path / "locks", print).__enter__()


def test_a_task_that_wants_two_does_not_sit_on_one_while_it_waits(tmp_path, waiting):
    with gpu_slots(1, tmp_path, print):
        both, _, got = waiting(2)
        with gpu_slots(1, tmp_path, print):
            assert got == []
    both.join()
    assert got == [("0", "1")]


def test_more_gpus_than_there_are_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRACE_GPUS", "0,1")
    with pytest.raises(UserError, match=r"8 GPUs are wanted .* this machine shows 2"):
        gpu_slots(8, tmp_path, print).__enter__()


def test_without_gpus_nothing_is_locked(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRACE_GPUS", "")
    with gpu_slots(1, tmp_path / "locks", print) as slots:
        assert slots.gpus == () and not (tmp_path / "locks").exists()


def test_stages_that_run_a_model_take_gpus(dvc_project):
    content = yaml.safe_load((dvc_project / "dvc.yaml").read_text())
    content["stages"]["respond"] = content["stages"].pop("first")
    content["stages"]["sft"] = content["stages"].pop("last")
    content["stages"]["sft"]["cmd"] = "python -m pipelines.launching -m stages.sft --params params.yaml"
    launch = {"nodes": 1, "gpus_per_node": 4, "hours": 2.5, "command": {"kind": "torchrun"}}
    params = dvc_project / "params.yaml"
    own = {**yaml.safe_load(params.read_text()), "sampler": {"tensor_parallel": 2}}
    params.write_text(yaml.safe_dump({**own, "launch": launch}))
    (dvc_project / "dvc.yaml").write_text(yaml.safe_dump(content))
    assert [(stage.name, stage.gpus) for stage in stages_in_order(dvc_project)] == [
        ("respond", 2),
        ("round@a", 0),
        ("round@b", 0),
        ("sft", 4),
    ]
    assert (stage_hours(dvc_project, 0.0), stage_hours(dvc_project, 7.0)) == (2.5, 7.0)
    launch["command"] = {"kind": "slurm", "options": [], "port": 29500}
    params.write_text(yaml.safe_dump({**own, "launch": launch}))
    assert stages_in_order(dvc_project)[-1].gpus == 0, "its ranks run on GPUs of other machines"
    assert [stage.name for stage in stages_in_order(dvc_project, ("round@b",))] == ["respond", "round@b"]


@pytest.mark.parametrize(("agreement", "gpus"), [("none", 0), ("policy", 2)])
def test_a_stage_may_take_gpus_by_its_parameters(tmp_path, agreement, gpus):
    own = {"sampler": {"tensor_parallel": 2}, "filter_web": {"agreement": {"kind": agreement}}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(own))
    assert stage_gpus(tmp_path, "filter_web", "python -m stages.filter_web") == gpus
    assert stage_gpus(tmp_path, "respond", "python -m stages.respond") == 2


# ------------------------------------------------------------------ messages of a task
@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 1, "lower trainer.micro_batch_tokens"),
        ("error: no disk space left at data/x: free some", 2, "free disk space"),
        ("step 9", -9, "killed it"),
        ("step 9", 137, "killed it"),
        ("error: --policy x does not exist", 1, "the message says what to correct"),
        ("usage: sft [-h]", 2, "the message says what to correct"),
        ("Traceback (most recent call last):", 1, "correct the cause and run the flow again"),
        ("ERROR: output 'data/x' is already tracked by SCM", None, "correct the cause and run the flow again"),
    ],
)
def test_a_failure_has_a_remedy(line, code, told):
    from pipelines.flows.stage_task import remedy

    assert told in remedy(["some line", line], code)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ["step 1", "error: --policy x does not exist: name another", "step 2"],
            "--policy x does not exist: name another",
        ),
        (
            ["Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory"],
            "torch.OutOfMemoryError: CUDA out of memory",
        ),
        (["step 0", "step 1"], "step 1"),
        (["ERROR: output 'data/x' is already tracked by SCM", ""], "output 'data/x' is already tracked by SCM"),
        ([], "it said nothing"),
    ],
)
def test_the_cause_of_a_failure_is_the_line_that_says_it(lines, told):
    from pipelines.flows.stage_task import cause

    assert cause(lines) == told


def test_progress_is_read_from_the_lines():
    from pipelines.flows.ablate import Progress
    from pipelines.flows.stage_task import percent

    assert percent("sft: 350 of 700 steps in 12 s") == 50.0
    assert percent("sft: 350 steps in 12 s") is None and percent("> python -m stages sft") is None
    progress = Progress()
    assert progress("    3 runs left, about 2 min") is None
    assert progress("mini: 4 of 8 runs to do, 2 at once") is None
    assert progress("    3 runs left, about 2 min") == 25.0


def test_the_link_to_mlflow_is_the_servers_address_or_none(monkeypatch):
    from pipelines.flows.pages import mlflow_search

    for name in ("RETRACE_MLFLOW_URL", "RETRACE_MLFLOW_EXPERIMENT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    assert mlflow_search("sft") == "", "nobody knows of a server"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///state/mlflow.db")
    assert mlflow_search("sft") == ""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@tracking/")
    assert mlflow_search("sft") == "https://me@tracking"
    monkeypatch.setenv("RETRACE_MLFLOW_URL", "http://127.0.0.1:5001")
    monkeypatch.setenv("RETRACE_MLFLOW_EXPERIMENT", "7")
    assert mlflow_search("sft").startswith("http://127.0.0.1:5001/#/experiments/7/runs?searchFilter=tags.%60dvc.stage")


def test_links_lead_to_the_server_that_flows_track_to(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRACE_MLFLOW_URL", raising=False)

    def shown():
        return server_settings(tmp_path, 4201, 5001)["RETRACE_MLFLOW_URL"]

    assert shown() == "http://127.0.0.1:5001"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@team:5000")
    assert shown() == "http://me@team:5000"
    monkeypatch.setenv("RETRACE_MLFLOW_URL", "https://team/mlflow")
    assert shown() == "https://team/mlflow"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert shown() == "http://127.0.0.1:5001"


def test_scores_come_first_with_their_intervals(tmp_path):
    from pipelines.flows.pages import best_scores, metric_tables

    path, headlines = "data/metrics/grade/sft.json", tmp_path / "data/headline/grade/sft"
    values = {"b/always": 0.25, "b/problems": 12, "rows/in": 3}
    for name in ("b/clean_avg_at_2", "b/greedy", "b/avg_at_2"):
        values |= {name: 0.5, f"{name}_low": 0.25, f"{name}_high": 0.75}
    headlines.mkdir(parents=True)
    (headlines / "b.json").write_text(json.dumps({"score": 0.5, "low": 0.25, "high": 0.75, "tokens": 27.5}))
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(json.dumps(values))
    assert [line for line in metric_tables(tmp_path, path) if not line.startswith("|---")] == [
        "| score | value | 95% interval |",
        "| **b/avg_at_2** | **0.5000** | **0.2500 to 0.7500** |",
        "| b/greedy | 0.5000 | 0.2500 to 0.7500 |",
        "| b/clean_avg_at_2 | 0.5000 | 0.2500 to 0.7500 |",
        "",
        "| headline | value |",
        "| b/tokens | 27.5 |",
        "",
        "| other numbers | value |",
        "| b/always | 0.25 |",
        "| b/problems | 12 |",
        "| rows/in | 3 |",
        "",
    ]
    assert best_scores(tmp_path, path) == "b/avg_at_2 0.500 [0.250, 0.750]"


def test_only_stages_with_metrics_have_a_page_in_mlflow():
    from pipelines.flows.pages import has_mlflow_run

    with_metrics, without = DvcStage("sft", ("data/metrics/sft.json",), 0), DvcStage("code", (), 0)
    assert has_mlflow_run(with_metrics, {}) and not has_mlflow_run(without, {})
    assert not has_mlflow_run(with_metrics, {"RETRACE_TRACKING": "off"})
