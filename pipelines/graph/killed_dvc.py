"""What a DVC that is killed while it writes leaves behind, and each later DVC would refuse to run from.

Two files: the table of outputs in use, and `dvc.lock`, which DVC writes anew, not atomically, after each stage.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from stages.foundations.files import write_text_atomically
from stages.foundations.yaml_text import load_yaml

SECONDS_TO_WRITE = 1.0
_STAGE = re.compile(r"^  \S.*:[ \t]*$", re.MULTILINE)
_ENTRIES = ("deps", "outs")


def repair_dvc_state(root: Path, say: Callable[[str], None]) -> None:
    """Removes a torn table of outputs in use, and the torn last stage of `dvc.lock`; says what it did.

    A file that is being written is given the time to become whole. What `dvc.lock` loses costs nothing: DVC's run
    cache has each stage that ran. Anything else that is wrong in it (the marks of a merge) is left for DVC to tell.
    """
    table = root / ".dvc" / "tmp" / "rwlock"
    if not _becomes(table, _is_json):
        say(f"removing {table}: a DVC was killed while it wrote it")
        table.unlink(missing_ok=True)
    lock = root / "dvc.lock"
    if not _becomes(lock, _is_lock_file):
        _drop_torn_stage(lock, say)


def _becomes(path: Path, is_whole: Callable[[str], bool]) -> bool:
    until = time.monotonic() + SECONDS_TO_WRITE
    while True:
        try:
            if is_whole(path.read_text(errors="replace")):
                return True
        except FileNotFoundError:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.1)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_lock_file(text: str) -> bool:
    try:
        content = load_yaml(text)
    except yaml.YAMLError:
        return False
    if not isinstance(content, dict) or content.get("schema") != "2.0":
        return False
    stages = content.get("stages", {})
    return isinstance(stages, dict) and all(map(_is_stage, stages.values()))


def _is_stage(stage: Any) -> bool:
    if not isinstance(stage, dict) or not isinstance(stage.get("cmd"), str | list):
        return False
    entries = [stage.get(name, []) for name in _ENTRIES]
    if not all(isinstance(listed, list) for listed in entries):
        return False
    has_paths = all(
        isinstance(one, dict) and isinstance(one.get("path"), str) for listed in entries for one in listed
    )
    params = stage.get("params", {})
    return (
        has_paths and isinstance(params, dict) and all(isinstance(values, dict) for values in params.values())
    )


def _drop_torn_stage(lock: Path, say: Callable[[str], None]) -> None:
    text = lock.read_text(errors="replace")
    starts = [found.start() for found in _STAGE.finditer(text)]
    kept = text[: starts[-1]] if starts else ""
    if len(starts) > 1 and _is_lock_file(kept):
        say(f"{lock}: dropping its last stage, which a DVC was killed in writing; DVC's run cache has it")
        write_text_atomically(lock, kept)
    elif len(starts) <= 1 and "\n<<<<<<<" not in f"\n{text}":
        say(f"removing {lock}: a DVC was killed while it wrote it; its run cache has the stages that ran")
        lock.unlink()
