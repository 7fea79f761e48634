"""Rejects the import of a source that has changed since a stage started: in its process, and in its child processes.

Workers, ranks, Ray actors and vLLM's processes import later than the stage, some of them in the middle of their work.
The stage passes them the state of the sources in an environment variable, which `stages/__init__.py` reads. In the
stage itself it starts a guard that first only records imports, until the sources are known.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.foundations.errors import UserError

VARIABLE = "RETRACE_CODE"
ROOT = Path(__file__).resolve().parents[2]
DIGITS = 16
"""Digits of a SHA-256: all sources of a stage must fit into one variable, which Linux limits to 128 KiB."""

Signature = tuple[int, int, int, int]
"""Inode, size, and times of the last write and the last change: writing the old content back changes it too."""
Sources = Mapping[str, Sequence[int | str]]
"""Path under the project -> the beginning of its source's hash (see `fingerprints`), and its signature."""


def signature(file: str | Path) -> Signature:
    """Raises FileNotFoundError."""
    status = os.stat(file)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class CodeGuard(importlib.abc.MetaPathFinder):
    """Finds no module. Raises UserError for one whose source differs from that of `sources`; accepts all others."""

    def __init__(self, sources: Sources) -> None:
        self.sources, self._is_reading = sources, False
        self.imported: dict[str, Signature] = {}
        """Signatures of sources just before they were imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        # To read a changed source, `_hash` imports modules itself: those must not be checked again.
        if name.partition(".")[0] != "stages" or self._is_reading:
            return
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if not spec or not spec.origin:
            return
        # A link to the project must not hide its sources: ROOT is resolved too.
        file = Path(spec.origin).resolve()
        source = os.path.relpath(file, ROOT)
        # Taken before Python reads the file: an edit in between then differs from it, and is noticed later.
        self.imported[source] = signature(file)
        digest, *known = self.sources.get(source, [""])
        if not known or self.imported[source] == tuple(known):
            return
        # The hash resolves relative imports, which count from the package and not from the module.
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        # A new signature alone is not a change of code: comments and docstrings may be edited while a stage runs.
        if self._hash(file, package)[:DIGITS] != digest:
            raise UserError(f"code has changed since this stage started: {file}. Run `dvc repro` again")

    def _hash(self, file: Path, package: str) -> str:
        self._is_reading = True
        try:
            # Imported here, because it costs a worker time and memory: signatures usually agree.
            from stages.foundations.definitions import read_source

            return read_source(file, package).sha256
        finally:
            self._is_reading = False


def guard_environment() -> dict[str, str]:
    """Returns the variable, if it is set: for a process that gets a separate environment."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def guard_this_process() -> CodeGuard:
    """Starts the guard of this process's imports, if the variable is set."""
    for guard in sys.meta_path:
        if isinstance(guard, CodeGuard):
            return guard
    # First among the finders: one in front of it would import a changed source without a check.
    sys.meta_path.insert(0, guard := CodeGuard(json.loads(os.environ.get(VARIABLE, "{}"))))
    return guard
