"""Runs the graph again where nothing of the finished run is: a clone of a commit, an empty cache, its own state."""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.graph.graph import what_to_repro
from pipelines.records.places import git_bytes
from pipelines.runtime.checkouts import code_at
from pipelines.runtime.git import git
from pipelines.runtime.process_group import dvc, environment, run_in_group
from pipelines.verifying.reference import Reference
from stages.foundations.errors import UserError
from stages.foundations.machine import share_mirror

LAST_LINES = 15
LEFT_OUT = ("RETRACE_STATE", "DVC_ROOT", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID")
"""Variables of the environment that would lead the run back to the project's own state."""


@dataclass(frozen=True)
class Subject:
    """What is verified."""

    root: Path
    commit: str
    is_working_tree: bool
    """The lock and the parameters are those of the working tree, not of the commit."""
    changed: tuple[str, ...]
    """Files of the code that differ from the commit, and are not run."""

    def file(self, name: str) -> bytes | None:
        """A file's bytes, of the working tree or of the commit; None where there is none."""
        if self.is_working_tree:
            path = self.root / name
            return path.read_bytes() if path.is_file() else None
        return git_bytes(self.root, "show", f"{self.commit}:{name}")


def subject_of(root: Path, revision: str) -> Subject:
    """HEAD's code with the working tree's lock and parameters, or all three of a revision. UserError without git."""
    code = code_at(root, revision or "HEAD", is_with_changes=False)
    return Subject(root, code.commit, not revision, code.changed)


def make_clone(subject: Subject, folder: Path) -> list[str]:
    """A clone in `folder` without outputs, with an empty cache and no remote; returns what it reads from outside.

    Parameters may name files beside the project (`../data/...`); the clone gets links to those places beside itself.
    """
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(parents=True)
    git(subject.root, "clone", "-q", "--no-checkout", str(subject.root), str(folder))
    git(folder, "checkout", "-q", "--detach", subject.commit)
    params = subject.file("params.yaml") or b""
    (folder / "params.yaml").write_bytes(params)
    (folder / "dvc.lock").unlink(missing_ok=True)
    own = folder / ".dvc"
    (own / "config.local").write_text(
        f"[core]\n    site_cache_dir = {own / 'site'}\n    remote =\n[cache]\n    dir = {own / 'cache'}\n"
    )
    share_mirror(subject.root, folder)
    beside = sorted(set(re.findall(r"\.\./([^\s/\"'},]+)", params.decode("utf-8", "replace"))))
    for name in beside:
        if (subject.root.parent / name).exists():
            (folder.parent / name).symlink_to(subject.root.parent / name)
    return [f"../{name}" for name in beside]


def remove_outputs(folder: Path, reference: Reference) -> None:
    """Takes away outputs that are in git (metric files, curves), so that each is made anew."""
    for output in reference.outputs():
        path = folder / output.path
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def lay_inputs(folder: Path, reference: Reference, stage: str) -> None:
    """Copies what one stage reads from the finished run. UserError when something is gone."""
    for output in reference.dependencies(stage):
        files = reference.files(output)
        if files is None:
            raise UserError(
                f"{output.path}, which {stage} reads, is neither in the workspace nor in DVC's cache"
            )
        for name, source in files.items():
            goal = folder / output.path / name if name else folder / output.path
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, goal)


def run_again(
    folder: Path, targets: Sequence[str], is_single: bool, log: Path, tell: Callable[[str], None]
) -> tuple[int, str]:
    """DVC's exit code in the clone, and its last lines. All of its output goes to `log`."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as file:

        def on_line(line: str) -> None:
            file.write(line + "\n")
            file.flush()
            if line.strip():
                last.append(line)
            if line.startswith("Running stage"):
                tell(line)

        chosen = ("--single-item", *targets) if is_single else what_to_repro(folder, tuple(targets))
        code = run_in_group(dvc("repro", *chosen), folder, on_line, env=surroundings(folder))
    return code, "\n".join(last)


def surroundings(folder: Path) -> Mapping[str, str]:
    """The environment of a run that finds no state but its own, and leaves no track in MLflow."""
    kept = {name: value for name, value in environment().items() if name not in LEFT_OUT}
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **kept,
        "RETRACE_STATE": str(folder / "state"),
        "RETRACE_TRACKING": "off",
        "PYTHONPATH": os.pathsep.join(paths),
    }
