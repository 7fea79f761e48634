"""Starts a stage's ranks with each tool of section `launch`: torchrun, Slurm, Kubernetes, KubeRay and SkyPilot.

The first two are command lines. A PyTorchJob of Kubeflow's training operator and a RayJob of KubeRay are manifests, and
`run_job` waits for their end. The training operator sets each pod's place in variables that torchrun reads
(`PET_NODE_RANK`, `PET_MASTER_ADDR`, ...), so all pods run the same command. KubeRay starts Ray in each pod, and the
stage on the first. A SkyPilot task runs on a cluster that ends with it. Fields: kubeflow/training-operator v1.9.0,
manifests/base/crds/kubeflow.org_pytorchjobs.yaml; ray-project/kuberay v1.7.0,
helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from pipelines.launching.params import KubernetesCommand, LaunchParams, SkypilotCommand, SlurmCommand
from stages.foundations.errors import UserError
from stages.observe.progress import say

TORCHRUN = ("-m", "torch.distributed.run")
FIRST_NODE = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'


def local_command(launch: LaunchParams, stage: Sequence[str]) -> list[str]:
    """Returns the command for `stage` (`-m stages sft`) on this machine, as one process or one rank per GPU.

    It uses the first `python` on the PATH, like every other stage.
    """
    if launch.ranks == 1:
        return ["python", *stage]
    return ["python", *TORCHRUN, "--standalone", f"--nproc-per-node={launch.gpus_per_node}", *stage]


def slurm_command(launch: LaunchParams, command: SlurmCommand, name: str, stage: Sequence[str]) -> list[str]:
    """Returns the command for one task on each node, in an existing allocation or one that srun requests.

    The first node is known only when the job has its nodes, so each task asks Slurm. A task that fails ends
    the others, which would wait for it. `name` is the job's.
    """
    torchrun = [
        f"--nnodes={launch.nodes}",
        f"--nproc-per-node={launch.gpus_per_node}",
        "--rdzv-backend=c10d",
        # Two stages may share an allocation: the number of the step keeps their ranks apart.
        '--rdzv-id="$SLURM_JOB_ID.$SLURM_STEP_ID"',
        f"--rdzv-endpoint={FIRST_NODE}:{command.port}",
    ]
    task = f"exec {shlex.join([sys.executable, *TORCHRUN])} {' '.join(torchrun)} {shlex.join(stage)}"
    return [
        "srun",
        f"--job-name={name}",
        f"--nodes={launch.nodes}",
        f"--ntasks={launch.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={launch.gpus_per_node}",
        f"--time={minutes(launch)}",
        "--kill-on-bad-exit=1",
        *command.options,
        "bash",
        "-c",
        task,
    ]


def minutes(launch: LaunchParams) -> int:
    """Time limit of a stage, rounded up."""
    return max(1, -int(-launch.hours * 60 // 1))


# A stage runs for minutes to days: its end may be noticed ten seconds late.
SECONDS_BETWEEN_LOOKS = 10.0
SUCCESSES = {"Succeeded", "Complete"}
"""A PyTorchJob's condition and a RayJob's state."""
ENDS = {*SUCCESSES, "Failed", "ValidationFailed"}
LOOKS_WITHOUT_ANSWER = 30
"""After five minutes an unreachable control plane is unlikely to return soon."""


def pytorch_job(launch: LaunchParams, command: KubernetesCommand, name: str, stage: Sequence[str]) -> dict[str, Any]:
    """Returns the manifest. No pod restarts by itself: the stage resumes from its checkpoint when it is run again."""
    words = [f"{command.project}/.venv/bin/python", *TORCHRUN, *stage]
    # The operator looks for a container of this name.
    pod = _pod(launch, command, {"name": "pytorch", "command": words})
    counts = {"Master": 1, "Worker": launch.nodes - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": command.namespace},
        "spec": {
            "nprocPerNode": str(launch.gpus_per_node),
            "runPolicy": {
                # Pods that have ended stay until the job is deleted: their log may not have been read completely.
                "cleanPodPolicy": "Running",
                "backoffLimit": 0,
                "activeDeadlineSeconds": 60 * minutes(launch),
            },
            "pytorchReplicaSpecs": {
                kind: {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}
                for kind, count in counts.items()
                if count
            },
        },
    }


def ray_job(launch: LaunchParams, command: KubernetesCommand, name: str, stage: Sequence[str]) -> dict[str, Any]:
    """Returns the manifest. The cluster ends with the stage; KubeRay gives Ray the GPUs of the pods' limits."""
    # Words without a meaning to a shell: KubeRay joins them into a shell command.
    words = ["env", f"--chdir={command.project}", "RAY_ADDRESS=auto", f"{command.project}/.venv/bin/python", *stage]
    head, worker = (
        {"rayStartParams": {}, "template": {"spec": _pod(launch, command, {"name": f"ray-{kind}"})}}
        for kind in ("head", "worker")
    )
    count = launch.nodes - 1
    # All three are equal, so that no autoscaler changes the number of nodes while the stage runs.
    counts = {"replicas": count, "minReplicas": count, "maxReplicas": count}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "namespace": command.namespace},
        "spec": {
            "entrypoint": shlex.join(words),
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "backoffLimit": 0,
            "activeDeadlineSeconds": 60 * minutes(launch),
            "rayClusterSpec": {
                "headGroupSpec": head,
                "workerGroupSpecs": [{"groupName": "workers", **counts, **worker}] if count else [],
            },
        },
    }


