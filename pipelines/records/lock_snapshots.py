"""Places with finished stages on record: the working tree, a commit, another checkout, an ablation's kept results.

Each has a `dvc.lock`. Its files are beside it, in git (metrics and curves), or in DVC's cache under their hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from pipelines.runtime.checkouts import cache_folder
from stages.foundations.dvc_lock import LOCK, LockedStage, lock_of, read_lock, recorded_outs
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5
from stages.foundations.recorded_files import object_path
from stages.foundations.stage import about
from stages.observe.git import ask_git, file_at

T = TypeVar("T")


@dataclass(frozen=True)
class LockSnapshot:
    """One `dvc.lock` and the places of its files."""

    label: str
    root: Path
    """The project whose git and DVC cache are used."""
    entries: Mapping[str, LockedStage]
    folder: Path | None = None
    """Folder of the files; None for a commit."""
    commit: str = ""
    """Set for a commit, and for an ablation's run."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """An ablation's record of its run; empty elsewhere."""

    @property
    def is_kept(self) -> bool:
        """True for an ablation's results: `data/` is left out of their paths."""
        return bool(self.about)

    @cached_property
    def outs(self) -> dict[str, str]:
        """Path -> DVC's hash of every output."""
        return recorded_outs(self.entries)

    @cached_property
    def graded(self) -> dict[str, LockedStage]:
        """Policy -> the stage that scores it."""
        return {one.item: one for one in self.entries.values() if one.item and about(one.stage).score_keys}

    def file(self, path: str) -> Path | None:
        """Returns a file of this snapshot: itself, or the object in DVC's cache; None when neither exists."""
        # An ablation keeps verdicts but no responses: those come from the cache, under their hash.
        return self._own(path) or self._cached(self.outs.get(path, ""))

    def _own(self, path: str) -> Path | None:
        own = self.folder / (path.removeprefix("data/") if self.is_kept else path) if self.folder else None
        return own if own and own.exists() else None

    def files(self, path: str) -> dict[str, Path] | None:
        """Returns the files of an output as they are on record, by path in it ("" for an output that is a file).

        From DVC's cache, else from the working tree if it has the same bytes; None when neither has them.
        """
        digest = self.outs[path]
        if listing := self._cached(digest):
            # DVC stores a folder as a JSON list of its files. The hash of that list ends with `.dir`.
            if not digest.endswith(".dir"):
                return {"": listing}
            files = {one["relpath"]: self._cached(one["md5"]) for one in json.loads(listing.read_text())}
            if all(files.values()):
                return files
        # The working tree may have changed: only equal bytes are the output on record.
        here = (self.folder or self.root) / path
        if not here.exists() or dvc_md5(here) != digest:
            return None
        if here.is_file():
            return {"": here}
        return {file.relative_to(here).as_posix(): file for file in here.rglob("*") if file.is_file()}

    def _cached(self, digest: str) -> Path | None:
        found = cached_object(self.root, digest) if digest else None
        return found if found and found.is_file() else None

    def content(self, path: str) -> bytes | None:
        """Bytes of a file of this snapshot; git is the last place searched (metrics and curves are kept there)."""
        found = self.file(path)
        if found:
            return found.read_bytes()
        return file_at(self.root, self.commit, path) if self.commit else None

    def recorded_ms(self, entry: LockedStage) -> int:
        """Returns when the stage was put on record: its metric file's time, or the commit's; 0 for unknown."""
        for path in entry.outs:
            if path.startswith("data/metrics/") and (own := self._own(path)):
                return int(own.stat().st_mtime * 1000)
        committed = ask_git(self.root, "show", "-s", "--format=%ct", self.commit) if self.commit else ""
        return 1000 * int(committed or 0)


def working_snapshot(root: Path, label: str = "working tree", project: Path | None = None) -> LockSnapshot:
    """Returns the snapshot of a project folder; without a `dvc.lock` it has no entries."""
    # A copied checkout may have no `.dvc`: the cache of the calling project may still have its files.
    own = root if project is None or (root / ".dvc").is_dir() else project
    return LockSnapshot(label, own, lock_of(root), root)


