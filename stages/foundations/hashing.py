"""Content hashes in DVC's own terms, so that a digest seen in MLflow or a checkpoint is the one in `dvc.lock`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def dvc_md5(path: Path) -> str:
    """MD5 of a file, or DVC's directory hash (`<md5>.dir`): the MD5 of the JSON list of its files' hashes.

    Raises FileNotFoundError when `path` does not exist. `.dvcignore` is not consulted: outputs of stages hold
    no ignored files.
    """
    if not path.is_dir():
        return _file_md5(path)
    entries = [
        {"md5": _file_md5(file), "relpath": file.relative_to(path).as_posix()}
        for file in path.rglob("*")
        if file.is_file()
    ]
    entries.sort(key=lambda entry: entry["relpath"])
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode()).hexdigest() + ".dir"


def _file_md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def stable_hash(content: Any) -> str:
    """SHA-256 of anything JSON can hold, independent of key order."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
