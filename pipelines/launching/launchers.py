"""Section `launch`: the machines of a training stage, and the tool that starts its ranks there.

A `Launcher` for each tool: torchrun, Slurm, KubeRay and SkyPilot, beside one plain process. A new tool is one more of
these classes: its parameters, what it runs, and how.

The number of ranks is part of the result, because sums of floats depend on it: dvc.yaml watches `nodes`,
`gpus_per_node` and `command.kind`. Nothing else here changes a result.

Flows use it to find how many GPUs and hours a stage takes (`stage_gpus`, `stage_hours`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from pipelines.runtime.process_group import run_in_group
from stages.foundations.errors import UserError
from stages.foundations.files import dump_yaml, load_yaml
from stages.foundations.params import StrictParams, validate_section
from stages.foundations.stage import about
from stages.observe.progress import say

DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Form of a name in Kubernetes (RFC 1123)."""
AbsolutePath = Annotated[str, Field(pattern=r"^/[\w./-]+$")]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
_SRUN_OPTIONS = """
account clusters comment constraint container-image container-mount-home container-mounts container-name
container-workdir container-writable contiguous cpu-bind cpus-per-gpu cpus-per-task exclude exclusive gpu-bind gpu-freq
gres gres-flags hint licenses mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-container-mount-home nodelist
oversubscribe partition priority qos reservation sockets-per-node switches threads-per-core tmp tres-per-task wckey
"""


def _srun_option(text: str) -> str:
    """Recipes are exchanged between users: a word without dashes would be the program that srun runs, and options such
    as `--prolog` and `--output` name programs and files."""
    found = re.fullmatch(r"--([a-z-]+)(?:=.*)?", text)
    if not found or found[1] not in _SRUN_OPTIONS.split():
        raise ValueError(
            f"{text!r} may not be set by a recipe: give --NAME or --NAME=VALUE, where NAME is one of "
            f"{', '.join(_SRUN_OPTIONS.split())}"
        )
    return text


TORCHRUN = ("-m", "torch.distributed.run")


class Launcher(StrictParams):
    """Section `launch.command`: its parameters are those of the tool."""

    tool: ClassVar[str] = ""
    """The program that must be on the PATH."""
    is_here: ClassVar[bool] = False
    """The ranks run on this machine and use its GPUs."""
    is_one_process: ClassVar[bool] = False
    """The stage is one process, which starts workers on the other GPUs itself."""

    def plan(self, launch: LaunchParams, name: str, stage: Sequence[str]) -> Any:
        """Returns what runs for `stage` (`-m stages sft`) as the job `name`: a command line or a manifest."""
        raise NotImplementedError

    def run(self, plan: Any, launch: LaunchParams) -> int:
        """Runs the plan and returns the stage's exit code."""
        raise NotImplementedError


class _Here(Launcher):
    is_here = True

    def plan(self, launch: LaunchParams, name: str, stage: Sequence[str]) -> list[str]:
        # The first `python` on the PATH, like every other stage.
        if launch.ranks == 1:
            return ["python", *stage]
        return ["python", *TORCHRUN, "--standalone", f"--nproc-per-node={launch.gpus_per_node}", *stage]

    def run(self, plan: list[str], launch: LaunchParams) -> int:
        """This process becomes the stage: signals, exit code and memory are the stage's."""
        sys.stdout.flush()
        os.execvp(plan[0], plan)


class PythonCommand(_Here):
    """One process on this machine, which sees all GPUs of the stage: the trainer `torch`, and the asynchronous loop."""

    is_one_process = True
    kind: Literal["python"]


class TorchrunCommand(_Here):
    """A rank for each GPU of this machine."""

    kind: Literal["torchrun"]


