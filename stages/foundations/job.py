"""One run of a stage: its files, its validated parameters, and the record of its attempt.

An attempt is named by the hash of everything that determines its result. Its folder is under `state/`, outside every
DVC output, because DVC deletes outputs before a stage starts again. So an attempt finds the checkpoints of an earlier
one at the same work, and never those of another setting.
"""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from stages.foundations.dvc_lock import lock_of, recorded_outs
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, stable_hash
from stages.foundations.machine import state_folder
from stages.foundations.params import load_value, read_yaml, validate_section
from stages.foundations.stage import Stage
from stages.foundations.stage_graph import filled


@dataclass(frozen=True)
class Job:
    """The argument of a stage's `main(job)`."""

    name: str
    """Name of the stage."""
    item: str
    """Entry of section `foreach`; "" for a stage that runs once."""
    stage: Stage
    paths: Namespace
    """A path for each input and output of `stage`, and `params`: the parameter file."""
    sections: Mapping[str, Any]
    """Validated sections of `stage`, by name. Of section `foreach` it has only the item."""

    @property
    def seed(self) -> int:
        return self.sections["seed"]

    def settings(self) -> dict[str, Any]:
        """Returns the sections without the seed as plain values, as in the parameter file."""
        return {
            name: {self.item: _plain(value)} if name == self.stage.foreach else _plain(value)
            for name, value in self.sections.items()
            # An attempt records the seed by itself: MLflow shows it as a tag that distinguishes runs.
            if name != "seed"
        }

    def attempt(
        self,
        settings: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Path] | None = None,
        policy: str | None = None,
        round: str | None = None,
    ) -> Attempt:
        """Returns the attempt at this work; with `settings()` and all inputs of the stage unless others are given."""
        given = {name: getattr(self.paths, name) for name in self.stage.inputs}
        shown = self.settings() if settings is None else settings
        seed = self.sections.get("seed")
        return attempt_at(self.name, shown, given if inputs is None else inputs, seed, policy, round)


def read_job(name: str, item: str, stage: Stage, flags: Sequence[str], description: str) -> Job:
    """Returns the job of a stage, whose command has the flags `[--params FILE] [--INPUT PATH] [--OUTPUT PATH]`.

    Paths are those of the declaration unless a flag gives another. `--help` prints the help and exits.
    UserError for a missing or unknown item, a wrong section, and an input that does not exist.
    """
    at = "@ITEM" if stage.foreach else ""
    parser = argparse.ArgumentParser(prog=f"python -m stages {name}{at}", description=description)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (%(default)s)")
    files = {**stage.inputs, **stage.not_compared, **stage.outputs}
    for one, path in files.items():
        kind = "output" if one in stage.outputs else "input"
        # No default: a declared path may contain `${item}`, which is filled only when the item is known to exist.
        parser.add_argument(f"--{one.replace('_', '-')}", type=Path, metavar="PATH", help=f"{kind}: {path}")
    paths = parser.parse_args(flags)
    if bool(stage.foreach) != bool(item):
        raise UserError(
            f"stage {name} runs once for each entry of `{stage.foreach}`: name one, as in {name}@NAME"
            if stage.foreach
            else f"stage {name} runs once: leave out `@{item}`"
        )
    given = read_yaml(paths.params)
    sections = {one: _section(one, model, stage, item, paths.params) for one, model in stage.sections.items()}
    items = given.get(stage.foreach)
    value = items.get(item) if isinstance(items, Mapping) else item
    for one, path in files.items():
        if getattr(paths, one) is None:
            setattr(paths, one, Path(filled(path, item, value)))
    # All inputs are checked now: a stage that trains for hours must not miss one at its end.
    for one in (*stage.inputs, *stage.not_compared):
        if not getattr(paths, one).exists():
            raise UserError(
                f"--{one.replace('_', '-')} {getattr(paths, one)} does not exist: `dvc repro` makes it in an earlier "
                "stage"
            )
    return Job(name, item, stage, paths, sections)


def _section(name: str, model: Any, stage: Stage, item: str, file: Path) -> Any:
    """Returns a section of the file as its model; of section `foreach` the item, as the model of its values."""
    if name != stage.foreach:
        return validate_section(load_value(file, name), name, model, file)
    address = f"{name}.{item}"
    # The model of the section is `dict[str, Item]`, whose second argument is that of one item.
    return validate_section(load_value(file, address), address, get_args(model)[1], file)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True)
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class Attempt:
    """The work that a stage is about to do; `attempt_at` makes it."""

    stage: str
    params: Mapping[str, Any]
    inputs: Mapping[str, Path]
    seed: int | None
    policy: str | None
    """Name of the policy that the stage makes or samples from, if any."""
    round: str | None
    digests: Mapping[str, str]
    """DVC's hash of each input."""
    stage_hash: str
    """Equal for attempts with the same stage, params, inputs, seed and code."""
    scratch: Path
    """Folder for checkpoints and other unfinished work; it exists."""

    @property
    def pieces(self) -> Path:
        """Folder of finished pieces, which a resumed run does not make again. The stage removes it at its end."""
        return self.scratch / "pieces"


def attempt_at(
    stage: str,
    params: Mapping[str, Any],
    inputs: Mapping[str, Path],
    seed: int | None = None,
    policy: str | None = None,
    round: str | None = None,
) -> Attempt:
    """Hashes the inputs and makes the folder `state/scratch/<stage>-<first 16 digits of the hash>` if it is absent."""
    # Inside `dvc repro` dvc.lock has the hashes of all outputs of earlier stages, which the files have
    # (stages/observe/unchanged.py), so no large file is read twice.
    recorded = recorded_outs(lock_of(Path.cwd())) if "DVC_STAGE" in os.environ else {}
    digests = {name: recorded.get(Path(path).as_posix()) or dvc_md5(Path(path)) for name, path in inputs.items()}
    # Including policy and round: two items of a stage may have equal settings and inputs, and must not share a
    # checkpoint.
    identity = {"stage": stage, "policy": policy, "round": round, "seed": seed, "params": dict(params)}
    stage_hash = stable_hash({**identity, "inputs": digests, "code": code_digest(stage)})
    # 16 digits are 64 bits: no two attempts of a project meet, and paths stay short.
    scratch = state_folder() / "scratch" / f"{stage}-{stage_hash[:16]}"
    scratch.mkdir(parents=True, exist_ok=True)
    return Attempt(stage, params, inputs, seed, policy, round, digests, stage_hash, scratch)


def code_digest(stage: str) -> str:
    """The hash of the stage's fingerprint in data/code; "" without one, as in a manual run in another folder."""
    fingerprint = Path("data/code") / f"{stage}.json"
    return dvc_md5(fingerprint) if fingerprint.exists() else ""
