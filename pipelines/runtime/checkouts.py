"""DVC at a revision in another folder, for ablations, retraining and `retrace verify`: a git worktree.

A run's folder has only committed code, even while files are edited; uncommitted changes are listed and left out. With
`is_with_changes` they are applied on top of the commit, and the results are marked `dirty`.
"""

from __future__ import annotations

import fnmatch
import io
import os
import re
import shutil
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.runtime.process_group import dvc, environment, run_in_group
from stages.foundations.errors import UserError
from stages.foundations.files import dump_yaml, load_yaml, sha256_of, stable_hash, write_text_atomically
from stages.foundations.fingerprints import Memory, Project, stage_names, stage_roots
from stages.foundations.machine import share_mirror
from stages.observe.git import git, git_bytes
from stages.observe.tracking import tracking_uri

# The code that stages run. `pipelines` starts stages and changes no result.
CODE = ("dvc.yaml", "stages")
LAST_LINES = 15


@dataclass(frozen=True)
class Code:
    """The code that runs: a commit, with or without the working tree's changes on top."""

    root: Path
    commit: str
    is_with_changes: bool
    changed: tuple[str, ...]
    """Files of `stages/` and `dvc.yaml` that differ from the commit, including new ones."""

    @property
    def is_dirty(self) -> bool:
        return self.is_with_changes and bool(self.changed)


def code_at(root: Path, revision: str, is_with_changes: bool) -> Code:
    """UserError when `root` is not the root of a git repository or has no such revision."""
    try:
        commit = git(root, "rev-parse", "--verify", f"{revision}^{{commit}}")
    except UserError as error:
        raise UserError(
            f"{root} has no git revision {revision!r}: only committed code is run (git init, git commit)"
        ) from error
    top = git(root, "rev-parse", "--show-toplevel")
    if Path(top).resolve() != root.resolve():
        raise UserError(f"{root} is a folder of the git repository {top}: make it a repository itself (git init)")
    return Code(root, commit, is_with_changes, tuple(_changed(root, commit, CODE)))


def _changed(root: Path, commit: str, places: Sequence[str]) -> list[str]:
    tracked = git(root, "diff", "--name-only", "-z", commit, "--", *places)
    new = git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *places)
    return sorted(name for name in {*tracked.split("\0"), *new.split("\0")} if name)