class SlurmCommand(Launcher):
    """`srun` with one torchrun on each node, which find each other through the first node (c10d).

    The clone is in a folder that all nodes share, under the same path.
    """

    tool = "srun"
    kind: Literal["slurm"]
    options: list[Annotated[str, AfterValidator(_srun_option)]]
    """Further flags for `srun`, which choose nodes, accounts and containers: `--partition=gpu`."""
    port: int = Field(gt=1023, lt=65536)
    """Port on the first node of the job."""

    def plan(self, launch: LaunchParams, name: str, stage: Sequence[str]) -> list[str]:
        """Returns one task for each node, in an existing allocation or one that srun requests."""
        # The first node is known only when the job has its nodes, so each task asks Slurm.
        first_node = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        meeting = [
            "--rdzv-backend=c10d",
            # Two stages may share an allocation: the number of the step keeps their ranks apart.
            '--rdzv-id="$SLURM_JOB_ID.$SLURM_STEP_ID"',
            f"--rdzv-endpoint={first_node}:{self.port}",
        ]
        return [
            "srun",
            f"--job-name={name}",
            f"--nodes={launch.nodes}",
            f"--ntasks={launch.nodes}",
            "--ntasks-per-node=1",
            f"--gpus-per-node={launch.gpus_per_node}",
            f"--time={launch.minutes}",
            # A task that fails ends the others, which would wait for it.
            "--kill-on-bad-exit=1",
            *self.options,
            "bash",
            "-c",
            _node_task(launch, sys.executable, meeting, stage),
        ]

    def run(self, plan: list[str], launch: LaunchParams) -> int:
        return run_in_group(plan, Path.cwd(), env=os.environ)


def _node_task(launch: LaunchParams, python: str, meeting: Sequence[str], stage: Sequence[str]) -> str:
    """Returns the shell command of a node: a torchrun that finds the others by the flags `meeting`."""
    flags = [f"--nnodes={launch.nodes}", f"--nproc-per-node={launch.gpus_per_node}", *meeting]
    return f"exec {shlex.join([python, *TORCHRUN])} {' '.join(flags)} {shlex.join(stage)}"


