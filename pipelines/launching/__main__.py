"""Starts a stage that trains or samples where section `launch` of its parameter file says; dvc.yaml calls this.

    python -m pipelines.launching rl_round@rl_1          # what DVC runs
    python -m pipelines.launching --show rl_round@rl_1   # only shows the command

The rest of the command is that of `python -m stages`.

A stage that runs no model with these parameters (a filter without agreement) is one process here. On this machine the
process becomes the stage or torchrun. For other machines it stays, shows their log, and removes the job when it ends.
`--show` prints a command line, or the manifest (for `kubectl apply --dry-run=server -f -` and `sky launch --dryrun`).
"""

from __future__ import annotations

# isort: off
# First, so that it ends here where packages are missing.
import stages.foundations.interpreter  # noqa: F401

# isort: on
import hashlib
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.launching.launchers import LaunchParams, PythonCommand
from pipelines.runtime.process_group import terminated_as_interrupt
from stages.foundations.errors import UserError
from stages.foundations.files import dump_yaml
from stages.foundations.params import load_section, read_yaml
from stages.foundations.stage import about
from stages.observe.command import run_command, run_unchanged


def main() -> None:
    is_shown = sys.argv[1:2] == ["--show"]
    words = sys.argv[2 if is_shown else 1 :]
    if not words or words[0].startswith("-"):
        raise UserError("name a stage: python -m pipelines.launching [--show] NAME[@ITEM] [--params FILE] ...")
    launch, stage = launch_of(words), ["-m", "stages", *words]
    if is_shown:
        print(shown(launch, stage))
        return
    # A job on a cluster outlives this process. An interrupt runs the blocks that remove it.
    with terminated_as_interrupt():
        if launch.is_here:
            # This process becomes the stage, which compares its inputs itself.
            run(launch, stage)
        run_unchanged(lambda: sys.exit(run(launch, stage)))


def launch_of(words: Sequence[str]) -> LaunchParams:
    """Returns section `launch` of the stage's parameter file, or one process here where the stage would use no GPU."""
    file = Path(words[words.index("--params") + 1] if "--params" in words[:-1] else "params.yaml")
    launch = load_section(file, "launch", LaunchParams)
    if about(words[0].partition("@")[0]).runs_model(read_yaml(file)):
        return launch
    # The job would reserve GPUs without using them.
    return launch.model_copy(update={"nodes": 1, "command": PythonCommand(kind="python")})


def run(launch: LaunchParams, stage: Sequence[str]) -> int:
    """Returns the stage's exit code; on this machine it does not return. UserError where its tool is missing."""
    command = launch.command
    if command.tool and shutil.which(command.tool) is None:
        raise UserError(f"launch.command.kind {command.kind} needs {command.tool}, which is not on the PATH")
    return command.run(command.plan(launch, job_name(stage), stage), launch)


def shown(launch: LaunchParams, stage: Sequence[str]) -> str:
    """Returns what would run: a command line, or the manifest as YAML."""
    plan = launch.command.plan(launch, job_name(stage), stage)
    return shlex.join(plan) if isinstance(plan, list) else dump_yaml(plan)


def job_name(stage: Sequence[str]) -> str:
    """Name of the stage in this clone: the same when it is run again, so that remains of an earlier run are found."""
    # Two clones may run the same stage in one namespace.
    identity = "\n".join([str(Path.cwd()), *stage])
    name = stage[2].partition("@")[0].replace("_", "-")
    return f"retrace-{name}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


if __name__ == "__main__":
    run_command(main)
