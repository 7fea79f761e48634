"""One `dvc repro` at a time in a project: a second one waits, and then finds the work done.

DVC's --wait-for-lock waits only for its repository lock: a second `dvc repro` that needs an output which the first
one is making fails with "is busy".

With the lock, `repair_dvc_state` removes the remains of a killed DVC, so that the next one starts without an error or
a warning. Two files need it: the table of paths in use, and `dvc.lock`, which DVC rewrites after each stage, not
atomically.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from pipelines.runtime.locks import try_lock, wait_for
from stages.foundations.dvc_lock import LOCK, read_lock
from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically


@contextmanager
def project_lock(root: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Waits for the project's lock, says so while it waits, and yields its file descriptor.

    Handed to `run_in_group` as `held`, the descriptor keeps the lock until no process of the command is left.
    """
    path = root / "state" / "locks" / "repro.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not "w": that would delete the process id of the current holder.
    with open(path, "a+") as lock:
        wait_for(
            lambda: try_lock(lock),
            say,
            lambda: f"waiting for the run of process {path.read_text().strip() or '?'}, which is at work in {root}",
        )
        # Only after getting the lock: waiting processes read the number of the holder from this file.
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        repair_dvc_state(root, say)
        yield lock.fileno()


SECONDS_TO_WRITE = 1.0
MD5_DIGITS = 32
_STAGE = re.compile(r"^  \S.*:[ \t]*$", re.MULTILINE)
_HEAD = re.compile(r"schema: *['\"]?\d+\.\d+['\"]?\n")
_CUT_AFTER_A_KEY = re.compile(r"^ {0,6}\S.*:\s*\Z", re.MULTILINE)
"""`deps:` at the end of a file. A parameter, which is further to the right, may have no value."""


def repair_dvc_state(root: Path, say: Callable[[str], None]) -> None:
    """Removes a torn table of paths in use, or its entries of dead processes, and the torn last stage of `dvc.lock`.

    Says what it removed, except for dead entries, of which DVC would warn twice for each path. It waits until a file
    that is being written is complete. Entries lost from `dvc.lock` cost nothing, because DVC's run cache has each
    stage that ran. Other faults in it (merge conflict marks) are left to DVC.
    """
    table = root / ".dvc" / "tmp" / "rwlock"
    # A DVC that is alive writes within milliseconds. A file that stays torn for a second has no writer.
    if not _becomes(table, json.loads):
        say(f"removing {table}: DVC was killed while it wrote it")
        table.unlink(missing_ok=True)
    elif table.exists():
        _drop_dead_entries(table)
    lock = root / LOCK
    if not _becomes(lock, _require_whole):
        _drop_torn_stage(lock, say)


def _drop_dead_entries(table: Path) -> None:
    """Removes processes that have ended, under DVC's lock for editing the table."""
    found = json.loads(table.read_text())
    # Importing DVC takes a second, so it is imported only for a table with dead entries.
    if _living(found) == found:
        return
    from dvc.lock import LockError, make_lock

    try:
        with make_lock(str(table.with_name("rwlock.lock")), tmp_dir=str(table.parent)):
            write_text_atomically(table, json.dumps(_living(json.loads(table.read_text()))))
    except LockError:
        # A DVC is editing the table now: it removes dead entries itself, with a warning.
        return


def _living(table: Any) -> Any:
    """Returns the table without dead processes; unchanged if it does not have DVC's form, which DVC reports."""
    try:
        # A process id may belong to another process by now. Such an entry is kept, since the two cannot be
        # distinguished.
        write = {path: info for path, info in table["write"].items() if psutil.pid_exists(info["pid"])}
        read = {
            path: [info for info in infos if psutil.pid_exists(info["pid"])] for path, infos in table["read"].items()
        }
    except (KeyError, TypeError, AttributeError):
        return table
    return {**table, "write": write, "read": {path: infos for path, infos in read.items() if infos}}


def _becomes(path: Path, parse: Callable[[str], object]) -> bool:
    """False where the file cannot be parsed, and does not change for the better; a missing one is whole."""
    until = time.monotonic() + SECONDS_TO_WRITE
    while path.exists():
        with suppress(ValueError, UserError, FileNotFoundError):
            parse(path.read_text(errors="replace"))
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _require_whole(text: str) -> None:
    """ValueError or UserError for a text that is no `dvc.lock`."""
    if not _HEAD.match(text) or _CUT_AFTER_A_KEY.search(text):
        raise ValueError("its beginning or end is missing")
    for stage in read_lock(text, "this project").values():
        if any(len(str(digest)) < MD5_DIGITS for digest in (*stage.deps.values(), *stage.outs.values())):
            raise ValueError("a hash is cut off")


def _drop_torn_stage(lock: Path, say: Callable[[str], None]) -> None:
    text = lock.read_text(errors="replace")
    # A file with merge conflict marks is complete, and a user has to choose: DVC reports it.
    if "\n<<<<<<<" in f"\n{text}":
        return
    # DVC writes the file from the top: only its end can be missing.
    *others, last = [found.start() for found in _STAGE.finditer(text)] or [0]
    if not others:
        say(f"removing {lock}: DVC was killed while it wrote it; its run cache has the stages that ran")
        lock.unlink()
        return
    with suppress(ValueError, UserError):
        _require_whole(text[:last])
        say(f"{lock}: dropping its last stage, because DVC was killed while it wrote it; its run cache has it")
        write_text_atomically(lock, text[:last])
