"""Carries a stage's tracking log to MLflow, in a process beside the stage, and keeps the logs of finished runs.

The log (tracking.py writes it) is a sequence of JSON lines: `start` opens or continues an MLflow run, `values`
are points of curves, `end` closes the run. It is sent to the current tracking address. The address is not in the log,
because it may contain a password. The delivered offset is stored beside it, so any later process can continue. When all
is delivered and the run is finished, both files are removed. The stage's end is the end of standard input: if the log
then lacks its `end`, the stage was killed.

A finished log is kept as `state/runs/<start in ms>-<first 16 digits of the stage hash>.jsonl.gz`, so that another
database can be filled from it. Its first line has the run's tags, then follows the log as the stage wrote it: about
2 KB for each 100 points.

    python -m stages.observe.mlflow_uploader state/scratch/sft-0123456789abcdef
"""

from __future__ import annotations

import fcntl
import gzip
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.foundations.errors import without_password
from stages.foundations.files import write_bytes_atomically, write_json
from stages.observe.command import end_at_once
from stages.observe.quick_imports import quick_imports
from stages.observe.tracking import LOG_NAME, TOTAL_SECONDS, json_lines, tracking_uri

with quick_imports():
    from stages.observe.mlflow_store import POINTS_PER_REQUEST, MlflowStore, Refused

SECONDS_BETWEEN_DELIVERIES = 2.0
# Short: a stage must not wait for a server that is down. The rest stays in the log for the next delivery.
SECONDS_OF_RETRIES_AT_THE_END = 10.0
# As in `(sqlite3.OperationalError) database is locked`.
_OF_DATABASE = re.compile(r"\(\w+\.\w+\) ")


class Delivery:
    """The log of one scratch folder, and the part of it that MLflow has.

    If an earlier attempt delivered to another address, the whole log goes to the present one.
    """

    def __init__(self, scratch: Path) -> None:
        self.log = scratch / LOG_NAME
        self.state_file = scratch / "tracking_state.json"
        self.state: dict[str, Any] = {"offset": 0, "run_id": "", "refused": 0}
        if self.state_file.exists():
            before = json.loads(self.state_file.read_text())
            # This address may not have what another one received: it gets the log from the beginning.
            if without_password(before.get("uri", "")) in ("", self._place()):
                self.state |= before
        self.store: MlflowStore | None = None
        self.error = ""

    def deliver(self) -> bool:
        """Delivers the log as far as it is written. False when MLflow could not be reached (`error` says why).

        If the log is gone, the delivery of an earlier attempt, which was still running, has delivered and stored it.
        """
        if not self.log.exists():
            return True
        try:
            while batch := self._next_batch():
                self._send(*batch)
        except Refused as error:  # the same request would always be rejected
            self._drop(batch, _first_line(error))
            return self.deliver()
        except Exception as error:  # MLflow, its database, the network: keep the lines, try again later
            self.error = f"{type(error).__name__}: {without_password(_first_line(error))}"
            return False
        return True

    def close_if_killed(self) -> None:
        """Adds `end` with KILLED to the log of a killed stage; the next attempt continues the run."""
        lines = self.log.read_bytes().splitlines() if self.log.exists() else []
        if lines and not any(line["kind"] == "end" for line in json_lines(lines[-1:])):
            end = {"kind": "end", "status": "KILLED", "ms": int(time.time() * 1000)}
            with open(self.log, "ab") as log:
                # A stage that was killed may have left half a line.
                log.write(b"\n" + json.dumps(end).encode() + b"\n")

    def forget_if_done(self) -> None:
        """Stores the log when nothing is left to deliver and no attempt will continue the run.

        It is kept in state/runs/, from where `retrace mirror` can send it to another database.
        """
        if self.log.exists() and self.state["offset"] == self.log.stat().st_size and not self.state["run_id"]:
            # The state folder: the log is in state/scratch/<attempt>/.
            keep_log(self.log, self.log.parent.parent.parent, self._tags())
            self.log.unlink()
            self.state_file.unlink(missing_ok=True)

    def _tags(self) -> dict[str, str]:
        """Returns MLflow's tags of the run, including git's; none when they cannot be read."""
        try:
            store = self.store or MlflowStore(tracking_uri())
            return dict(store.client.get_run(self.state["last_run_id"]).data.tags)
        except Exception:  # the server has just gone away: the log has the stage's own tags
            return {}

    def _next_batch(self) -> tuple[list[dict[str, Any]], int] | None:
        """Returns the lines of the next request, and the offset after them. Half a line waits for its rest."""
        with open(self.log, "rb") as log:
            log.seek(self.state["offset"])
            end, batch, points = self.state["offset"], [], 0
            for line in log:
                message = next(json_lines([line]), None)
                # Only points are sent in batches: `start` and `end` are separate requests.
                if not line.endswith(b"\n") or (batch and (message or {}).get("kind") != "values"):
                    break
                end += len(line)
                if message:
                    batch.append(message)
                    points += len(message.get("values", ()))
                if points >= POINTS_PER_REQUEST or (batch and batch[0]["kind"] != "values"):
                    break
        return (batch, end) if end > self.state["offset"] else None

    def _send(self, batch: list[dict[str, Any]], end: int) -> None:
        if not batch:
            return self._advance(end)
        message = batch[0]
        self.store = self.store or MlflowStore(tracking_uri())
        if message["kind"] == "start":
            run_id = self.store.start(message, self.state["run_id"])
            return self._advance(end, run_id=run_id, uri=self._place())
        if message["kind"] == "values":
            self.store.log(self.state["run_id"], batch)
            return self._advance(end)
        ended = end_ms(json_lines(self.log.read_bytes()[:end].splitlines()))
        self.store.end(self.state["run_id"], message["status"], ended)
        # The next attempt at the same work continues a run that failed or was killed.
        kept = "" if message["status"] == "FINISHED" else self.state["run_id"]
        return self._advance(end, run_id=kept, last_run_id=self.state["run_id"])

    @staticmethod
    def _place() -> str:
        """Returns the address without its password."""
        return without_password(tracking_uri())

    def _drop(self, batch: tuple[list[dict[str, Any]], int], reason: str) -> None:
        self.error = f"MLflow rejects {batch[0][0]['kind']} of this run: {reason}"
        self._advance(batch[1], refused=self.state["refused"] + len(batch[0]))

    def _advance(self, offset: int, **changes: Any) -> None:
        self.state |= {"offset": offset, **changes}
        write_json(self.state_file, self.state)


