"""Sends the log of a running stage (tracking.py) to MLflow, in a process beside the stage.

In a thread of the stage, the import of MLflow would hold Python's lock for seconds, bring 180 MB, and end with a stage
that is killed. This process outlives it for a moment, and closes its run. It keeps no record of what it has sent: a
message may be sent any number of times (mlflow_store.py), so each one begins with the log's first line.

    python -m stages.observe.mlflow_uploader state/scratch/sft-0123456789abcdef
"""

from __future__ import annotations

import fcntl
import getpass
import json
import logging
import os
import re
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stages.foundations.errors import without_password
from stages.foundations.files import load_yaml
from stages.foundations.job import code_digest
from stages.foundations.machine import list_gpus
from stages.observe.command import end_at_once
from stages.observe.git import ask_git
from stages.observe.progress import say
from stages.observe.quick_imports import quick_imports
from stages.observe.tracking import LOCK_NAME, LOG_NAME, end_of, json_lines, tracking_uri

if TYPE_CHECKING:
    from stages.observe.mlflow_store import LoggedRun

SECONDS_BETWEEN_DELIVERIES = 2.0
# Short: a stage must not wait for a server that is down. The rest stays in the log.
SECONDS_OF_RETRIES_AT_THE_END = 10.0
BYTES_PER_READ = 1 << 20
# As in `(sqlite3.OperationalError) database is locked`.
_OF_DATABASE = re.compile(r"\(\w+\.\w+\) ")


class Delivery:
    """An open log, and how far it was sent. The file stays open, so it may be put away meanwhile."""

    def __init__(self, log: BinaryIO) -> None:
        self.log = log
        self.offset = 0
        self.run: LoggedRun | None = None
        self.error = ""

    def deliver(self, is_over: bool) -> bool:
        """Sends the lines since the last call. False when MLflow could not be reached (`error` says why).

        With `is_over` the stage has ended, and its run is closed: as KILLED if the stage wrote no `end`.
        """
        try:
            self.run = self.run or _connected_run()
            while lines := self._complete_lines():
                self.run.send(list(json_lines(lines)))
                self.offset += sum(map(len, lines))
            if is_over:
                self.log.seek(0)
                self.run.send([end_of(list(json_lines(self.log)))])
        except Exception as error:  # MLflow, its database, the network: try again later
            self.error = f"{type(error).__name__}: {without_password(_first_line(error))}"
            return False
        self.error = ""
        return True

    def _complete_lines(self) -> list[bytes]:
        self.log.seek(self.offset)
        lines = self.log.readlines(BYTES_PER_READ)
        # Half a line waits for its rest.
        return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _connected_run() -> LoggedRun:
    # After the log has its tags: a stage that is killed during this import has them too.
    with quick_imports():
        from stages.observe.mlflow_store import LoggedRun, MlflowStore
    return LoggedRun(MlflowStore(tracking_uri()))


def _first_line(error: Exception) -> str:
    """Returns the line with the database's message, if there is one: SQLAlchemy puts others before it."""
    lines = str(error).splitlines() or [""]
    return next((line for line in lines if _OF_DATABASE.match(line)), lines[0])[:300]


def main(argv: list[str]) -> int:
    """Follows the log until the stage ends; prints the outcome as one JSON line. Returns 0 when all is delivered."""
    for name in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group; this process ends with the stage
        signal.signal(name, signal.SIG_IGN)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it prints the trace of every failed attempt
    parent, folder = os.getppid(), Path(argv[0])
    with open(folder / LOG_NAME, "rb") as log, open(folder / LOCK_NAME, "w") as lock:
        start = [message for message in json_lines(log) if message["kind"] == "start"][-1]
        with suppress(OSError), open(folder / LOG_NAME, "ab", buffering=0) as end:  # a full disk
            end.write(b"\n" + json.dumps({"kind": "tags", "tags": surroundings(start)}).encode() + b"\n")
        fcntl.flock(lock, fcntl.LOCK_EX)  # an attempt before this one may still be retrying
        return follow(Delivery(log), parent)


def follow(delivery: Delivery, parent: int) -> int:
    """Delivers until the stage has ended, and some seconds longer where MLflow does not answer."""
    is_over = is_delivered = False
    # The first delivery comes at once: it opens the run, which users look for while the stage works.
    seconds = 0.0
    while not is_over:
        # Asked first, so that everything a dead stage wrote is read.
        is_over = _has_ended(parent, seconds)
        is_delivered = delivery.deliver(is_over)
        if not seconds and not is_delivered:
            say(f"WARNING: MLflow at {without_password(tracking_uri())} takes nothing yet: {delivery.error}")
        seconds = SECONDS_BETWEEN_DELIVERIES
    deadline = time.monotonic() + SECONDS_OF_RETRIES_AT_THE_END
    while not is_delivered and time.monotonic() < deadline:
        time.sleep(1.0)
        is_delivered = delivery.deliver(True)
    run_id, store = (delivery.run.run_id, delivery.run.store) if delivery.run else ("", None)
    report = {"run_id": run_id, "experiment_id": store.experiment_id if store else "", "error": delivery.error}
    try:
        print(json.dumps(report), flush=True)
    except BrokenPipeError:  # the stage was killed; Python would try, and complain, once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if delivery.error else 0


def _has_ended(parent: int, seconds: float) -> bool:
    """Waits that long, or until standard input ends. A worker forked by the stage may hold that open when it dies."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) or os.getppid() != parent


def surroundings(start: Mapping[str, Any]) -> dict[str, str]:
    """Returns tags about where a stage runs: user, visible GPUs, ranks, hash of its code, seed of the run, and git."""
    tags = {
        "mlflow.source.name": f"stages.{start['tags']['stage']}",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": getpass.getuser(),
        "gpus": str(len(list_gpus("CUDA_VISIBLE_DEVICES"))),
        "ranks": os.environ.get("WORLD_SIZE", "1"),
        "code": code_digest(start["tags"]["stage"]),
        "seed": _seed_of_the_run() if "seed" in start["tags"] else "",
    }
    return {name: value for name, value in (tags | _git_tags()).items() if value}


def _seed_of_the_run() -> str:
    """Returns `seed` of the parameter file: a stage may have another one (grade's bootstrap), equal in all runs."""
    try:
        content = load_yaml(Path("params.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(content["seed"]) if isinstance(content, dict) and "seed" in content else ""


def _git_tags() -> dict[str, str]:
    """Returns the commit and whether tracked files differ; DVC's records change during a run and do not count."""
    commit = ask_git(Path(), "rev-parse", "HEAD")
    if not commit:  # no git, or no repository
        return {}
    changes = ask_git(Path(), "status", "--porcelain", "-uno", "--", ".", ":!dvc.lock", ":!data", ":!reports")
    return {"git.commit": commit, "mlflow.source.git.commit": commit, "git.dirty": str(bool(changes)).lower()}


if __name__ == "__main__":
    # Nothing of MLflow's waits for the end: each request was answered.
    end_at_once(main(sys.argv[1:]))