def code_hashes(code: Code, targets: Iterable[str], params: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """For each parameter file, returns hashes of all definitions used by the stages that the targets may need.

    The hash of `dvc.yaml` covers only these stages.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if code.is_with_changes:
            for place in CODE:
                copy = shutil.copytree if (code.root / place).is_dir() else shutil.copy2
                copy(code.root / place, folder / place)
        else:
            archive = git_bytes(code.root, "archive", "--format=zip", "-0", code.commit, "--", *CODE)
            # tarfile is safe only with a filter, which Python has since 3.11.4. zipfile creates no links and writes
            # nothing outside the folder.
            with zipfile.ZipFile(io.BytesIO(archive)) as packed:
                packed.extractall(folder)
        stages = load_yaml((folder / "dvc.yaml").read_text())["stages"]
        needed = {name: stages[name] for name in needed_stages(stages, {t.partition("@")[0] for t in targets})}
        memory: Memory = {}
        # A revision may have stages without a package, whose command is any program.
        modules = needed.keys() & set(stage_names(folder))
        found = []
        for values in params:
            hashes = {"dvc.yaml": stable_hash(needed)}
            project = Project(folder, values, memory)
            for module in modules:
                reach = project.reach(*stage_roots(folder, module))
                hashes |= {f"{place} {name}": digest for (place, name), digest in reach.definitions.items()}
                hashes |= {str(path.relative_to(folder)): sha256_of(path) for path in reach.others}
            found.append(hashes)
    return found


def needed_stages(stages: Mapping[str, Any], targets: Iterable[str]) -> list[str]:
    """Stages of a dvc.yaml that the targets may need; `${...}` in a path matches anything, so some are extra."""
    pending, found = list(targets), set()
    while pending:
        name = pending.pop()
        if name in found or name not in stages:
            continue
        found.add(name)
        wanted = _paths(stages[name], ("deps",))
        for other, stage in stages.items():
            made = _paths(stage, ("outs", "metrics", "plots"))
            # An extra stage costs one check by DVC. A missing one would reuse a result of other code.
            if any(_may_be_one(dep, out) for dep in wanted for out in made):
                pending.append(other)
    return sorted(found)


def _paths(stage: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
    entries = [entry for kind in kinds for entry in stage.get("do", stage).get(kind) or []]
    names = [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]
    return [re.sub(r"\$\{[^}]*\}", "*", name) for name in names]


def _may_be_one(dep: str, out: str) -> bool:
    is_same = fnmatch.fnmatch(dep, out) or fnmatch.fnmatch(out, dep)
    return is_same or out.startswith(f"{dep}/") or dep.startswith(f"{out}/")


def cache_folder(root: Path) -> Path:
    """Returns DVC's cache of the project, including the run cache; the default place if the configuration is broken."""
    from dvc.config import Config, ConfigError

    try:
        configured = Config(str(root / ".dvc"))["cache"].get("dir")
    except ConfigError:
        configured = None
    return Path(configured) if configured else root / ".dvc" / "cache"


@contextmanager
def checkout(
    code: Code, folder: Path, key: str, params: Mapping[str, Any], recipe: str, branch: str = ""
) -> Iterator[bool]:
    """The worktree of an attempt that may be resumed: the block fills a new one (True) or gets an earlier one (False).

    A new one has these parameters, of this recipe. `key` identifies the attempt. It is written last, so that an
    unfinished worktree of a killed process is made anew.
    """
    stamp = folder / "state" / "checkout"
    if stamp.exists() and stamp.read_text() == key:
        yield False
        return
    make_checkout(code, folder, branch)
    write_text_atomically(folder / "params.yaml", dump_yaml(dict(params)))
    write_text_atomically(folder / "state" / "recipe", recipe + "\n")
    yield True
    write_text_atomically(stamp, key)


def make_checkout(code: Code, folder: Path, branch: str = "", is_cache_shared: bool = True) -> None:
    """Creates a worktree in place of `folder`, on a new branch if one is named, with DVC set up by `share_dvc`.

    Changes of params.yaml do not count as uncommitted if there is no branch to commit them on: a run's parameters
    are on record. With its own cache, which is empty, DVC has no remote: everything is computed there.
    """
    remove_checkout(code.root, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    on = ["-B", branch] if branch else ["--detach"]
    git(code.root, "worktree", "add", "--quiet", "--force", *on, str(folder), code.commit)
    if not branch:
        git(folder, "update-index", "--skip-worktree", "params.yaml")
    if code.is_with_changes:
        for name in _changed(code.root, code.commit, ["."]):
            if (code.root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(code.root / name, folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    if is_cache_shared:
        share_dvc(code.root, folder)
        return
    dvc_folder = folder / ".dvc"
    (dvc_folder / "config.local").write_text(
        f"[core]\n    site_cache_dir = {dvc_folder / 'site'}\n    remote =\n[cache]\n    dir = {dvc_folder / 'cache'}\n"
    )
    share_mirror(code.root, folder)


def share_dvc(root: Path, folder: Path) -> None:
    """Gives a worktree the project's cache, remotes and mirror, and separate bookkeeping for DVC.

    Remotes are written out for two reasons. Those of `dvc remote add --local` are in no commit. And a remote's relative
    path starts at the folder of its file, which differs in the worktree.
    """
    from dvc.config import Config

    project = Config(str(root / ".dvc"))
    levels = [project.load_one(level) for level in ("repo", "local")]
    with Config(str(folder / ".dvc")).edit("local") as config:
        config["cache"] = {"dir": str(cache_folder(root))}
        config["core"] = {"site_cache_dir": str(folder / ".dvc" / "site")}
        for level in levels:
            for name, settings in level.get("remote", {}).items():
                config.setdefault("remote", {}).setdefault(name, {}).update(settings)
            if "remote" in level.get("core", {}):
                config["core"]["remote"] = level["core"]["remote"]
    share_mirror(root, folder)


def run_dvc(folder: Path, arguments: Sequence[str], on_line: Callable[[str], object] = str) -> tuple[int, str]:
    """Runs DVC in a worktree; returns exit code and last lines. After an exception none of its processes is left."""
    last: deque[str] = deque(maxlen=LAST_LINES)

    def hear(line: str) -> None:
        if line.strip():
            last.append(line)
        on_line(line)

    code = run_in_group(dvc(*arguments), folder, hear, env=worktree_environment(folder))
    return code, "\n".join(last)


LEFT_OUT = ("RETRACE_STATE", "DVC_ROOT", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID")
"""Environment variables that would lead a run back to the state of the project."""


def worktree_environment(folder: Path, is_tracked: bool = True) -> dict[str, str]:
    """Tracking goes to the project's store or nowhere; all other files of the run stay in its worktree."""
    kept = {name: value for name, value in environment().items() if name not in LEFT_OUT}
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Resolved here: in the worktree the default would be another database.
    tracking = {"MLFLOW_TRACKING_URI": tracking_uri()} if is_tracked else {"RETRACE_TRACKING": "off"}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **tracking}


def remove_checkout(root: Path, folder: Path) -> None:
    """Removes the worktree with everything in it; does nothing where there is none."""
    shutil.rmtree(folder, ignore_errors=True)
    # The folder is removed first: `git worktree remove` rejects one with changes in it.
    git(root, "worktree", "prune")
