"""Command lines that start a stage's ranks: python, torchrun, and srun with a torchrun on each node."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from pipelines.launching.params import LaunchParams, SlurmCommand

TORCHRUN = ("-m", "torch.distributed.run")
FIRST_NODE = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'


def local_command(launch: LaunchParams, stage: Sequence[str]) -> list[str]:
    """`stage` (`-m stages sft`) on this machine, as one process or a rank for each GPU.

    By the `python` that comes first on the PATH, as every other stage.
    """
    if launch.ranks == 1:
        return ["python", *stage]
    return ["python", *TORCHRUN, "--standalone", f"--nproc-per-node={launch.gpus_per_node}", *stage]


def slurm_command(launch: LaunchParams, command: SlurmCommand, name: str, stage: Sequence[str]) -> list[str]:
    """One task on each node, in an allocation that is there or that srun asks for.

    Which node is the first is known only when the job has its nodes, so each task asks Slurm. A task that fails ends
    the others, which would wait for it. `name` is the job's.
    """
    torchrun = [
        f"--nnodes={launch.nodes}",
        f"--nproc-per-node={launch.gpus_per_node}",
        "--rdzv-backend=c10d",
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
    """The longest that a stage may run, rounded up."""
    return max(1, -int(-launch.hours * 60 // 1))
