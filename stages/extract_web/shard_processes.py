"""Shards in processes of this machine: one each, with limits of time and memory.

A process is started anew (`shard_worker.py`), not forked: a fork would inherit the locks that this process's threads
hold, and its address space would count against the limit before the first page is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.extract_web.page_readers import ending, environment
from stages.extract_web.params import ExtractWebParams

POLL_SECONDS = 0.02
WORKER = "stages.extract_web.shard_worker"


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard and the files to make of it; `metrics` is written last."""

    shard: Path
    candidates: Path
    dropped: Path
    metrics: Path
    log: Path


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """What holds for the process of one shard, its pages' processes aside."""

    seconds: float
    address_space_bytes: int


def run_in_processes(
    tasks: Sequence[ShardTask], params: ExtractWebParams, limits: ShardLimits, processes: int
) -> Iterator[tuple[int, str]]:
    """The index of each task as it ends, with why it failed, or "". What still runs is killed when the caller stops."""
    waiting = list(enumerate(tasks))
    running: dict[int, _Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                index, task = waiting.pop(0)
                running[index] = _start(task, params, limits)
            time.sleep(POLL_SECONDS)
            for index, one in list(running.items()):
                failure = one.failure(limits)
                if failure is not None:
                    del running[index]
                    yield index, failure
    finally:
        for one in running.values():
            one.kill()


@dataclass(frozen=True, slots=True)
class _Running:
    """A shard whose process is at work."""

    task: ShardTask
    process: subprocess.Popen[bytes]
    deadline: float

    def failure(self, limits: ShardLimits) -> str | None:
        """Why it failed, "" when it did not; None while the process runs within its time."""
        code = self.process.poll()
        if code is None and time.monotonic() <= self.deadline:
            return None
        if code is None:
            self.kill()
            return f"took more than {limits.seconds:g} s"
        if code == 0 and self.task.metrics.is_file():
            return json.loads(self.task.metrics.read_text()).get("failure", "")
        said = self.task.log.read_text(errors="replace").strip().splitlines()
        return f"its process ended with {ending(code)}" + (f": {said[-1][:300]}" if said else "")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _start(task: ShardTask, params: ExtractWebParams, limits: ShardLimits) -> _Running:
    request = {
        "parent": os.getpid(),
        "shard": str(task.shard),
        "params": params.model_dump(),
        "outputs": [str(path) for path in (task.candidates, task.dropped, task.metrics)],
        "address_space_bytes": limits.address_space_bytes,
    }
    with open(task.log, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(),
        )
    return _Running(task, process, time.monotonic() + limits.seconds)