def snapshot_at(root: Path, revision: str) -> LockSnapshot:
    """Returns the record of a git revision or of a DVC experiment. UserError when there is none, or no `dvc.lock`."""
    # An annotated tag is a separate object: `^{commit}` gives the commit it points to.
    commit = ask_git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") or _experiment(root, revision)
    if not commit:
        raise UserError(
            f"{root} has no git revision or DVC experiment {revision!r}: `git log --oneline`, `git tag` and "
            "`dvc exp list --all-commits` show what there is"
        )
    text = file_at(root, commit, LOCK)
    if text is None:
        raise UserError(f"git revision {revision!r} has no dvc.lock: nothing had run there, or it was not committed")
    return LockSnapshot(f"git {revision}", root, read_lock(text, revision), commit=commit)


def _experiment(root: Path, name: str) -> str:
    """Returns the commit of an experiment of `dvc exp run`, "" where none has the name. UserError for more than one.

    DVC keeps it as refs/exps/<2 digits>/<38 digits>/<name>; the digits are the commit that the experiment started from.
    """
    lines = ask_git(root, "for-each-ref", "--format=%(objectname) %(refname)", "refs/exps").splitlines()
    found = dict(reversed(line.split(" ")) for line in lines if line.split("/")[4:] == [name])
    if len(found) > 1:
        # DVC makes random names, but `--name` may repeat one at another commit. The present commit's comes first.
        head = ask_git(root, "rev-parse", "HEAD")
        here = found.get(f"refs/exps/{head[:2]}/{head[2:]}/{name}")
        if here is None:
            commits = ", ".join(commit[:12] for commit in found.values())
            raise UserError(f"{len(found)} DVC experiments have the name {name!r}: use one of the commits {commits}")
        return here
    return next(iter(found.values()), "")


def readable(read: Callable[[Any], T | None], places: Iterable[Any], tell: Callable[[str], object]) -> Iterator[T]:
    """Yields what `read` finds; a place where it raises UserError is reported and skipped, one with None is skipped."""
    for place in places:
        try:
            found = read(place)
        except UserError as error:
            tell(str(error))
            continue
        if found is not None:
            yield found


def snapshots_in_git(root: Path, tell: Callable[[str], object] = str) -> Iterator[LockSnapshot]:
    """Yields every commit of this branch that changed `dvc.lock`, oldest first. Nothing without git.

    An unreadable lock, such as one committed with merge conflict marks in it, is reported and skipped.
    """

    def read(commit: str) -> LockSnapshot | None:
        text, label = file_at(root, commit, LOCK), f"git {commit[:12]}"
        # None: the commit removed it.
        return None if text is None else LockSnapshot(label, root, read_lock(text, label), commit=commit)

    return readable(read, ask_git(root, "log", "--reverse", "--format=%H", "--", LOCK).split(), tell)


def kept_snapshot(root: Path, folder: Path) -> LockSnapshot:
    """Returns a finished run of an ablation, from its results folder. UserError when it is not complete."""
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        text = (folder / LOCK).read_bytes()
        label = f"ablation {about['ablation']}, {about['variant']} seed {about['seed']}"
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{folder} is no finished run of an ablation ({error}): run `retrace ablate` again") from None
    return LockSnapshot(label, root, read_lock(text, label), folder, about.get("commit", ""), about)


def kept_snapshots(root: Path, state: Path, tell: Callable[[str], object] = str) -> Iterator[LockSnapshot]:
    """The finished runs of all ablations, in the order of their folders; broken ones are reported and skipped."""
    files = sorted(state.glob("ablations/*/results/*/run.json"))
    return readable(lambda file: kept_snapshot(root, file.parent), files, tell)


@cache
def _cache_folder(root: Path) -> Path | None:
    return cache_folder(root) if (root / ".dvc").is_dir() else None


def cached_object(root: Path, digest: str) -> Path | None:
    """Returns where DVC's cache of a project holds a file, or the list of a folder's files; None without a cache."""
    folder = _cache_folder(root)
    return object_path(folder, digest) if folder else None
