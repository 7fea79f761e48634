"""A stage as a SkyPilot task, on a cluster that ends with it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from pipelines.launching.params import LaunchParams, SkypilotCommand
from pipelines.launching.processes import TORCHRUN

PORT = 29500


def skypilot_task(
    launch: LaunchParams, command: SkypilotCommand, name: str, stage: Sequence[str]
) -> dict[str, Any]:
    """The task: every node runs a torchrun, which finds the first node in SkyPilot's variables."""
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
        "resources": {
            "infra": command.infra,
            "accelerators": f"{command.accelerator}:{launch.gpus_per_node}",
        },
        "envs": dict(command.environment),
        "volumes": dict(command.volumes),
        "run": f"cd {shlex.quote(command.project)}\n"
        f"exec {shlex.join(python)} {' '.join(torchrun)} {shlex.join(stage)}\n",
    }


def launch_command(name: str, file: str) -> list[str]:
    """Starts the cluster, shows the log, and takes the cluster down when the task has ended.

    Should this machine vanish meanwhile, SkyPilot ends the cluster once it has been idle for ten minutes.
    """
    ending = ["--down", "--idle-minutes-to-autostop", "10"]
    return ["sky", "launch", "--yes", "--cluster", name, *ending, file]


def down_command(name: str) -> list[str]:
    return ["sky", "down", "--yes", name]
