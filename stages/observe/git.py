"""Calls git. `git` raises git's message on failure; `ask_git` and `file_at` return a value for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from stages.foundations.errors import UserError


def git(folder: Path, *arguments: str) -> str:
    """Returns the output of a git command, without the last line end; UserError with git's message when it fails."""
    # File names in git are bytes. `surrogateescape` keeps names that are not UTF-8 usable as paths.
    return git_bytes(folder, *arguments).decode("utf-8", "surrogateescape").rstrip("\n")


def git_bytes(folder: Path, *arguments: str) -> bytes:
    """As `git`, for output that is not text."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True)
    except OSError as error:
        raise UserError(f"git is not installed, or there is no folder {folder}: install git") from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip()
        raise UserError(f"git {' '.join(arguments[:3])} in {folder} failed: {reason}")
    return done.stdout


def ask_git(folder: Path, *arguments: str) -> str:
    """As `git`; "" when it fails or is not installed."""
    try:
        return git(folder, *arguments)
    except UserError:
        return ""


def has_revision(folder: Path, revision: str) -> bool:
    """True if the repository has such a commit, branch, tag, or file at one of them (`HEAD:dvc.lock`)."""
    return bool(ask_git(folder, "rev-parse", "--quiet", "--verify", revision))


def file_at(folder: Path, revision: str, path: str) -> bytes | None:
    """Returns a file of a commit; None where it has none."""
    try:
        return git_bytes(folder, "show", f"{revision}:{path}")
    except UserError:
        return None


NOBODY = ("-c", "user.name=Retrace", "-c", "user.email=retrace@localhost")
"""Author of commits and tags where git does not know the user, as on a worker."""


def git_as_someone(folder: Path, *arguments: str) -> str:
    """As `git`, with an identity where none is configured: for commits and annotated tags."""
    return git(folder, *(() if ask_git(folder, "config", "user.email") else NOBODY), *arguments)


def commit_all(folder: Path, message: str, *paths: str) -> str:
    """Commits the existing paths, if they changed; returns the commit that is then checked out."""
    # git fails, and adds nothing, when one of the paths does not exist.
    there = [path for path in paths if (folder / path).exists()]
    git(folder, "add", "--", *there)
    if git(folder, "status", "--porcelain", "--untracked-files=no"):
        # Hooks are for a user's commits: one that edits files would change the run's record.
        git_as_someone(folder, "commit", "--quiet", "--no-verify", "-m", message)
    return git(folder, "rev-parse", "HEAD")
