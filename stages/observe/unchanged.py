"""Inside `dvc repro`, a stage may succeed only if DVC will record the inputs that the stage ran with.

Before a stage starts, its inputs are hashed and compared with `dvc.lock`: DVC does not notice bit rot.

DVC reads params.yaml and hashes the dependencies of a stage after its command has ended. For the code it uses
data/code/<stage>.json. So an edit during the run would be recorded, and shared by the run cache, with the result of the
inputs before the edit. DVC records nothing for a stage that fails. The outputs that it has already written
cannot count as valid: DVC compares them with the hashes in dvc.lock, and removes them before it runs the stage
again.
"""

from __future__ import annotations

import ctypes
import fnmatch
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stages.foundations.code_guard import DIGITS, VARIABLE, Signature, guard_this_process, signature
from stages.foundations.dvc_lock import lock_of, recorded_outs, run_key, stages_on_record
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, folder_md5
from stages.foundations.fingerprints import LIBRARY, Memory, Project, Reach, stage_roots
from stages.foundations.machine import PROJECT, state_folder, variables_set
from stages.foundations.params import hold, read_yaml
from stages.foundations.recorded_files import MEMORY, RUN, FileHashes, changed_files, files_of_folder
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.observe.lifetime import dvc_run
from stages.observe.progress import say

PARAMS, GRAPH, IGNORED = Path("params.yaml"), Path("dvc.yaml"), Path(".dvcignore")
FINGERPRINTS = "data/code/"
MOST_NAMED = 5

IN_MODIFY, IN_ATTRIB, IN_DELETE_SELF, IN_Q_OVERFLOW = 0x2, 0x4, 0x400, 0x4000
IN_NAMES = 0x40 | 0x80 | 0x100 | 0x200
"""Events of inotify(7); the last ones are of names in a folder: moved from, moved to, made, removed."""


@contextmanager
def unchanged_inputs(address: str) -> Iterator[None]:
    """Compares the stage's parameters, code and dependencies after the block with those before it.

    `address` is DVC's name of the stage (`rl_round@rl_1`). In the block, params.yaml reads as at its start. A
    module that is imported in the block, or in a process that is started there, must be the one that the fingerprint
    covers.
    UserError before the block when the code is not that of data/code/<stage>.json, and when an output of an earlier
    stage that this one depends on has other bytes than `dvc.lock` records; it names the file. UserError after the block
    when a parameter that dvc.yaml lists for the stage, a source or a dependency has changed; it names the changes. A
    dependency that was written has changed even if it has its old content again; one that was only touched has not.
    Nothing is compared where the working folder has no dvc.yaml.
    """
    if not GRAPH.exists():
        yield
        return
    # Before any other code reads params.yaml: from here on the whole process sees one version of it.
    hold(PARAMS)
    params = read_yaml(PARAMS)
    stages = stages_of(read_definitions(GRAPH), params)
    stage = _stage_at(address, stages)
    with _Files(stage.deps) as files:
        # Watched before they are hashed: an edit in between must be noticed.
        _require_recorded_inputs(stage, stages)
        with _unchanged_code(stage, params):
            yield
        changed = _changed_values(stage.params, params, read_yaml(PARAMS, is_held=False))
        changed += files.changed()
    if changed:
        raise UserError(
            f"{address} ran with other inputs than are there now, so its result is not recorded. Changed while it ran: "
            f"{_listed(changed)}. Run `dvc repro` again"
        )


def key_on_record(address: str) -> str:
    """Returns `run_key` of the stage as `dvc.lock` will have it after success; "" if no dvc.yaml declares the stage.

    Its dependencies exist: DVC has brought them up to date. Outputs of stages need no reading, as in DVC.
    """
    if not GRAPH.exists():
        return ""
    params = read_yaml(PARAMS)
    stages = stages_of(read_definitions(GRAPH), params)
    stage, made = _stage_at(address, stages), _recorded(stages)

    def digest(dep: str) -> str:
        if dep in made or not os.path.isdir(dep):
            return made.get(dep) or dvc_md5(Path(dep))
        files = _files_in([dep])
        return folder_md5({os.path.relpath(file, dep): made.get(file) or dvc_md5(Path(file)) for file in files})

    return run_key(
        stage.address, {dep: digest(dep) for dep in stage.deps}, {name: _value(params, name) for name in stage.params}
    )