def _first_line(error: Exception) -> str:
    """Returns the line with the database's message, if there is one: SQLAlchemy puts others before it."""
    lines = str(error).splitlines() or [""]
    return next((line for line in lines if _OF_DATABASE.match(line)), lines[0])[:300]


def main(argv: list[str]) -> int:
    """Follows the log until the stage ends; prints the outcome as one JSON line. Returns 0 when all is delivered."""
    for name in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group; this process ends with the stage
        signal.signal(name, signal.SIG_IGN)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it prints the trace of every failed attempt
    ended = _watch_stage()
    with open(Path(argv[0]) / "tracking.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an attempt before this one may still be retrying
        return _follow(Delivery(Path(argv[0])), ended)


def _follow(delivery: Delivery, ended: threading.Event) -> int:
    # The first delivery comes at once: it opens the run, which users look for while the stage works.
    while not ended.wait(SECONDS_BETWEEN_DELIVERIES if delivery.store else 0.01):
        delivery.deliver()
    with suppress(OSError):  # no room on the disk: the next attempt continues the run, or `retrace mirror` closes it
        delivery.close_if_killed()
    is_delivered, deadline = delivery.deliver(), time.monotonic() + SECONDS_OF_RETRIES_AT_THE_END
    while not is_delivered and time.monotonic() < deadline:
        time.sleep(1.0)
        is_delivered = delivery.deliver()
    if is_delivered:
        with suppress(OSError):  # as above: it stays where it is until it can be put away
            delivery.forget_if_done()
    is_complete = is_delivered and not delivery.state["refused"]
    error = "" if is_complete else delivery.error or "some numbers were refused"
    run_id = delivery.state["run_id"] or delivery.state.get("last_run_id", "")
    experiment_id = delivery.store.experiment_id if delivery.store else ""
    try:
        print(json.dumps({"run_id": run_id, "experiment_id": experiment_id, "error": error}), flush=True)
    except BrokenPipeError:  # the stage was killed; Python would try, and complain, once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if error else 0


def _watch_stage() -> threading.Event:
    """Sets the event when standard input ends, or the parent: a worker forked by the stage may keep the pipe open."""
    ended, parent = threading.Event(), os.getppid()

    def read_to_end() -> None:
        sys.stdin.buffer.read()
        ended.set()

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        ended.set()

    for watch in (read_to_end, watch_parent):
        threading.Thread(target=watch, daemon=True).start()
    return ended


def keep_log(log: Path, state: Path, tags: Mapping[str, str]) -> Path | None:
    """Copies a finished log under `state/runs/`; None for a log without a start."""
    lines = log.read_bytes().splitlines()
    start = next((line for line in json_lines(lines) if line.get("kind") == "start"), None)
    if start is None:
        return None
    place = state / "runs" / f"{start['ms']}-{start['tags']['stage_hash'][:16]}.jsonl.gz"
    head = json.dumps({"kind": "tags", "tags": dict(tags) or start["tags"]}).encode()
    # `mtime`: gzip would write the time, and a log that is kept twice must have equal bytes.
    write_bytes_atomically(place, gzip.compress(b"\n".join([head, *lines]), mtime=0))
    return place


def kept_logs(state: Path) -> list[Path]:
    """Returns the kept logs, oldest first; files with other names come last."""

    def place_in_time(path: Path) -> tuple[bool, int, str]:
        start = path.name.partition("-")[0]
        return not start.isdecimal(), int(start) if start.isdecimal() else 0, path.name

    return sorted((state / "runs").glob("*.jsonl.gz"), key=place_in_time)


def read_log(place: Path) -> list[dict[str, Any]]:
    """Returns the messages of a kept log, without truncated lines. OSError or EOFError when it is not a gzip file."""
    return list(json_lines(gzip.decompress(place.read_bytes()).splitlines()))


def end_ms(messages: Iterable[Mapping[str, Any]]) -> int:
    """Returns when the run of a log ended (ms since 1970): the start of its last attempt plus its measured seconds.

    So a change of the clock during the run changes no duration, unlike the time of the log's `end`. An attempt that was
    killed measured nothing: the time of its `end` counts, or its start where that is later. 0 for no attempt.
    """
    began, ended, seconds = 0, 0, None
    for message in messages:
        if message["kind"] == "start":
            began, ended, seconds = message["ms"], message["ms"], None
        elif message["kind"] == "values":
            seconds = message["values"].get(TOTAL_SECONDS, seconds)
        elif message["kind"] == "end":
            ended = message["ms"]
    return max(began, ended) if seconds is None else began + round(1000 * seconds)


if __name__ == "__main__":
    # Nothing of MLflow's waits for the end: each request was answered.
    end_at_once(main(sys.argv[1:]))
