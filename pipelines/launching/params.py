"""Section `launch`: the machines of a training stage and the tool that starts its ranks there.

The number of ranks is part of the result, because sums of floats depend on it: dvc.yaml watches `nodes`,
`gpus_per_node` and `command.kind`. Nothing else here changes a result.

Flows use it to find how many GPUs and hours a stage takes (`stage_gpus`, `stage_hours`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from stages.foundations.files import load_yaml
from stages.foundations.params import StrictParams, validate_section
from stages.foundations.stage import about

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


class PythonCommand(StrictParams):
    """One process on this machine, which sees all GPUs of the stage: the trainer `torch`, and the asynchronous loop."""

    kind: Literal["python"]


class TorchrunCommand(StrictParams):
    """A rank for each GPU of this machine."""

    kind: Literal["torchrun"]


class SlurmCommand(StrictParams):
    """`srun` with one torchrun on each node, which find each other through the first node (c10d).

    The clone is in a folder that all nodes share, under the same path.
    """

    kind: Literal["slurm"]
    options: list[Annotated[str, AfterValidator(_srun_option)]]
    """Further flags for `srun`, which choose nodes, accounts and containers: `--partition=gpu`."""
    port: int = Field(gt=1023, lt=65536)
    """Port on the first node of the job."""


class KubernetesCommand(StrictParams):
    """A PyTorchJob of Kubeflow's training operator (v1): all pods start or none, if a gang scheduler is set up."""

    kind: Literal["kubernetes"]
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


class KuberayCommand(KubernetesCommand):
    """A RayJob of KubeRay (v1): a Ray cluster of `nodes` pods for the stage, which is one process on the first pod.

    For the asynchronous loop and `sampler.replicas`. The image has Ray on its PATH, in the version of the clone.
    """

    kind: Literal["kuberay"]  # type: ignore[assignment]


class SkypilotCommand(StrictParams):
    """`sky launch`: a cluster for the stage, which ends with it."""

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


LaunchCommand = Annotated[
    PythonCommand | TorchrunCommand | SlurmCommand | KubernetesCommand | KuberayCommand | SkypilotCommand,
    Field(discriminator="kind"),
]


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
        if self.nodes > 1 and self.command.kind in ("python", "torchrun"):
            raise ValueError(
                f"command.kind {self.command.kind} starts processes on this machine, but nodes is {self.nodes}: set "
                "command.kind slurm, kubernetes, kuberay or skypilot, or nodes 1"
            )
        return self

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        # With these kinds the stage is one process, which starts workers on the other GPUs itself.
        return 1 if self.command.kind in ("python", "kuberay") else self.nodes * self.gpus_per_node

    @property
    def is_here(self) -> bool:
        """True if the ranks run on this machine and use its GPUs."""
        return self.command.kind in ("python", "torchrun")


LAUNCHER = "-m pipelines.launching "
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
    if LAUNCHER in command:
        launch = read_launch(root)
        return launch.gpus_per_node if launch and launch.is_here else 0
    return (params.get("sampler") or {}).get("tensor_parallel") or 1


def _params(root: Path) -> Mapping[str, Any]:
    path = root / "params.yaml"
    return (load_yaml(path.read_bytes()) if path.exists() else None) or {}