class KuberayCommand(Launcher):
    """A RayJob of KubeRay (v1): a Ray cluster of `nodes` pods for the stage, which is one process on the first pod.

    For the asynchronous loop and `sampler.replicas`. The image has Ray on its PATH, in the version of the clone.
    """

    tool, is_one_process = "kubectl", True
    kind: Literal["kuberay"]
    namespace: DnsName
    image: str = Field(min_length=1)
    """Image with the system parts that the clone's environment needs: libc, CUDA's driver API, the same Python."""
    claim: DnsName
    """Volume claim that every pod mounts (ReadWriteMany); it contains the clone with its `.venv`."""
    mount: AbsolutePath
    project: AbsolutePath
    """Path of the clone in the pods."""
    secret: DnsName | None
    """Secret whose entries become variables of the pods: it holds passwords, which never belong in a recipe."""
    environment: dict[EnvironmentName, str]
    shared_memory_gib: int = Field(ge=1)
    """Size of `/dev/shm`, through which NCCL and vLLM's processes communicate."""

    def plan(self, launch: LaunchParams, name: str, stage: Sequence[str]) -> dict[str, Any]:
        """Returns the manifest. The cluster ends with the stage; KubeRay gives Ray the GPUs of the pods' limits.

        Fields: ray-project/kuberay v1.7.0, helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml.
        """
        # Words without a meaning to a shell: KubeRay joins them into a shell command.
        words = ["env", f"--chdir={self.project}", "RAY_ADDRESS=auto", f"{self.project}/.venv/bin/python", *stage]
        head, worker = (
            {"rayStartParams": {}, "template": {"spec": self._pod(launch, f"ray-{kind}")}}
            for kind in ("head", "worker")
        )
        count = launch.nodes - 1
        # All three are equal, so that no autoscaler changes the number of nodes while the stage runs.
        counts = {"replicas": count, "minReplicas": count, "maxReplicas": count}
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "entrypoint": shlex.join(words),
                "submissionMode": "K8sJobMode",
                "shutdownAfterJobFinishes": True,
                "backoffLimit": 0,
                "activeDeadlineSeconds": 60 * launch.minutes,
                "rayClusterSpec": {
                    "headGroupSpec": head,
                    "workerGroupSpecs": [{"groupName": "workers", **counts, **worker}] if count else [],
                },
            },
        }

    def _pod(self, launch: LaunchParams, name: str) -> dict[str, Any]:
        """A node: the clone, shared memory and all its GPUs for one container."""
        container = {
            "name": name,
            "image": self.image,
            "workingDir": self.project,
            "env": [{"name": key, "value": value} for key, value in self.environment.items()],
            "envFrom": [{"secretRef": {"name": self.secret}}] if self.secret else [],
            "resources": {"limits": {"nvidia.com/gpu": launch.gpus_per_node}},
            "volumeMounts": [
                {"name": "project", "mountPath": self.mount},
                # Otherwise a container has 64 MB of it, too little for NCCL and for published weights.
                {"name": "shared-memory", "mountPath": "/dev/shm"},
            ],
        }
        return {
            # The pod reads hostile text; it needs no key to the cluster.
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 15,
            "containers": [container],
            "volumes": [
                {"name": "project", "persistentVolumeClaim": {"claimName": self.claim}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{self.shared_memory_gib}Gi"}},
            ],
        }

    def run(self, plan: dict[str, Any], launch: LaunchParams) -> int:
        """Creates the job, shows its log, waits for its end, and removes it. Its exit code: 0 or 1.

        A job of this name from a killed stage is removed first. UserError where kubectl fails.
        """
        name, namespace = plan["metadata"]["name"], self.namespace
        # Its pods still write the stage's folder, so wait until they are gone.
        _kubectl(namespace, "delete", "rayjob", name, "--ignore-not-found", "--wait")
        log = None
        try:
            _kubectl(namespace, "create", "-f", "-", given=json.dumps(plan))
            say(f"RayJob {namespace}/{name} is created; waiting for its pods")
            while True:
                state = _state(namespace, name)
                if log is None and state in ("Running", *ENDS):
                    # The pod that KubeRay submits the job from follows the log of the stage.
                    log = subprocess.Popen(["kubectl", "-n", namespace, "logs", "-f", f"job/{name}"])
                if log is not None and state in ENDS:
                    # Remaining lines are shown; a log that never ends does not delay the stage.
                    log.wait(60)
                    return 0 if state == "Complete" else 1
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            if log is not None:
                log.kill()
                log.wait()
            _kubectl(namespace, "delete", "rayjob", name, "--ignore-not-found", "--wait=false")


# A stage runs for minutes to days: its end may be noticed ten seconds late.
SECONDS_BETWEEN_LOOKS = 10.0
ENDS = {"Complete", "Failed", "ValidationFailed"}
"""States of a RayJob."""
LOOKS_WITHOUT_ANSWER = 30
"""After five minutes an unreachable control plane is unlikely to return soon."""


def _state(namespace: str, name: str) -> str:
    """Returns the state that KubeRay gives the job. Retries while the control plane is briefly unreachable."""
    for left in reversed(range(LOOKS_WITHOUT_ANSWER)):
        try:
            status = json.loads(_kubectl(namespace, "get", "rayjob", name, "-o", "json")).get("status")
            break
        except UserError:
            if not left:
                raise
            time.sleep(SECONDS_BETWEEN_LOOKS)
    return (status or {}).get("jobDeploymentStatus", "")


def _kubectl(namespace: str, *arguments: str, given: str | None = None) -> str:
    found = subprocess.run(["kubectl", "-n", namespace, *arguments], input=given, capture_output=True, text=True)
    if found.returncode:
        raise UserError(f"kubectl {' '.join(arguments)} failed: {found.stderr.strip()}")
    return found.stdout


class SkypilotCommand(Launcher):
    """`sky launch`: a cluster for the stage, which ends with it."""

    tool = "sky"
    kind: Literal["skypilot"]
    infra: str = Field(min_length=1)
    """Cloud or cluster: `k8s`, `aws/us-east-1`."""
    accelerator: str = Field(pattern=r"^[\w.-]+$")
    """Name of the GPU: `H100`."""
    volumes: dict[AbsolutePath, str]
    """Mount path -> SkyPilot volume, on each node."""
    project: AbsolutePath
    """Path of the clone with its `.venv`, in a volume that all nodes mount."""
    environment: dict[EnvironmentName, str]

    def plan(self, launch: LaunchParams, name: str, stage: Sequence[str]) -> dict[str, Any]:
        """Returns the task: every node runs a torchrun, which finds the first node in SkyPilot's variables."""
        meeting = [
            '--node-rank="$SKYPILOT_NODE_RANK"',
            '--master-addr="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"',
            # torchrun's default port. The cluster belongs to this task alone, so no other process listens there.
            "--master-port=29500",
        ]
        task = _node_task(launch, f"{self.project}/.venv/bin/python", meeting, stage)
        return {
            "name": name,
            "num_nodes": launch.nodes,
            "resources": {"infra": self.infra, "accelerators": f"{self.accelerator}:{launch.gpus_per_node}"},
            "envs": dict(self.environment),
            "volumes": dict(self.volumes),
            "run": f"cd {shlex.quote(self.project)}\n{task}\n",
        }

    def run(self, plan: dict[str, Any], launch: LaunchParams) -> int:
        """Starts the cluster, shows the log, and shuts the cluster down when the task has ended.

        If this machine disappears meanwhile, SkyPilot ends the cluster after ten idle minutes.
        """
        name, ending = plan["name"], ["--down", "--idle-minutes-to-autostop", "10"]
        with tempfile.TemporaryDirectory(prefix="retrace-") as folder:
            file = Path(folder) / "task.yaml"
            file.write_text(dump_yaml(plan))
            command = ["sky", "launch", "--yes", "--cluster", name, *ending, str(file)]
            try:
                return run_in_group(command, Path.cwd(), timeout_seconds=launch.hours * 3600, env=os.environ)
            finally:
                # Also after an error or Ctrl-C: a cluster that keeps running costs money.
                subprocess.run(["sky", "down", "--yes", name], stdin=subprocess.DEVNULL)


LAUNCHERS = (PythonCommand, TorchrunCommand, SlurmCommand, KuberayCommand, SkypilotCommand)
"""In the order of the pages."""
LaunchCommand = Annotated[reduce(or_, LAUNCHERS), Field(discriminator="kind")]


class LaunchParams(StrictParams):
    """Section `launch`: the machines of a training stage."""

    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(ge=1)
    """GPUs per node if it has GPUs; otherwise, as many processes on the CPU."""
    hours: float = Field(gt=0, le=24 * 30)
    """The longest time that any stage may run."""
    command: LaunchCommand

    @model_validator(mode="after")
    def _on_one_node(self) -> LaunchParams:
        if self.nodes > 1 and self.is_here:
            others = ", ".join(get_args(one.model_fields["kind"].annotation)[0] for one in LAUNCHERS if not one.is_here)
            raise ValueError(
                f"command.kind {self.command.kind} starts processes on this machine, but nodes is {self.nodes}: set "
                f"command.kind to one of {others}, or nodes 1"
            )
        return self

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        return 1 if self.command.is_one_process else self.nodes * self.gpus_per_node

    @property
    def minutes(self) -> int:
        """Time limit of a stage, rounded up."""
        return max(1, -int(-self.hours * 60 // 1))

    @property
    def is_here(self) -> bool:
        return self.command.is_here


LAUNCHED = "-m pipelines.launching "
"""In the commands of stages whose ranks section `launch` starts."""
HOURS = 48.0
"""For a stage without parameters that limit its time."""


def read_launch(root: Path) -> LaunchParams | None:
    """Returns section `launch` of the parameters in use; None where there is none. UserError where it is wrong."""
    given = _params(root).get("launch")
    return None if given is None else validate_section(given, "launch", LaunchParams, Path(root / "params.yaml"))


def stage_hours(root: Path, asked: float) -> float:
    """Returns the time limit of a stage: the requested one, or that of section `launch` if the request is 0."""
    if asked:
        return asked
    launch = read_launch(root)
    return launch.hours if launch else HOURS


def stage_gpus(root: Path, stage: str, command: str) -> int:
    """Returns the GPUs of this machine that a stage with this command uses, where there are any.

    0 for a stage that runs no model, and for one whose ranks run elsewhere. A stage that section `launch` does
    not start uses the GPUs of one sampler.
    """
    params = _params(root)
    # A filter without agreement loads no model, and would only block a GPU for others.
    if not about(stage).runs_model(params):
        return 0
    if LAUNCHED in command:
        launch = read_launch(root)
        return launch.gpus_per_node if launch and launch.is_here else 0
    return (params.get("sampler") or {}).get("tensor_parallel") or 1


def _params(root: Path) -> Mapping[str, Any]:
    path = root / "params.yaml"
    return (load_yaml(path.read_bytes()) if path.exists() else None) or {}
