"""Section `launch`: what is rejected, started and left behind. Two nodes are two processes here."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from pipelines.launching import launchers
from pipelines.launching.__main__ import job_name, launch_of, run, shown
from pipelines.launching.launchers import LaunchParams
from stages.foundations.errors import UserError
from tests.fakes.processes import wait_until

PROJECT = Path(__file__).resolve().parents[3]
STAGE = ["-m", "stages", "rl_round@rl_1", "--params", "params.yaml", "--out", "rl 1"]
KUBERAY = {
    "kind": "kuberay",
    "namespace": "team",
    "image": "registry.example/retrace:1",
    "claim": "shared",
    "mount": "/shared",
    "project": "/shared/retrace",
    "secret": "tracking",
    "environment": {"MLFLOW_TRACKING_URI": "http://mlflow:5000"},
    "shared_memory_gib": 64,
}
SKYPILOT = {
    "kind": "skypilot",
    "infra": "k8s",
    "accelerator": "H100",
    "volumes": {"/shared": "shared"},
    "project": "/shared/retrace",
    "environment": {},
}
SLURM = {"kind": "slurm", "options": ["--partition=gpu"], "port": 29517}

# Runs each node's task as Slurm would: only Slurm knows the nodes of a job.
SRUN = """#!{python}
import os, subprocess, sys
flags = [word for word in sys.argv[1:] if word.startswith("--")]
command = sys.argv[1 + len(flags):]
nodes = int(next(flag for flag in flags if flag.startswith("--nodes=")).partition("=")[2])
env = {{**os.environ, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "localhost"}}
tasks = [subprocess.Popen(command, env=env) for _ in range(nodes)]
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """#!/bin/sh
test "$1 $2 $3" = "show hostnames localhost" && echo localhost && echo other
"""
RANKS = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
if dist.get_rank() == 0:
    Path(sys.argv[sys.argv.index("--out") + 1]).write_text(f"{dist.get_world_size()} {int(ones)} {sys.argv[-1]}")
dist.destroy_process_group()
"""
RUN = """
import sys
from pathlib import Path
from pipelines.launching.__main__ import run
from pipelines.launching.launchers import LaunchParams
from stages.foundations.params import load_section
sys.exit(run(load_section(Path("params.yaml"), "launch", LaunchParams), sys.argv[1:]))
"""
# Answers like kubectl; the job runs for one poll and ends as the file `end` says.
KUBECTL = """#!/bin/sh
cd {folder}; shift 2; echo "$*" >> calls
case $1 in
create) cat > manifest ;;
get) state=Running; test $(grep -c "^get" calls) -gt 2 && state=$(cat end)
     printf '{{"status": {{"jobDeploymentStatus": "%s"}}}}' $state ;;
