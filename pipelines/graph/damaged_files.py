"""Finds files that have lost their bytes to the disk or to another program, and lets DVC make them again.

`make repro` looks at all outputs on record before and after DVC, because DVC does not read what it restores. It removes
a damaged object of the cache, as DVC does where it notices one; then the stage runs again. A damaged output gets a new
time, so that DVC reads it. `retrace verify` looks at all of the cache and of data/, and changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from pipelines.graph.console import graph_stages
from pipelines.runtime.checkouts import cache_folder
from stages.foundations.dvc_lock import lock_of, recorded_outs, stages_on_record
from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml
from stages.foundations.machine import state_folder
from stages.foundations.recorded_files import (
    MEMORY,
    RUN,
    FileHashes,
    changed_files,
    files_of_folder,
    object_path,
    require_maker,
)
from stages.observe.git import ask_git

MOST_ROUNDS = 3
"""Each round may restore further objects. A disk that damages files at every writing ends the run."""
_DIGEST = re.compile(r"[0-9a-f]{32}(\.dir)?")


def run_and_repair(
    root: Path,
    run: Callable[[], int],
    tell: Callable[[str], object],
    lock: Callable[[], AbstractContextManager] = nullcontext,
) -> int:
    """Calls `run`, which runs DVC in `root`, and returns its exit code; again if DVC has then to make a file anew.

    Its processes share the hashes of this run. `lock` returns the project's lock if the caller does not hold it:
    another DVC may be writing `dvc.lock`. UserError for a file that stays damaged, and for a table of another
    stage (`require_maker`).
    """
    # One name for all processes below: each file is read once.
    before = os.environ.get(RUN)
    os.environ[RUN] = os.urandom(8).hex()
    try:
        with lock():
            remove_damage(root, tell)
        for _ in range(MOST_ROUNDS):
            code = run()
            # Also after a failure: a stage refuses damaged inputs.
            with lock():
                damage = remove_damage(root, tell)
                if not damage:
                    require_makers(root)
                    return code
        raise UserError(f"{damage[0]} is damaged again after {MOST_ROUNDS} runs: check the disk and its cables")
    finally:
        os.environ.pop(RUN)
        if before is not None:
            os.environ[RUN] = before


def remove_damage(root: Path, tell: Callable[[str], object]) -> list[Path]:
    """Looks at the outputs on record of the present graph, and makes DVC notice those with other bytes.

    Returns damaged objects of the cache, which are removed. An output that differs, but whose object is whole, may have
    been edited; DVC decides about it.
    """
    cache, hashes = cache_folder(root), _hashes(root)
    removed: dict[Path, None] = {}
    for path, digest in _outputs(root).items():
        removed |= dict.fromkeys(_damaged_objects(cache, digest, hashes))
        for changed in changed_files(root / path, digest, hashes, lambda of: files_of_folder(cache, of)):
            with suppress(OSError):  # missing, or another user's
                os.utime(changed.path)
    hashes.keep()
    for place in removed:
        place.unlink(missing_ok=True)
        tell(f"{place} was damaged: it is removed from DVC's cache, and the stage that made it runs again")
    return list(removed)


def require_makers(root: Path) -> None:
    """UserError for a table on record that another stage has made (`require_maker`)."""
    for path in _outputs(root):
        if path.endswith(".parquet") and (root / path).is_file():
            require_maker(root / path)


def find_damage(root: Path, with_outputs: bool) -> Iterator[str]:
    """Yields a sentence for each damaged file of DVC's cache and, with outputs, of data/.

    Files of data/ that no stage makes are compared with git's index. An entry of the run cache is named by its hash,
    except for sizes: these are compared with the objects.
    """
    cache, hashes = cache_folder(root), _hashes(root)
    sizes: dict[str, int] = {}
    for place in sorted((cache / "files" / "md5").glob("*/*")):
        digest = place.parent.name + place.name
        # A killed DVC leaves files with other names.
        if not _DIGEST.fullmatch(digest):
            continue
        sizes[digest] = place.stat().st_size
        if (found := hashes(place)) != digest.removesuffix(".dir"):
            yield f"{place} has MD5 {found}"
    for digest in sizes:
        if digest.endswith(".dir") and (files := files_of_folder(cache, digest)):
            sizes[digest] = sum(sizes.get(one, 0) for one in files.values())
    for place in sorted((cache / "runs").glob("*/*/*")):
        if place.is_file() and (reason := _damage_of_entry(place, sizes)):
            yield f"{place} {reason}"
    if not with_outputs:
        return
    outputs = _outputs(root)
    for path, digest in outputs.items():
        yield from map(str, changed_files(root / path, digest, hashes, lambda of: files_of_folder(cache, of)))
    for line in ask_git(root, "ls-files", "--stage", "-z", "--", "data").split("\0"):
        head, _, path = line.partition("\t")
        file, is_made = root / path, any(path == out or path.startswith(f"{out}/") for out in outputs)
        if path and file.is_file() and not is_made and ask_git(root, "hash-object", "--", path) != head.split()[1]:
            yield f"{file} is not the file of git's index"


def _hashes(root: Path) -> FileHashes:
    # Without a run, as in `retrace verify`, everything is read.
    return FileHashes(state_folder() / MEMORY, os.environ.get(RUN, ""))


def _outputs(root: Path) -> dict[str, str]:
    """Returns path -> hash of the outputs of the present graph that `dvc.lock` has."""
    return recorded_outs(stages_on_record(lock_of(root), (stage.address for stage in graph_stages(root))))


def _damaged_objects(cache: Path, digest: str, hashes: FileHashes) -> Iterator[Path]:
    place = object_path(cache, digest)
    if not place.is_file():
        return
    if hashes(place) != digest.removesuffix(".dir"):
        yield place
    elif digest.endswith(".dir"):
        for one in (files_of_folder(cache, digest) or {}).values():
            yield from _damaged_objects(cache, one, hashes)


def _damage_of_entry(place: Path, sizes: dict[str, int]) -> str:
    """Returns what is wrong with an entry of DVC's run cache; "" for a whole one."""
    from dvc.stage.cache import _get_cache_hash
    from dvc.utils.serialize import dumps_yaml

    text = place.read_bytes()
    try:
        entry = load_yaml(text)
        # In this order: the hash of the key changes the entry.
        is_whole = dumps_yaml(entry).encode() == text and _get_cache_hash(entry) == place.name
        files = [*entry["deps"], *entry["outs"]]
        wrong = next((one for one in files if one.get("size") != sizes.get(one["md5"], one.get("size"))), None)
        is_whole = is_whole and _get_cache_hash(entry, key=True) == place.parent.name
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"is no entry of the run cache ({' '.join(str(error).split())[:80]})"
    if not is_whole:
        return f"is not the entry of its name (MD5 {hashlib.md5(text).hexdigest()})"
    return f"has the size {wrong.get('size')} for {wrong['path']}" if wrong else ""
