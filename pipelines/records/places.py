"""Where finished stages are on record: the working tree, a commit, another checkout, the kept results of an ablation.

Each has a `dvc.lock`. Its files lie beside it, in git (metrics and curves), or in DVC's cache under their hash.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from stages.foundations.errors import UserError
from stages.foundations.files import stable_hash
from stages.foundations.stage import about
from stages.foundations.yaml_text import load_yaml

LOCK = "dvc.lock"


@dataclass(frozen=True)
class Entry:
    """A stage of a `dvc.lock`: what it was made from and what came out, by DVC's hashes."""

    name: str
    """DVC's address: `rl_round@rl_1`."""
    command: str
    deps: Mapping[str, str]
    params: Mapping[str, Any]
    outs: Mapping[str, str]
    sizes: Mapping[str, int]
    """Bytes of dependencies and outputs."""

    @property
    def stage(self) -> str:
        return self.name.partition("@")[0]

    @property
    def item(self) -> str:
        """`rl_1` of `rl_round@rl_1`; "" for a stage that runs once."""
        return self.name.partition("@")[2]

    @property
    def scores(self) -> str:
        """The policy that the stage scores; "" for others."""
        return self.item if about(self.stage).score_keys else ""

    @cached_property
    def key(self) -> str:
        """The same for equal stages wherever they ran: name, dependencies and parameters; not paths in the command."""
        return stable_hash({"name": self.name, "deps": dict(self.deps), "params": self.params})

    @property
    def code(self) -> str:
        """Hash of the fingerprint of the code that it ran; "" where it has none."""
        return self.deps.get(f"data/code/{self.stage}.json", "")


@dataclass(frozen=True)
class Place:
    """One `dvc.lock` and where its files are to be had."""

    told: str
    root: Path
    """The project whose git and DVC cache are asked."""
    folder: Path | None
    """Where files lie; None for a commit."""
    is_kept: bool
    """True where `data/` is left out of the paths, as in an ablation's results."""
    commit: str
    """Set for a commit, and for an ablation's run; "" in a working tree."""
    entries: Mapping[str, Entry]
    about: Mapping[str, Any]
    """What an ablation wrote about its run; empty elsewhere."""

    def file(self, path: str) -> Path | None:
        """A file of this place: itself, or the object in DVC's cache; None when neither is there."""
        if self.folder is not None:
            own = self.folder / (path.removeprefix("data/") if self.is_kept else path)
            if own.exists():
                return own
        digest = next((entry.outs[path] for entry in self.entries.values() if path in entry.outs), "")
        cached = cached_object(self.root, digest) if digest else None
        return cached if cached and cached.exists() else None

    def content(self, path: str) -> bytes | None:
        """Bytes of a file of this place, git asked last (metrics and curves are kept there)."""
        found = self.file(path)
        if found:
            return found.read_bytes()
        return git_bytes(self.root, "show", f"{self.commit}:{path}") if self.commit else None


def read_entries(text: str | bytes, told: str) -> dict[str, Entry]:
    """The stages of a `dvc.lock`; UserError when it is no such file."""
    try:
        content = load_yaml(text)
        return {name: _entry(name, stage) for name, stage in (content or {}).get("stages", {}).items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())  # YAML's has several lines
        raise UserError(
            f"the dvc.lock of {told} is not readable ({reason}): take it from git, or run `dvc repro`"
        ) from None


def _entry(name: str, stage: Mapping[str, Any]) -> Entry:
    params = {key: value for group in (stage.get("params") or {}).values() for key, value in group.items()}
    files = [*(stage.get("deps") or []), *(stage.get("outs") or [])]
    return Entry(
        name,
        " ".join(stage["cmd"].split() if isinstance(stage["cmd"], str) else stage["cmd"]),
        {item["path"]: item["md5"] for item in stage.get("deps") or []},
        params,
        {item["path"]: item["md5"] for item in stage.get("outs") or []},
        {item["path"]: item.get("size", 0) for item in files},
    )


def working_place(root: Path, told: str = "working tree", project: Path | None = None) -> Place:
    """A project folder as it lies there; without a `dvc.lock` it has no entries."""
    lock = root / LOCK
    entries = read_entries(lock.read_bytes(), str(root)) if lock.exists() else {}
    own = root if project is None or (root / ".dvc").is_dir() else project
    return Place(told, own, root, False, "", entries, {})


def place_at(root: Path, revision: str) -> Place:
    """What a git revision has on record. UserError when there is no such revision or it has no `dvc.lock`."""
    commit = (git_bytes(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") or b"").decode().strip()
    if not commit:
        raise UserError(
            f"{root} has no git revision {revision!r}: `git log --oneline` and `git tag` show what there is"
        )
    text = git_bytes(root, "show", f"{commit}:{LOCK}")
    if text is None:
        raise UserError(f"git revision {revision!r} has no dvc.lock: nothing had run there, or it was not committed")
    return Place(f"git {revision}", root, None, False, commit, read_entries(text, revision), {})


def places_in_git(root: Path, tell: Callable[[str], object] = str) -> Iterator[Place]:
    """Every commit of this branch that changed `dvc.lock`, oldest first. Nothing without git.

    A lock that is not readable, such as one committed with a merge's conflict in it, is told and passed over.
    """
    listed = git_bytes(root, "log", "--reverse", "--format=%H", "--", LOCK) or b""
    for commit in listed.decode().split():
        text = git_bytes(root, "show", f"{commit}:{LOCK}")
        if text is None:  # the commit removed it
            continue
        try:
            entries = read_entries(text, told := f"git {commit[:12]}")
        except UserError as error:
            tell(str(error))
            continue
        yield Place(told, root, None, False, commit, entries, {})


def kept_place(root: Path, folder: Path) -> Place:
    """A finished run of an ablation, out of its results folder. UserError when it is not whole."""
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        text = (folder / LOCK).read_bytes()
        told = f"ablation {about['ablation']}, {about['variant']} seed {about['seed']}"
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} is no finished run of an ablation ({error}): run `retrace ablate` again") from None
    return Place(told, root, folder, True, about.get("commit", ""), read_entries(text, told), about)


def kept_places(root: Path, state: Path, tell: Callable[[str], object] = str) -> Iterator[Place]:
    """The finished runs of all ablations, in the order of their folders; broken ones are told and passed over."""
    for file in sorted(state.glob("ablations/*/results/*/run.json")):
        try:
            yield kept_place(root, file.parent)
        except UserError as error:
            tell(str(error))


@cache
def _cache_folder(root: Path) -> Path | None:
    from pipelines.runtime.checkouts import cache_folder

    return cache_folder(root) if (root / ".dvc").is_dir() else None


def cached_object(root: Path, digest: str) -> Path | None:
    """Where DVC's cache of a project holds a file; None without a cache, or for a folder's hash."""
    folder = _cache_folder(root)
    if folder is None or digest.endswith(".dir"):
        return None
    return folder / "files" / "md5" / digest[:2] / digest[2:]


def git_bytes(root: Path, *arguments: str) -> bytes | None:
    """What git prints; None when it fails, or is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout
