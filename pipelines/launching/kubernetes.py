"""A stage as a PyTorchJob of Kubeflow's training operator or a RayJob of KubeRay: manifests, and waiting for the end.

The training operator tells each pod its place in variables that torchrun reads (`PET_NODE_RANK`, `PET_MASTER_ADDR`,
...), so all pods run the same command. KubeRay starts Ray in each pod, and the stage on the first. Fields:
kubeflow/training-operator v1.9.0, manifests/base/crds/kubeflow.org_pytorchjobs.yaml; ray-project/kuberay v1.7.0,
helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from pipelines.launching.params import KubernetesCommand, LaunchParams
from pipelines.launching.processes import TORCHRUN, minutes
from stages.foundations.errors import UserError
from stages.observe.progress import say

SECONDS_BETWEEN_LOOKS = 10.0
SUCCESSES = {"Succeeded", "Complete"}
"""A PyTorchJob's condition and a RayJob's state."""
ENDS = {*SUCCESSES, "Failed", "ValidationFailed"}
LOOKS_WITHOUT_ANSWER = 30
"""A control plane that is away for five minutes is not coming back soon."""


def pytorch_job(
    launch: LaunchParams, command: KubernetesCommand, name: str, stage: Sequence[str]
) -> dict[str, Any]:
    """The manifest. No pod starts again by itself: the stage goes on from its checkpoint when it is run again."""
    told = [f"{command.project}/.venv/bin/python", *TORCHRUN, *stage]
    pod = _pod(launch, command, {"name": "pytorch", "command": told})  # the operator looks for this name
    counts = {"Master": 1, "Worker": launch.nodes - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": command.namespace},
        "spec": {
            "nprocPerNode": str(launch.gpus_per_node),
            "runPolicy": {
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


def ray_job(
    launch: LaunchParams, command: KubernetesCommand, name: str, stage: Sequence[str]
) -> dict[str, Any]:
    """The manifest. The cluster ends with the stage; KubeRay gives Ray the GPUs that the pods are limited to."""
    # Words without a meaning to a shell: KubeRay joins them into a command of its own.
    told = [
        "env",
        f"--chdir={command.project}",
        "RAY_ADDRESS=auto",
        f"{command.project}/.venv/bin/python",
        *stage,
    ]
    head, worker = (
        {"rayStartParams": {}, "template": {"spec": _pod(launch, command, {"name": f"ray-{kind}"})}}
        for kind in ("head", "worker")
    )
    count = launch.nodes - 1
    counts = {"replicas": count, "minReplicas": count, "maxReplicas": count}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "namespace": command.namespace},
        "spec": {
            "entrypoint": shlex.join(told),
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


def _pod(launch: LaunchParams, command: KubernetesCommand, own: dict[str, Any]) -> dict[str, Any]:
    """A node: the clone, shared memory and all its GPUs for one container."""
    container = {
        **own,
        "image": command.image,
        "workingDir": command.project,
        "env": [{"name": key, "value": value} for key, value in command.environment.items()],
        "envFrom": [{"secretRef": {"name": command.secret}}] if command.secret else [],
        "resources": {"limits": {"nvidia.com/gpu": launch.gpus_per_node}},
        "volumeMounts": [
            {"name": "project", "mountPath": command.mount},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 15,
        "containers": [container],
        "volumes": [
            {"name": "project", "persistentVolumeClaim": {"claimName": command.claim}},
            {
                "name": "shared-memory",
                "emptyDir": {"medium": "Memory", "sizeLimit": f"{command.shared_memory_gib}Gi"},
            },
        ],
    }


def run_job(manifest: dict[str, Any]) -> int:
    """Makes the job, shows the log of its first pod, waits for its end, and removes it. Its exit code: 0 or 1.

    A job of this name that a killed stage has left is removed first. UserError where kubectl fails.
    """
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    kind = manifest["kind"].lower()
    first = (
        f"{name}-master-0" if kind == "pytorchjob" else f"job/{name}"
    )  # KubeRay's submits, and follows the log
    _kubectl(namespace, "delete", kind, name, "--ignore-not-found", "--wait")
    log = None
    try:
        _kubectl(namespace, "create", "-f", "-", given=json.dumps(manifest))
        say(f"{manifest['kind']} {namespace}/{name} is made; waiting for its pods")
        while True:
            states = _states(namespace, kind, name)
            if log is None and states & {"Running", *ENDS}:
                log = subprocess.Popen(["kubectl", "-n", namespace, "logs", "-f", first])
            if ended := states & ENDS:
                log.wait(60)
                return 0 if ended & SUCCESSES else 1
            time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        if log is not None:
            log.kill()
            log.wait()
        _kubectl(namespace, "delete", kind, name, "--ignore-not-found", "--wait=false")


def _states(namespace: str, kind: str, name: str) -> set[str]:
    """The conditions that hold, or KubeRay's state. A control plane that is away for a moment is asked again."""
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
    found = subprocess.run(
        ["kubectl", "-n", namespace, *arguments], input=given, capture_output=True, text=True
    )
    if found.returncode:
        raise UserError(f"kubectl {' '.join(arguments)} failed: {found.stderr.strip()}")
    return found.stdout