def _pod(launch: LaunchParams, command: KubernetesCommand, special: dict[str, Any]) -> dict[str, Any]:
    """A node: the clone, shared memory and all its GPUs for one container."""
    container = {
        **special,
        "image": command.image,
        "workingDir": command.project,
        "env": [{"name": key, "value": value} for key, value in command.environment.items()],
        "envFrom": [{"secretRef": {"name": command.secret}}] if command.secret else [],
        "resources": {"limits": {"nvidia.com/gpu": launch.gpus_per_node}},
        "volumeMounts": [
            {"name": "project", "mountPath": command.mount},
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
            {"name": "project", "persistentVolumeClaim": {"claimName": command.claim}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{command.shared_memory_gib}Gi"}},
        ],
    }


def run_job(manifest: dict[str, Any]) -> int:
    """Creates the job, shows the log of its first pod, waits for its end, and removes it. Its exit code: 0 or 1.

    A job of this name from a killed stage is removed first. UserError where kubectl fails.
    """
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    kind = manifest["kind"].lower()
    # The pod that KubeRay submits the job from follows the log of the stage.
    first = f"{name}-master-0" if kind == "pytorchjob" else f"job/{name}"
    # Its pods still write the stage's folder, so wait until they are gone.
    _kubectl(namespace, "delete", kind, name, "--ignore-not-found", "--wait")
    log = None
    try:
        _kubectl(namespace, "create", "-f", "-", given=json.dumps(manifest))
        say(f"{manifest['kind']} {namespace}/{name} is created; waiting for its pods")
        while True:
            states = _states(namespace, kind, name)
            if log is None and states & {"Running", *ENDS}:
                log = subprocess.Popen(["kubectl", "-n", namespace, "logs", "-f", first])
            if ended := states & ENDS:
                # Remaining lines are shown; a log that never ends does not delay the stage.
                log.wait(60)
                return 0 if ended & SUCCESSES else 1
            time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        if log is not None:
            log.kill()
            log.wait()
        _kubectl(namespace, "delete", kind, name, "--ignore-not-found", "--wait=false")


def _states(namespace: str, kind: str, name: str) -> set[str]:
    """Returns the conditions that hold, or KubeRay's state. Retries while the control plane is briefly unreachable."""
    for left in reversed(range(LOOKS_WITHOUT_ANSWER)):
        try:
            status = json.loads(_kubectl(namespace, "get", kind, name, "-o", "json")).get("status")
            break
        except UserError:
            if not left:
                raise
            time.sleep(SECONDS_BETWEEN_LOOKS)
    status = status or {}
    holding = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    return holding | {status.get("jobDeploymentStatus", "")}


def _kubectl(namespace: str, *arguments: str, given: str | None = None) -> str:
    found = subprocess.run(["kubectl", "-n", namespace, *arguments], input=given, capture_output=True, text=True)
    if found.returncode:
        raise UserError(f"kubectl {' '.join(arguments)} failed: {found.stderr.strip()}")
    return found.stdout


# torchrun's default port. The cluster belongs to this task alone, so no other process listens there.
PORT = 29500


def skypilot_task(launch: LaunchParams, command: SkypilotCommand, name: str, stage: Sequence[str]) -> dict[str, Any]:
    """Returns the task: every node runs a torchrun, which finds the first node in SkyPilot's variables."""
    torchrun = [
        f"--nnodes={launch.nodes}",
        f"--nproc-per-node={launch.gpus_per_node}",
        '--node-rank="$SKYPILOT_NODE_RANK"',
        '--master-addr="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"',
        f"--master-port={PORT}",
    ]
    python = [f"{command.project}/.venv/bin/python", *TORCHRUN]
    return {
        "name": name,
        "num_nodes": launch.nodes,
        "resources": {"infra": command.infra, "accelerators": f"{command.accelerator}:{launch.gpus_per_node}"},
        "envs": dict(command.environment),
        "volumes": dict(command.volumes),
        "run": f"cd {shlex.quote(command.project)}\n"
        f"exec {shlex.join(python)} {' '.join(torchrun)} {shlex.join(stage)}\n",
    }


def launch_command(name: str, file: str) -> list[str]:
    """Starts the cluster, shows the log, and shuts the cluster down when the task has ended.

    If this machine disappears meanwhile, SkyPilot ends the cluster after ten idle minutes.
    """
    ending = ["--down", "--idle-minutes-to-autostop", "10"]
    return ["sky", "launch", "--yes", "--cluster", name, *ending, file]


def down_command(name: str) -> list[str]:
    return ["sky", "down", "--yes", name]