def _recorded(stages: Iterable[GraphStage]) -> dict[str, str]:
    """Returns path -> DVC's hash of every output of these stages that `dvc.lock` has."""
    return recorded_outs(stages_on_record(lock_of(Path.cwd()), (stage.address for stage in stages)))


def _require_recorded_inputs(stage: GraphStage, stages: Iterable[GraphStage]) -> None:
    hashes = FileHashes(state_folder() / MEMORY, os.environ.get(RUN) or dvc_run())
    changed = [
        one
        for out, digest in _recorded(stages).items()
        if any(out == dep or out.startswith(f"{dep}/") or dep.startswith(f"{out}/") for dep in stage.deps)
        for one in changed_files(Path(out), digest, hashes, _files_of_folder)
    ]
    hashes.keep()
    if changed:
        raise UserError(
            f"{stage.address} does not run, because an input is not what an earlier stage wrote: "
            f"{_listed([str(one) for one in changed])}. The disk or another program changed it. `make repro` makes it "
            "again; `dvc repro` may not notice the change"
        )


def _files_of_folder(digest: str) -> dict[str, str] | None:
    """Asks DVC for its cache: that takes a second, so it is done only to name the file of a folder that differs."""
    done = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], capture_output=True, text=True, check=False)
    return files_of_folder(Path(done.stdout.strip()) if done.returncode == 0 else None, digest)


def _stage_at(address: str, stages: Iterable[GraphStage]) -> GraphStage:
    name = address.rpartition(":")[2]  # of `../dvc.yaml:sft`, as DVC writes it in another working folder
    for stage in stages:
        if stage.address == name:
            return stage
    raise UserError(f"params.yaml and dvc.yaml no longer have the stage {name}: run `dvc repro` again")


@contextmanager
def _unchanged_code(stage: GraphStage, params: Mapping[str, Any]) -> Iterator[None]:
    """Nothing is compared for a stage that does not depend on a fingerprint, such as `code`."""
    recorded = next((dep for dep in stage.deps if dep.startswith(FINGERPRINTS)), None)
    if recorded is None:
        yield
        return
    memory: Memory = {}
    name = Path(recorded).stem
    known = _signatures([str(PROJECT / "stages")])  # before they are read: an edit in between must be detected
    project = Project(PROJECT, params, memory)
    before, reach = project.fingerprint(name), project.reach(*stage_roots(PROJECT, name))
    changed = _differences(json.loads(Path(recorded).read_text(encoding="utf-8")), before)
    if changed:
        raise UserError(
            f"code has changed since stage `code` ran: {_definitions(changed, reach)}. Run `dvc repro` again, and "
            "`dvc repro --force code` first if it says the same"
        )
    _tell_other_libraries(before)
    sources = {
        os.path.relpath(file, PROJECT): (source.sha256[:DIGITS], *known[str(file)])
        for file, source in memory.items()
        if str(file) in known
    }
    guard = guard_this_process()
    changed = [file for file, known in guard.imported.items() if known != sources.get(file, ("", *known))[1:]]
    if changed:
        raise UserError(f"code has changed while {stage.address} started: {_listed(changed)}. Run `dvc repro` again")
    # Until now the guard only recorded imports; from here on it rejects changed ones.
    guard.sources = sources
    try:
        with (
            _Files(map(str, reach.others)) as files,
            variables_set({VARIABLE: json.dumps(sources, separators=(",", ":"))}),
        ):
            yield
            templates = [os.path.relpath(file, PROJECT) for file in files.changed()]
    finally:
        # A process that runs several stages, as tests do, must not bind the next one to these sources.
        guard.sources = {}
    now = _signatures(map(str, memory))
    # Only files written meanwhile are parsed again.
    untouched = {file: source for file, source in memory.items() if known[str(file)] == now.get(str(file))}
    changed = _differences(before, Project(PROJECT, params, untouched).fingerprint(name))
    if changed or templates:
        raise UserError(
            f"code has changed while {stage.address} ran, so its result is not recorded: "
            f"{_definitions([*templates, *changed], reach)}. Run `dvc repro` again"
        )


def _definitions(names: Iterable[str], reach: Reach) -> str:
    """Returns names in a fingerprint, with their files. `references` is named only if nothing else has changed."""
    changed = list(dict.fromkeys(names))
    return _listed([reach.where(name) for name in changed if name != "references" or len(changed) == 1])


