"""Virtual environments that have exactly the packages of some groups of requirements.lock, made without an installer.

They hold links to the packages of this interpreter's environment: what belongs to other groups cannot be imported, and
has no metadata. Compiled files are shared, so an import takes no longer than here.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipelines.commands.doctor import _normal
from pipelines.environment import lock_group, read_lock

PROJECT = Path(__file__).resolve().parents[2]
ALWAYS = ("retrace", "pip")
"""In every environment of set-up; the packages of torch's CUDA build (group `cuda`) and uv are, too."""


def link_environment(folder: Path, groups: Iterable[str], lock: str = "") -> Path:
    """Makes the environment in `folder` and returns its Python. `lock` replaces the text of requirements.lock.

    AssertionError when a locked package of the groups is not installed here: `make test` installs all groups.
    """
    pins = read_lock(lock or (PROJECT / "requirements.lock").read_text())
    always = {*ALWAYS, *_names(pins["installer"]), *_names(pins["cuda"])}
    wanted = _names(line for group in groups for line in pins[lock_group(group)])
    # `sys.path` would be wrong: after an import of setuptools it also has the packages that setuptools brings along.
    found = importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])
    installed = {_normal(one.metadata["Name"]): one for one in found}
    unconditional = _names(line for group in groups for line in pins[lock_group(group)] if " ; " not in line)
    assert not (missing := unconditional - installed.keys()), f"not installed here: {missing}"
    kept = [one for name, one in installed.items() if name in wanted | always]
    others = [one for name, one in installed.items() if name not in wanted | always]
    venv.EnvBuilder(symlinks=True).create(folder)
    site = next((folder / "lib").glob("python*/site-packages"))
    for name in _links(_files(kept), _files(others)):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    for program in _programs(kept):
        (folder / "bin" / program.name).symlink_to(program)
    # A confined worker may read what is in the folders `lib` and `lib64` of its environment: also what the links name.
    (folder / "lib64").unlink(missing_ok=True)
    (folder / "lib64").symlink_to(Path(sys.prefix) / "lib")
    return folder / "bin" / "python"


def _names(lines: Iterable[str]) -> set[str]:
    return {_normal(line.partition("==")[0]) for line in lines}


def _files(distributions: Iterable[importlib.metadata.Distribution]) -> Iterator[str]:
    """Yields the files in site-packages, as RECORD lists them, without those elsewhere (../../../bin)."""
    for one in distributions:
        for line in (one.read_text("RECORD") or "").splitlines():
            name = line.partition(",")[0]
            if not name.startswith((os.pardir, os.sep)):
                yield name


def _programs(distributions: Iterable[importlib.metadata.Distribution]) -> Iterator[Path]:
    """Yields the programs of the distributions, such as `ruff`, but no scripts, which name another Python."""
    for one in distributions:
        for line in (one.read_text("RECORD") or "").splitlines():
            path = Path(sysconfig.get_path("purelib"), line.partition(",")[0]).resolve()
            if line.startswith(os.pardir) and path.parent.name == "bin" and path.read_bytes()[:2] != b"#!":
                yield path


def _links(kept: Iterable[str], others: Iterable[str]) -> set[str]:
    """Returns the outermost folders that have no file of `others`, and the files that are in no such folder."""
    mixed = {parent for file in others for parent in _parents(file)}
    found = set()
    for file in kept:
        top = file.partition("/")[0]
        # Nearly all packages have a folder of their own.
        if top in mixed:
            found.add(next((parent for parent in _parents(file) if parent not in mixed), file))
        elif top != "__pycache__":
            found.add(top)
    return found


def _parents(file: str) -> list[str]:
    """Returns the folders of a file, the outermost first."""
    parts = file.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
