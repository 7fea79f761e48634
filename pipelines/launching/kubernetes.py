"""A stage as a PyTorchJob of Kubeflow's training operator: the manifest, and waiting for the job that it makes.

The operator tells each pod its place in variables that torchrun reads (`PET_NODE_RANK`, `PET_MASTER_ADDR`, ...), so all
pods run the same command. Fields: kubeflow/training-operator v1.9.0, manifests/base/crds/kubeflow.org_pytorchjobs.yaml.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from pipelines.launching.params import KubernetesCommand, LaunchParams
from pipelines.launching.processes import TORCHRUN, minutes
from stages.foundations.errors import UserError
from stages.observe.progress import say

SECONDS_BETWEEN_LOOKS = 10.0
LOOKS_WITHOUT_ANSWER = 30
"""A control plane that is away for five minutes is not coming back soon."""


def pytorch_job(
    launch: LaunchParams, command: KubernetesCommand, name: str, stage: Sequence[str]
) -> dict[str, Any]:
    """The manifest. No pod starts again by itself: the stage goes on from its checkpoint when it is run again."""
    container = {
        "name": "pytorch",  # the operator looks for this name
        "image": command.image,
        "workingDir": command.project,
        "command": [f"{command.project}/.venv/bin/python", *TORCHRUN, *stage],
        "env": [{"name": key, "value": value} for key, value in command.environment.items()],
        "envFrom": [{"secretRef": {"name": command.secret}}] if command.secret else [],
        "resources": {"limits": {"nvidia.com/gpu": launch.gpus_per_node}},
        "volumeMounts": [
            {"name": "project", "mountPath": command.mount},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
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


def run_job(manifest: dict[str, Any]) -> int:
    """Makes the job, shows the log of its first pod, waits for its end, and removes it. Its exit code: 0 or 1.

    A job of this name that a killed stage has left is removed first. UserError where kubectl fails.
    """
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    _kubectl(namespace, "delete", "pytorchjob", name, "--ignore-not-found", "--wait")
    log = None
    try:
        _kubectl(namespace, "create", "-f", "-", given=json.dumps(manifest))
        say(f"PyTorchJob {namespace}/{name} is made; waiting for its pods")
        while True:
            states = _states(namespace, name)
            if log is None and states & {"Running", "Succeeded", "Failed"}:
                log = subprocess.Popen(["kubectl", "-n", namespace, "logs", "-f", f"{name}-master-0"])
            if states & {"Succeeded", "Failed"}:
                log.wait(60)
                return 0 if "Succeeded" in states else 1
            time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        if log is not None:
            log.kill()
            log.wait()
        _kubectl(namespace, "delete", "pytorchjob", name, "--ignore-not-found", "--wait=false")


def _states(namespace: str, name: str) -> set[str]:
    """The conditions that hold. A control plane that is away for a moment is asked again."""
    for left in reversed(range(LOOKS_WITHOUT_ANSWER)):
        try:
            status = json.loads(_kubectl(namespace, "get", "pytorchjob", name, "-o", "json")).get("status")
            break
        except UserError:
            if not left:
                raise
            time.sleep(SECONDS_BETWEEN_LOOKS)
    return {one["type"] for one in (status or {}).get("conditions", []) if one["status"] == "True"}


def _kubectl(namespace: str, *arguments: str, given: str | None = None) -> str:
    found = subprocess.run(
        ["kubectl", "-n", namespace, *arguments], input=given, capture_output=True, text=True
    )
    if found.returncode:
        raise UserError(f"kubectl {' '.join(arguments)} failed: {found.stderr.strip()}")
    return found.stdout