logs) echo "step 1 of 2" ;;
esac
"""


@pytest.mark.parametrize(
    "option",
    ["touch", "--prolog=/tmp/x", "--output=/tmp/x", "--export=ALL,A=b", "-p", "--prol=x", "--partition\n=a", ""],
)
def test_a_recipe_gives_srun_no_program_and_no_file(option):
    launch = {"nodes": 2, "gpus_per_node": 1, "hours": 1, "command": {**SLURM, "options": ["--mem=1G", option]}}
    with pytest.raises(ValidationError, match=r"may not be set by a recipe: give --NAME or --NAME=VALUE"):
        LaunchParams.model_validate(launch)


def launch(**changes):
    whole = {"nodes": 2, "gpus_per_node": 8, "hours": 1.5, "command": SLURM, **changes}
    return LaunchParams.model_validate(whole)


@pytest.fixture
def bench(tmp_path):
    """Makes a folder for running the launcher, with replaced tools first on PATH."""
    (tmp_path / "bin").mkdir()
    path = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}", "OMP_NUM_THREADS": "1"}
    env.pop("DVC_STAGE", None)

    def tool(name, text):
        file = tmp_path / "bin" / name
        file.write_text(text.format(python=sys.executable, folder=str(tmp_path)))
        file.chmod(0o755)

    def start(words, **changes):
        params = {"launch": launch(**changes).model_dump()}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
        command = [sys.executable, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, cwd=tmp_path, env=env, text=True, **pipes)

    return tmp_path, tool, start


@pytest.mark.parametrize("kind", ["python", "torchrun"])
def test_several_nodes_need_a_tool_that_reaches_them(kind):
    with pytest.raises(ValueError, match=r"set command\.kind to one of slurm, kuberay, skypilot, or nodes 1"):
        launch(command={"kind": kind})
    here = launch(nodes=1, command={"kind": kind})
    assert (here.ranks, here.is_here) == ({"python": 1, "torchrun": 8}[kind], True)


def test_on_one_machine_the_stage_is_started_as_it_is_or_once_for_each_gpu():
    assert shown(launch(nodes=1, command={"kind": "python"}), STAGE) == shlex.join(["python", *STAGE])
    told = shlex.split(shown(launch(nodes=1, command={"kind": "torchrun"}), STAGE))
    assert told[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=8"]
    assert told[5:] == STAGE


@pytest.mark.parametrize(("agreement", "ranks"), [("policy", 16), ("none", 1)])
def test_a_stage_that_runs_no_model_asks_for_no_machines(tmp_path, agreement, ranks):
    params = {"launch": launch().model_dump(), "filter_web": {"agreement": {"kind": agreement}}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    stage = ["filter_web", "--params", str(tmp_path / "params.yaml")]
    assert launch_of(stage).ranks == ranks
    assert shown(launch_of(stage), ["-m", "stages", *stage]).startswith("srun" if ranks > 1 else "python -m stages")


def test_srun_starts_one_task_on_each_node_for_as_long_as_the_stage_may_run():
    told = shlex.split(shown(launch(), STAGE))
    wanted = {"--nodes=2", "--ntasks=2", "--gpus-per-node=8", "--time=90", "--kill-on-bad-exit=1"}
    assert told[0] == "srun" and wanted < set(told) and told[-4:-1] == ["--partition=gpu", "bash", "-c"]
    assert "--nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d" in told[-1] and told[-1].endswith("--out 'rl 1'")


@pytest.mark.slow
def test_two_nodes_find_each_other_and_hand_on_the_stages_arguments(bench):
    folder, tool, start = bench
    (folder / "ranks.py").write_text(RANKS)
    tool("srun", SRUN)
    tool("scontrol", SCONTROL)
    stage = ["-m", "ranks", "--params", "params.yaml", "--out", "out", "$(touch evil) 'a' \"b\""]
    started = start(["-c", RUN, *stage], gpus_per_node=1)
    output = started.communicate()[0]
    assert started.returncode == 0, output
    assert (folder / "out").read_text() == "2 2 $(touch evil) 'a' \"b\"" and not (folder / "evil").exists()


def test_a_ray_job_has_a_pod_for_each_node_and_one_process():
    whole = launch(command=KUBERAY)
    made = yaml.safe_load(shown(whole, STAGE[:5]))
    spec, cluster = made["spec"], made["spec"]["rayClusterSpec"]
    assert (made["apiVersion"], made["kind"], whole.ranks, whole.is_here) == ("ray.io/v1", "RayJob", 1, False)
    project = "/shared/retrace"
    python = f"{project}/.venv/bin/python"
    assert spec["entrypoint"] == f"env --chdir={project} RAY_ADDRESS=auto {python} {' '.join(STAGE[:5])}"
    assert spec["shutdownAfterJobFinishes"] and spec["activeDeadlineSeconds"] == 5400
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 1
    for group, name in ((cluster["headGroupSpec"], "ray-head"), (workers, "ray-worker")):
        (container,) = group["template"]["spec"]["containers"]
        assert container["name"] == name and "command" not in container, "KubeRay starts Ray in it"
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert container["envFrom"] == [{"secretRef": {"name": "tracking"}}], "a manifest has no password"
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    with pytest.raises(ValueError, match="namespace"):
        launch(command={**KUBERAY, "namespace": "Team A"})
    alone = launch(nodes=1, command=KUBERAY)
    assert not yaml.safe_load(shown(alone, STAGE))["spec"]["rayClusterSpec"]["workerGroupSpecs"]


@pytest.mark.parametrize(("end", "code"), [("Complete", 0), ("Failed", 1)])
def test_a_job_is_shown_ends_as_its_pods_do_and_is_taken_back(bench, end, code, monkeypatch, capfd):
    folder, tool, _ = bench
    tool("kubectl", KUBECTL)
    (folder / "end").write_text(end)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(launchers, "SECONDS_BETWEEN_LOOKS", 0.01)
    whole = launch(command=KUBERAY)
    manifest = whole.command.plan(whole, job_name(STAGE), STAGE)
    assert run(whole, STAGE) == code
    assert "step 1 of 2" in capfd.readouterr().out
    verbs = [line.split()[0] for line in (folder / "calls").read_text().splitlines()]
    assert verbs[:2] == ["delete", "create"] and verbs[-1] == "delete"
    assert json.loads((folder / "manifest").read_text()) == manifest


def test_a_job_is_taken_back_when_the_stage_is_ended(bench):
    folder, tool, start = bench
    tool("kubectl", KUBECTL)
    (folder / "end").write_text("Running")
    started = start(["-m", "pipelines.launching", *STAGE[2:]], command=KUBERAY)
    calls = folder / "calls"
    wait_until(lambda: (calls.exists() and "logs" in calls.read_text()) or started.poll() is not None)
    started.send_signal(signal.SIGTERM)
    started.communicate()
    assert started.returncode == 130 and (folder / "calls").read_text().splitlines()[-1].startswith("delete")


def test_a_skypilot_task_says_where_each_node_finds_the_first_one():
    task = yaml.safe_load(shown(launch(command=SKYPILOT), STAGE))
    assert task["num_nodes"] == 2 and task["resources"] == {"infra": "k8s", "accelerators": "H100:8"}
    script = f"set -e\nexport SKYPILOT_NODE_RANK=1 SKYPILOT_NODE_IPS='10.0.0.1\n10.0.0.2'\n{task['run']}"
    words = script.replace("cd /shared/retrace", "").replace("exec /shared/retrace/.venv/bin/python", "printf '%s\\n'")
    told = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=True).stdout.split("\n")
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1"} < set(told) and "rl 1" in told


@pytest.mark.parametrize(("command", "tool"), [(SLURM, "srun"), (KUBERAY, "kubectl"), (SKYPILOT, "sky")])
def test_a_tool_that_is_missing_is_told(monkeypatch, command, tool):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=f"needs {tool}, which is not on the PATH"):
        run(launch(command=command), STAGE)
