"""Settings of this machine: where things lie here. None of them is part of a result, so none stands in params.yaml."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from stages.foundations.errors import UserError
from stages.foundations.yaml_text import load_yaml

FILE = "machine.yaml"
"""Beside params.yaml, left out of git: `mirror: /data/mirror`, a path from the project's root or an absolute one."""
MIRROR_VARIABLE = "RETRACE_MIRROR"
MIRROR_BESIDE = Path("../shared/data/mirror")


def from_root(path: str | Path) -> Path:
    """Paths count from the project's root, also where DVC runs a copy of the tree."""
    return Path(os.environ.get("DVC_ROOT") or ".") / path


def mirror_folder(root: Path | None = None) -> Path | None:
    """The folder in which a file is named by its sha256, looked at before the network; None where there is none.

    `$RETRACE_MIRROR` comes first (empty: none), then `mirror` in machine.yaml, then `../shared/data/mirror`.
    `root` is the project whose machine.yaml counts, by default the one that runs this stage. Raises UserError
    where the named one is no folder, or machine.yaml holds anything else.
    """
    named = os.environ.get(MIRROR_VARIABLE)
    if named is not None:
        return _folder(from_root(named), f"${MIRROR_VARIABLE}") if named else None
    root = root or from_root("")
    settings = root / FILE
    if settings.is_file():
        try:
            content = load_yaml(settings.read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{settings} is no YAML ({error}): it holds one line, `mirror: FOLDER`") from None
        if not isinstance(content, dict) or not isinstance(content.get("mirror"), str) or len(content) > 1:
            raise UserError(
                f"{settings} holds {content!r}, but it may hold `mirror: FOLDER` and nothing else"
            )
        return _folder(root / content["mirror"], f"`mirror` in {settings}")
    beside = root / MIRROR_BESIDE
    return beside.absolute() if beside.is_dir() else None


def _folder(folder: Path, said: str) -> Path:
    if not folder.is_dir():
        raise UserError(f"{said} names {folder}, which is no folder here: correct it, or take it away")
    return folder.absolute()


def share_mirror(root: Path, folder: Path) -> None:
    """A checkout elsewhere finds the mirror of the project at `root`; its bytes are checked wherever it lies."""
    mirror = mirror_folder(root)
    if mirror is not None:
        (folder / FILE).write_text(yaml.safe_dump({"mirror": str(mirror)}), encoding="utf-8")
