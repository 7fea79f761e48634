"""Miniatures of recipes, and copies of the project for running them: the same graph and stages, small numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from stages.foundations.files import load_yaml

PROJECT = Path(__file__).resolve().parents[2]

LAPTOP: dict[str, Any] = {
    "policies": ["sft", "rl_1", "rl_2"],
    "sampler.threads": 1,
    "trainer.threads": 1,
    "base.corpus_rows": 50,
    "base.hidden_size": 32,
    "base.layers": 1,
    "base.heads": 2,
    "base.feed_forward_size": 64,
    "sources.arithmetic_train.from.rows": 120,
    "sources.arithmetic_held_out.from.rows": 12,
    "collect_web.sources.arithmetic_pages.exercises": 200,
    "curate.validation_rows": 10,
    "demonstrate.validation_rows": 10,
    "sft.steps": 12,
    "sft.warmup_steps": 2,
    "sft.validate_every_steps": 6,
    "sft.checkpoint_every_steps": 3,
    "rl.problems_per_step": 4,
    "rl.group_size": 4,
    "rl.max_response_tokens": 30,
    "rl.dynamic_sampling": {"kind": "none"},
    "rl.checkpoint_every_steps": 1,
    "rl_rounds.rl_1.steps": 2,
    "rl_rounds.rl_2.steps": 2,
    "rl_rounds.rl_3": None,
    "respond.samples": 2,
    "respond.max_response_tokens": 30,
    "grade.bootstrap_draws": 100,
    "grade.pass_at_k": [2],
}
"""Changes to the laptop recipe; None removes a key."""


def copy_project(folder: Path) -> Path:
    """Makes a git repository in `folder` with the working tree's files as its one commit, and with DVC's settings."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in listed:
        if (PROJECT / name).is_file() and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name, follow_symlinks=False)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "copy"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *command], cwd=folder, check=True)
    return folder


def use_miniature(folder: Path, recipe: str, changes: dict[str, Any]) -> None:
    """Writes `params.yaml`: the recipe with dotted `changes`."""
    params = load_yaml((PROJECT / "pipelines" / "recipes" / f"{recipe}.yaml").read_text())
    for name, value in changes.items():
        *sections, last = name.split(".")
        place = params
        for section in sections:
            place = place[section]
        if value is None:
            del place[last]
        else:
            place[last] = value
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def environment(tracking: bool = False, front: Path | None = None) -> dict[str, str]:
    """Returns the environment of a command in a copy: this interpreter first, and no state of the tested project.

    `front` is a folder before it on PATH, such as that of `warm_stages`.
    """
    kept = {
        name: value for name, value in os.environ.items() if name not in ("RETRACE_STATE", "PYTHONPATH", "DVC_ROOT")
    }
    path = os.pathsep.join([*([str(front)] if front else []), str(Path(sys.executable).parent), kept["PATH"]])
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", "RETRACE_TRACKING": "on" if tracking else "off"}


def dvc(folder: Path, *arguments: str, check: bool = True, front: Path | None = None) -> str:
    """Runs `dvc` in `folder` and returns its output; AssertionError with the output if the command fails."""
    done = subprocess.run(
        ["dvc", *arguments],
        cwd=folder,
        env=environment(front=front),
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert not check or done.returncode == 0, done.stdout
    return done.stdout


def stages_run(printed: str) -> list[str]:
    """Returns the names of the stages that a `dvc repro` ran, in order."""
    return [line.split("'")[1] for line in printed.splitlines() if line.startswith("Running stage")]


def output_hashes(folder: Path) -> dict[str, str]:
    """Returns every output's hash by path, from `dvc.lock`."""
    lock = load_yaml((folder / "dvc.lock").read_text())
    return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage.get("outs", [])}
