"""The git worktree in which a retraining runs: its own branch and parameters, the project's DVC cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipelines.retraining.champion import Champion
from pipelines.retraining.new_data import SNAPSHOTS, Snapshot, copy_files
from pipelines.runtime.checkouts import cache_folder, remove_checkout, share_dvc, worktree_environment
from pipelines.runtime.git import commit_all, git, has_revision
from pipelines.runtime.process_group import dvc, run_in_group
from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically
from stages.foundations.scratch import state_folder

BOOKKEEPING = (f"{SNAPSHOTS}.dvc", "data/.gitignore")
RESULTS = ("dvc.lock", "data/metrics", "data/headline", "data/curves")
"""What of a run's results belongs into git; the rest lies in DVC's cache."""


@dataclass(frozen=True)
class Attempt:
    """A retraining: which recipe, with which data, from which code."""

    root: Path
    recipe: str
    name: str
    """Names branch and folder; equal data from the same code go on with what is there."""
    snapshot: Snapshot
    base: str
    """Commit whose code is run."""
    champion: Champion | None

    @property
    def branch(self) -> str:
        return f"retrain/{self.recipe}-{self.name}"

    @property
    def folder(self) -> Path:
        return retraining_folder(self.root) / f"{self.recipe}-{self.name}"


def retraining_folder(root: Path) -> Path:
    """Where worktrees, locks and records of retrainings lie."""
    from stages.foundations.scratch import PROJECT

    return (state_folder() if root == PROJECT else root / "state") / "retraining"


def open_worktree(attempt: Attempt, say: Callable[[str], None]) -> Path:
    """The attempt's worktree, with the snapshot as a commit on its branch; an interrupted attempt's is used again."""
    root, folder = attempt.root, attempt.folder
    stamp = folder / "state" / "retraining"
    key = f"{attempt.snapshot.name} {attempt.base}\n"
    if stamp.exists() and stamp.read_text() == key:
        say(f"going on in {folder}")
        return folder
    remove_checkout(root, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    git(root, "worktree", "add", "--force", "-B", attempt.branch, str(folder), attempt.base)
    share_dvc(root, folder, cache_folder(root))
    write_text_atomically(folder / "params.yaml", yaml.safe_dump(attempt.snapshot.params, sort_keys=False))
    write_text_atomically(folder / "state" / "recipe", attempt.recipe + "\n")
    _place_snapshots(attempt, folder, say)
    _link_downloads(folder)
    lines = "\n".join(attempt.snapshot.changes) or "The recipe's own data."
    message = f"Data snapshot {attempt.snapshot.name} for {attempt.recipe}\n\n{lines}"
    commit_all(folder, message, "params.yaml", *BOOKKEEPING)
    write_text_atomically(stamp, key)
    return folder


def _place_snapshots(attempt: Attempt, folder: Path, say: Callable[[str], None]) -> None:
    champion = attempt.champion
    if champion and has_revision(attempt.root, f"{champion.commit}:{BOOKKEEPING[0]}"):
        git(folder, "checkout", champion.commit, "--", *BOOKKEEPING)
        _dvc(folder, "checkout", BOOKKEEPING[0])
    copy_files(attempt.snapshot, folder)
    if attempt.snapshot.files:
        _dvc(folder, "add", SNAPSHOTS)
        say(f"{len(attempt.snapshot.files)} incoming files are in DVC's cache, under {SNAPSHOTS}")


def _dvc(folder: Path, *arguments: str) -> None:
    lines: list[str] = []
    if run_in_group(dvc(*arguments), folder, lines.append, env=worktree_environment(folder)):
        raise UserError(f"dvc {' '.join(arguments)} in {folder} failed:\n" + "\n".join(lines[-10:]))


def _link_downloads(folder: Path) -> None:
    """Files that were fetched while looking for revisions are not fetched again."""
    downloads = state_folder() / "downloads"
    goal = folder / "state" / "downloads"
    goal.mkdir(parents=True, exist_ok=True)
    for file in downloads.iterdir() if downloads.is_dir() else ():
        if not file.name.endswith(".partial") and not (goal / file.name).exists():
            try:
                os.link(file, goal / file.name)
            except OSError:  # another file system
                shutil.copy2(file, goal / file.name)


def keep_results(attempt: Attempt, folder: Path) -> str:
    """Commits dvc.lock, metrics and curves on the branch; returns the commit."""
    return commit_all(
        folder, f"Retrained {attempt.recipe} on data snapshot {attempt.snapshot.name}", *RESULTS
    )
