"""The stages of a DVC project, in an order in which they can run, with the resources that each needs."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipelines.graph.recipes import stages_left_out
from pipelines.launching.launchers import stage_gpus
from pipelines.runtime.process_group import run_in_group
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.stage_graph import METRICS, make_shared_folders


@dataclass(frozen=True)
class DvcStage:
    """A stage of the graph: its address (`rl_round@rl_1`), its metric files, and the GPUs of this machine it uses."""

    name: str
    metrics: tuple[str, ...]
    gpus: int

    @property
    def slug(self) -> str:
        """Returns the name in the form of an artifact key: lower case letters, digits and dashes."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())


def project_folder(project: str) -> Path:
    """Returns the folder that a flow's parameter names, this project for none. UserError where no DVC project is."""
    root = Path(project).absolute() if project else PROJECT
    if not (root / "dvc.yaml").is_file():
        raise UserError(f"project {project!r} is no DVC project of this machine: {root / 'dvc.yaml'} is missing")
    return root


def stages_in_order(root: Path, targets: tuple[str, ...] = ()) -> list[DvcStage]:
    """Returns the stages of the parameters in use, each after its dependencies, otherwise in the order of dvc.yaml.

    With `targets` (addresses) only these and their dependencies.
    """
    # Here and below: DVC takes a second to import, and a graph without left-out stages is run without it.
    import networkx
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        gone = stages_left_out(root)
        stages = [stage for stage in repo.index.stages if _address(stage, root) not in gone]
        place = {stage: number for number, stage in enumerate(stages)}
        # Edges point from a stage to its dependencies.
        graph = repo.index.graph.subgraph(stages)
        # Among stages that could run next, the one that dvc.yaml lists first: so the order is that of the file, and the
        # same in every run.
        order = list(networkx.lexicographical_topological_sort(graph.reverse(), key=place.__getitem__))
        if targets:
            roots = [stage for stage in order if _address(stage, root) in targets]
            needed = set(roots).union(*(networkx.descendants(graph, stage) for stage in roots))
            order = [stage for stage in order if stage in needed]
        return [DvcStage(_address(stage, root), _metric_files(stage, root), _gpus(stage, root)) for stage in order]


def count_unchanged(root: Path, stages: Sequence[DvcStage], flags: Sequence[str] = ()) -> int:
    """Returns how many stages, counted from the first, `dvc repro` with these flags would skip.

    DVC decides, but without a DVC process: `repro` uses the same method. The result holds for a stage only while
    all stages before it are up to date, so count again after each stage that ran. Call it under the project's lock.
    A stage that DVC cannot check counts as changed: its run then reports the error.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    # As `dvc --wait-for-lock` does, where another DVC holds the repository's lock.
    with Repo(str(root), _wait_for_lock=True) as repo, repo.lock:
        found = {_address(stage, root): stage for stage in repo.index.stages}
        for count, stage in enumerate(stages):
            try:
                # Without data a stage counts as unchanged only if the run pulls the missing files.
                is_changed = found[stage.name].changed(allow_missing="--allow-missing" in flags)
            except DvcException:
                is_changed = True
            if is_changed:
                return count
    return len(stages)


def repro_arguments(root: Path, targets: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns arguments of `dvc repro` for the targets, or for all. DVC itself would also run plain stages that are
    left out, so if there are any, the others are named one by one, in order.
    """
    make_shared_folders(root)
    if not stages_left_out(root):
        return targets
    return ("--single-item", *(stage.name for stage in stages_in_order(root, targets)))


TOLD_REPRO = Path(__file__).with_name("told_repro.py")


@dataclass(frozen=True)
class StageReport:
    """What `dvc repro` has done with a stage."""

    stage: str
    what: Literal["begins", "pulls", "runs", "unchanged", "restored", "ran", "failed"]
    """First `begins`. `pulls` and `runs` may follow; a stage that DVC restores from its run cache does not run."""
    code: int | None
    """Exit code of a command that failed, negative for a signal."""
    reason: str
    """The command of a stage that runs; DVC's words about a failure."""


def run_told_repro(
    root: Path,
    arguments: Sequence[str],
    on_line: Callable[[str], object],
    on_report: Callable[[StageReport], object],
    env: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
    timeout_seconds: float | None = None,
) -> int:
    """Runs `dvc repro` as `run_in_group` does; returns its exit code, or that of the stage that failed."""
    mark = secrets.token_hex(8)

    def hear(line: str) -> None:
        # A report may follow on the last words of a stage, without a line end.
        text, _, report = line.partition(mark)
        if text or not report:
            on_line(text)
        if report:
            on_report(StageReport(**json.loads(report)))

    # Safe path (-P): the modules beside the file must not hide others.
    command = [sys.executable, "-P", TOLD_REPRO, mark, *arguments]
    return run_in_group(command, root, hear, timeout_seconds, env, held)


def _address(stage: Any, root: Path) -> str:
    """The stage's name in `dvc repro` in folder `root` (DVC's `addressing` is relative to the current folder)."""
    # A stage of a .dvc file has no name: its file is its address.
    file, name = os.path.relpath(stage.path, root), getattr(stage, "name", None)
    return name if file == "dvc.yaml" else ":".join(filter(None, [file, name]))


def _metric_files(stage: Any, root: Path) -> tuple[str, ...]:
    paths = (os.path.relpath(out.fs_path, root) for out in stage.outs)
    return tuple(path for path in paths if path.startswith(METRICS))


def _gpus(stage: Any, root: Path) -> int:
    name = _address(stage, root).rpartition(":")[2].partition("@")[0]
    return stage_gpus(root, name, stage.cmd if isinstance(stage.cmd, str) else "")
