"""The state of the project: parameters, git, DVC's cache and remote, the tracking database."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipelines.doctor.finding import Finding, ok, problem, warning
from pipelines.graph.sharing import default_remote, remote_fault
from pipelines.runtime.git import git
from stages.foundations.addresses import without_password
from stages.foundations.bfloat16 import REMEDY, is_bfloat16_slow
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml

FICLONE = 0x40049409
"""Linux: makes one file share the other's blocks (ioctl_ficlone(2))."""
SHOWN = 3


def check_params(root: Path) -> Iterator[Finding]:
    from pipelines.graph.schema import check_params as check

    if not (root / "params.yaml").exists():
        yield problem("params", "params.yaml is missing", "`retrace use laptop`")
        return
    try:
        check(root / "params.yaml")
    except UserError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        yield problem(
            "params", "; ".join(lines[:SHOWN]) + more, "correct params.yaml, or `retrace use RECIPE`"
        )
    else:
        yield ok("params", "params.yaml is usable")


def check_bfloat16(root: Path) -> Iterator[Finding]:
    """A warning where the parameters ask a CPU without instructions for bfloat16 to compute in it."""
    import torch

    try:
        values = read_yaml(root / "params.yaml")
    except UserError:
        return  # told by check_params
    asked = [
        f"{name}.dtype: {section['dtype']}"
        for name in ("sampler", "trainer")
        if isinstance(section := values.get(name), dict) and section.get("dtype") in ("bfloat16", "mixed")
    ]
    if asked and not torch.cuda.is_available() and is_bfloat16_slow():
        yield warning("bfloat16", f"{' and '.join(asked)}; this CPU has no instructions for it", REMEDY)


def check_git(root: Path) -> Iterator[Finding]:
    """Whether results can be traced to a commit."""
    if not shutil.which("git"):
        yield problem("git", "git is not installed", "install git")
        return
    try:
        top = git(root, "rev-parse", "--show-toplevel")
        commit = git(root, "rev-parse", "--short", "HEAD")
    except UserError as error:
        found = f"{root} is no git repository with a commit ({str(error).rpartition(' failed: ')[2].splitlines()[0]})"
        yield problem("git", found, "`git init && git add . && git commit`, where git names no other remedy")
        return
    branch = git(root, "branch", "--show-current") or "no branch"
    changed = [line[3:] for line in git(root, "status", "--porcelain").splitlines()]
    code = [name for name in changed if name.startswith(("stages/", "pipelines/", "dvc.yaml"))]
    if Path(top).resolve() != root.resolve():
        yield warning(
            "git", f"the repository is {top}, not the project", "ablations and `verify` want one of its own"
        )
    elif code:
        shown = ", ".join(code[:SHOWN]) + (f" and {len(code) - SHOWN} more" if len(code) > SHOWN else "")
        text = f"{branch} at {commit}; code is not committed: {shown}"
        yield warning("git", text, "commit it, so that results can be traced to code")
    elif "dvc.lock" in changed:
        remedy = "`git add dvc.lock data/metrics data/headline data/curves && git commit`"
        yield warning("git", f"{branch} at {commit}; dvc.lock is not committed", remedy)
    else:
        yield ok("git", f"{branch} at {commit}, code committed")


def check_link(root: Path, cache: Path) -> Iterator[Finding]:
    """How outputs can hang on DVC's cache; a copy takes the disk twice, and time."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        yield problem(
            "cache", f"{cache} cannot be made: {error.strerror}", "`dvc cache dir PATH`, or mend its owner"
        )
        return
    kinds = [
        kind
        for kind, works in (("reflink", _reflinks), ("hardlink", _hardlinks))
        if _tried(works, cache, root)
    ]
    if kinds:
        yield ok("cache", f"{cache}: {kinds[0]}")
    elif _tried(_symlinks, cache, root):
        yield ok("cache", f"{cache}: symlink (it is on another file system than the project)")
    else:
        remedy = "put the cache on the project's file system: `dvc cache dir PATH`"
        yield warning("cache", f"{cache}: outputs are copied, so they take the disk twice", remedy)


def _tried(works, cache: Path, root: Path) -> bool:
    source, goal = cache / f".doctor-{os.getpid()}", root / f".doctor-{os.getpid()}.partial"
    try:
        source.write_bytes(b"x")
        works(source, goal)
        return goal.read_bytes() == b"x"
    except OSError:
        return False
    finally:
        with suppress(OSError):  # nothing was written where nothing can be
            goal.unlink(missing_ok=True)
        with suppress(OSError):
            source.unlink(missing_ok=True)


def _reflinks(source: Path, goal: Path) -> None:
    with open(source, "rb") as one, open(goal, "wb") as other:
        fcntl.ioctl(other.fileno(), FICLONE, one.fileno())


def _hardlinks(source: Path, goal: Path) -> None:
    os.link(source, goal)


def _symlinks(source: Path, goal: Path) -> None:
    goal.symlink_to(source)


def check_remote(root: Path) -> Iterator[Finding]:
    """Whether the default remote answers."""
    try:
        remote = default_remote(root)
    except UserError as error:
        yield problem("remote", str(error), "`dvc config --list` shows it")
        return
    if remote is None:
        yield ok("remote", "none: results stay on this machine (docs/sharing.md)")
        return
    fault = remote_fault(root)
    if fault:
        remedy = (
            "check its address (`dvc remote list`), the network and your key; or `dvc remote default --unset`"
        )
        yield problem("remote", f"{remote.name} ({remote.url}): {fault}", remedy)
    else:
        yield ok("remote", f"{remote.name} ({remote.url}) answers")


def check_tracking(state: Path) -> Iterator[Finding]:
    """MLflow's database, if it is there."""
    database = state / "mlflow.db"
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if address:
        yield ok("tracking", f"runs go to {without_password(address)}")
    elif not database.exists():
        yield ok("tracking", f"{database} is made by the first run")
    else:
        yield _database(database)


def _database(database: Path) -> Finding:
    remedy = "move it away: the next run makes a new one, and `retrace mirror` fills it"
    try:
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            found = connection.execute("pragma quick_check").fetchone()[0]
            runs = connection.execute("select count(*) from runs").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        return problem("tracking", f"{database}: {error}", remedy)
    if found != "ok":
        return problem("tracking", f"{database}: {found}", remedy)
    return ok("tracking", f"{database}: {runs} runs")
