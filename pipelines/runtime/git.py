"""Git commands, whose failures are told as git told them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from stages.foundations.errors import UserError

NOBODY = ("-c", "user.name=Retrace", "-c", "user.email=retrace@localhost")
"""Who commits and tags where git does not know the user, as on a worker."""


def git(folder: Path, *arguments: str) -> str:
    """Standard output of a git command, without the last line end; UserError with what git said when it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise UserError(f"git is not installed, or there is no folder {folder}: install git") from error
    if done.returncode:
        raise UserError(f"git {' '.join(arguments[:3])} in {folder} failed: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")


def git_as_someone(folder: Path, *arguments: str) -> str:
    """As `git`, with an identity where none is configured: for commits and annotated tags."""
    known = subprocess.run(["git", "config", "user.email"], cwd=folder, capture_output=True).returncode == 0
    return git(folder, *(() if known else NOBODY), *arguments)


def has_revision(folder: Path, revision: str) -> bool:
    """Whether the repository has such a commit, branch or tag."""
    command = ["git", "rev-parse", "--quiet", "--verify", revision]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode == 0


def show(folder: Path, revision: str, path: str) -> str | None:
    """The text of a file at a revision; None where it has none."""
    done = subprocess.run(["git", "show", f"{revision}:{path}"], cwd=folder, capture_output=True, text=True)
    return None if done.returncode else done.stdout


def commit_all(folder: Path, message: str, *paths: str) -> str:
    """Commits the paths that exist, as far as they changed; returns the commit that is then checked out."""
    there = [path for path in paths if (folder / path).exists()]
    git(folder, "add", "--", *there)
    if git(folder, "status", "--porcelain", "--untracked-files=no"):
        git_as_someone(folder, "commit", "--quiet", "--no-verify", "-m", message)
    return git(folder, "rev-parse", "HEAD")