def _tell_other_libraries(code: Mapping[str, str]) -> None:
    """Returns a line where the installed version of a library differs from the fingerprint's."""
    other = []
    for name, pinned in code.items():
        if name.startswith(LIBRARY):
            with suppress(PackageNotFoundError):
                installed = version(name.removeprefix(LIBRARY))
                if installed.partition("+")[0] not in pinned.split(", "):
                    other.append(f"{name.removeprefix(LIBRARY)} {installed}, locked {pinned}")
    if other:
        say(f"WARNING: dvc.lock will record the locked versions, but others are installed: {_listed(other)}")


class _Files:
    """Files, and folders of files, in their present state. Reports which have changed since.

    A changed signature without a write, but with new attributes (`touch`, `chmod`), is not a change. Neither is what
    happens to other names of the same file: DVC links a file of its cache into each worktree. Where writes cannot be
    watched it is a change: outside Linux, beyond the kernel's limits, and in writes of other machines.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths, self._watched = list(paths), {}
        self._events = -1
        if sys.platform == "linux":
            # Python has no inotify, but the C library that is loaded has.
            libc = ctypes.CDLL(None)
            self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            names = _signatures(self._paths) if self._events >= 0 else ()
            wanted = dict.fromkeys({os.path.dirname(name) or "." for name in names}, IN_NAMES)
            wanted |= dict.fromkeys(names, IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF)
            for name, events in wanted.items():
                watch = libc.inotify_add_watch(self._events, os.fsencode(name), events)
                # Two names of one file have one watch.
                self._watched.setdefault(watch, []).append(name)
        # After the watches are set: one of them sees a write between the two.
        self._before = _signatures(self._paths)

    def changed(self) -> list[str]:
        now, touched = _signatures(self._paths), self._touched()
        return [name for name in _differences(self._before, now) if name not in touched]

    def _touched(self) -> set[str]:
        """Returns files for which the kernel reported only new attributes, under the name that they had."""
        events: dict[int, int] = {}
        renamed = set()
        while self._events >= 0:
            try:
                unread = os.read(self._events, 1 << 16)
            except BlockingIOError:
                break
            while unread:
                # struct inotify_event of inotify(7): watch, mask, cookie, length of the name that follows.
                watch, event, _, length = struct.unpack_from("iIII", unread)
                name = os.fsdecode(unread[16 : 16 + length].rstrip(b"\0"))
                events[watch] = events.get(watch, 0) | event
                if event & IN_NAMES:
                    renamed |= {os.path.normpath(os.path.join(folder, name)) for folder in self._watched[watch]}
                unread = unread[16 + length :]
        # The kernel's queue was full. Without all events, every new signature counts as a change.
        if any(event & IN_Q_OVERFLOW for event in events.values()):
            return set()
        only = [name for watch, event in events.items() if event == IN_ATTRIB for name in self._watched.get(watch, ())]
        return {name for name in only if os.path.normpath(name) not in renamed}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        if self._events >= 0:
            os.close(self._events)


def _signatures(paths: Iterable[str]) -> dict[str, Signature]:
    return {file: signature(file) for file in _files_in(paths)}


def _files_in(paths: Iterable[str]) -> Iterator[str]:
    """Each file, and each file in a folder, except those that .dvcignore names."""
    ignored = [line.rstrip("/") for line in IGNORED.read_text().split("\n")] if IGNORED.exists() else []
    # A part of gitignore's rules: plain names and `*`, which is all that this project's file has.
    patterns = [line for line in ignored if line and not line.startswith("#")]
    for path in paths:
        folders = os.walk(path) if os.path.isdir(path) else [(os.path.dirname(path), [], [os.path.basename(path)])]
        for folder, subfolders, names in folders:
            subfolders[:] = [name for name in subfolders if not _matches(name, patterns)]
            for name in names:
                file = os.path.join(folder, name)
                if not _matches(name, patterns) and os.path.exists(file):
                    yield file


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _changed_values(names: Iterable[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [change for name in names for change in _changes(name, _value(before, name), _value(after, name))]


def _changes(name: str, before: Any, after: Any) -> list[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = dict.fromkeys([*before, *after])
        return [one for key in keys for one in _changes(f"{name}.{key}", before.get(key), after.get(key))]
    return [] if before == after else [f"`{name}` in params.yaml (was {_short(before)}, is {_short(after)})"]


def _value(params: Any, name: str) -> Any:
    for part in name.split("."):
        params = params.get(part) if isinstance(params, Mapping) else None
    return params


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
