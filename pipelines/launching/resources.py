"""What a stage takes of a machine: GPUs and hours, from the parameters in use. Prefect's slots and clocks follow it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.launching.params import LaunchParams
from stages.foundations.params import validate_section
from stages.foundations.stage import about
from stages.foundations.yaml_text import load_yaml

LAUNCHER = "-m pipelines.launching "
"""In the commands of stages whose ranks section `launch` starts."""
HOURS = 48.0
"""Of a stage where no parameters say how long it may run."""


def read_launch(root: Path) -> LaunchParams | None:
    """Section `launch` of the parameters in use; None where there is none. UserError where it is wrong."""
    given = _params(root).get("launch")
    return (
        None if given is None else validate_section(given, "launch", LaunchParams, Path(root / "params.yaml"))
    )


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
    if not about(stage).runs_model(params):
        return 0
    if LAUNCHER in command:
        launch = read_launch(root)
        return launch.gpus_per_node if launch and launch.is_here else 0
    return (params.get("sampler") or {}).get("tensor_parallel") or 1


def _params(root: Path) -> Mapping[str, Any]:
    path = root / "params.yaml"
    return (load_yaml(path.read_bytes()) if path.exists() else None) or {}
