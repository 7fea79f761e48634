"""Section `launch`: the machines of a training stage and the tool that starts its ranks there.

The number of ranks is part of the result, because sums of floats depend on it: dvc.yaml watches `nodes`,
`gpus_per_node` and `command.kind`. Nothing else here changes a result.

Flows ask it how many GPUs and hours a stage takes (`stage_gpus`, `stage_hours`).
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
"""What Kubernetes takes for a name (RFC 1123)."""
AbsolutePath = Annotated[str, Field(pattern=r"^/[\w./-]+$")]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
_SRUN_OPTIONS = """
account clusters comment constraint container-image container-mount-home container-mounts container-name
container-workdir container-writable contiguous cpu-bind cpus-per-gpu cpus-per-task exclude exclusive gpu-bind gpu-freq
gres gres-flags hint licenses mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-container-mount-home nodelist
oversubscribe partition priority qos reservation sockets-per-node switches threads-per-core tmp tres-per-task wckey
"""


def _srun_option(text: str) -> str:
    """Recipes travel between people: a word without dashes would be the program that srun runs, and options such as
    `--prolog` and `--output` name programs and files."""
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

    The clone lies in a folder that all nodes share, under the same path.
    """

    kind: Literal["slurm"]
    options: list[Annotated[str, AfterValidator(_srun_option)]]
    """More flags for `srun`, which choose nodes, accounts and containers: `--partition=gpu`."""
    port: int = Field(gt=1023, lt=65536)
    """On the first node of the job."""


class KubernetesCommand(StrictParams):
    """A PyTorchJob of Kubeflow's training operator (v1): all pods start or none, if a gang scheduler is set up."""

    kind: Literal["kubernetes"]
    namespace: DnsName
    image: str = Field(min_length=1)
    """Has what the clone's environment needs of the system: libc, CUDA's driver interface, the same Python."""
    claim: DnsName
    """Volume claim that every pod mounts (ReadWriteMany); the clone with its `.venv` lies in it."""
    mount: AbsolutePath
    project: AbsolutePath
    """The clone, as pods see it."""
    secret: DnsName | None
    """Its entries become variables of the pods: passwords stand there, and never in a recipe."""
    environment: dict[EnvironmentName, str]
    shared_memory_gib: int = Field(ge=1)
    """`/dev/shm`, through which NCCL and vLLM's processes talk."""


class KuberayCommand(KubernetesCommand):
    """A RayJob of KubeRay (v1): a Ray cluster of `nodes` pods for the stage, which is one process on the first of them.

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
    """Where a node mounts which SkyPilot volume."""
    project: AbsolutePath
    """The clone with its `.venv`, in a volume that all nodes mount."""
    environment: dict[EnvironmentName, str]


LaunchCommand = Annotated[
    PythonCommand | TorchrunCommand | SlurmCommand | KubernetesCommand | KuberayCommand | SkypilotCommand,
    Field(discriminator="kind"),
]


class LaunchParams(StrictParams):
    """Section `launch`: what a training stage takes of machines."""

    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(ge=1)
    """Where there are GPUs; without any, as many processes on the CPU."""
    hours: float = Field(gt=0, le=24 * 30)
    """The longest that any stage may run."""
    command: LaunchCommand

    @model_validator(mode="after")
    def _on_one_node(self) -> LaunchParams:
        if self.nodes > 1 and self.command.kind in ("python", "torchrun"):
            raise ValueError(
                f"command.kind {self.command.kind} starts processes on this machine, and nodes is {self.nodes}: set "
                "command.kind slurm, kubernetes, kuberay or skypilot, or nodes 1"
            )
        return self

    @property
    def ranks(self) -> int:
        """Processes that train together."""
        # With these the stage is one process, which starts workers on the other GPUs itself.
        return 1 if self.command.kind in ("python", "kuberay") else self.nodes * self.gpus_per_node

    @property
    def is_here(self) -> bool:
        """Whether the ranks run on this machine, and take its GPUs."""
        return self.command.kind in ("python", "torchrun")


LAUNCHER = "-m pipelines.launching "
"""In the commands of stages whose ranks section `launch` starts."""
HOURS = 48.0
"""Of a stage where no parameters say how long it may run."""


def read_launch(root: Path) -> LaunchParams | None:
    """Section `launch` of the parameters in use; None where there is none. UserError where it is wrong."""
    given = _params(root).get("launch")
    return None if given is None else validate_section(given, "launch", LaunchParams, Path(root / "params.yaml"))


def stage_hours(root: Path, asked: float) -> float:
    """The longest that a stage may run: what was asked for, or section `launch` where that is 0."""
    if asked:
        return asked
    launch = read_launch(root)
    return launch.hours if launch else HOURS


def stage_gpus(root: Path, stage: str, command: str) -> int:
    """GPUs of this machine that a stage with this command takes, where there are any.

    0 for a stage that runs no model, and for one whose ranks run elsewhere. A stage that section `launch` does
    not start takes those that one sampler is spread over.
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
