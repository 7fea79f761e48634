"""The stages of a DVC project, in the order in which they can run, with what each needs of the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.graph.recipes import stages_left_out
from pipelines.launching.resources import stage_gpus
from stages.foundations.stage_graph import METRICS, make_shared_folders


@dataclass(frozen=True)
class DvcStage:
    """A stage of the graph: its address (`rl_round@rl_1`), its metric files, and the GPUs of this machine it takes."""

    name: str
    metrics: tuple[str, ...]
    gpus: int

    @property
    def slug(self) -> str:
        """The name as the key of an artifact may be: lower case letters, digits and dashes."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())


def stages_in_order(root: Path, targets: tuple[str, ...] = ()) -> list[DvcStage]:
    """The stages of the parameters in use, each after all it depends on, otherwise as they stand in dvc.yaml.

    With `targets` (addresses) only these and what they depend on.
    """
    import networkx
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        gone = stages_left_out(root)
        stages = [stage for stage in repo.index.stages if _address(stage, root) not in gone]
        place = {stage: number for number, stage in enumerate(stages)}
        graph = repo.index.graph.subgraph(stages)  # edges point from a stage to what it depends on
        order = list(networkx.lexicographical_topological_sort(graph.reverse(), key=place.__getitem__))
        if targets:
            roots = [stage for stage in order if _address(stage, root) in targets]
            needed = set(roots).union(*(networkx.descendants(graph, stage) for stage in roots))
            order = [stage for stage in order if stage in needed]
        return [
            DvcStage(_address(stage, root), _metric_files(stage, root), _gpus(stage, root)) for stage in order
        ]


def what_to_repro(root: Path, targets: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Arguments of `dvc repro` for the targets, or for all. DVC itself would run plain stages that are left out too, so
    where there are some the others are named one by one, in their order.
    """
    make_shared_folders(root)
    if not stages_left_out(root):
        return targets
    return ("--single-item", *(stage.name for stage in stages_in_order(root, targets)))


def _address(stage: Any, root: Path) -> str:
    """What `dvc repro` calls the stage in folder `root` (DVC's own `addressing` is relative to where we are)."""
    file, name = os.path.relpath(stage.path, root), getattr(stage, "name", None)
    return name if file == "dvc.yaml" else ":".join(filter(None, [file, name]))


def _metric_files(stage: Any, root: Path) -> tuple[str, ...]:
    paths = (os.path.relpath(out.fs_path, root) for out in stage.outs)
    return tuple(path for path in paths if path.startswith(METRICS))


def _gpus(stage: Any, root: Path) -> int:
    name = _address(stage, root).rpartition(":")[2].partition("@")[0]
    return stage_gpus(root, name, stage.cmd if isinstance(stage.cmd, str) else "")
