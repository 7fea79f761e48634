"""Extraction over a folder of Parquet shards: one local process each, resumable, a poisoned shard reported.

A shard's candidates, drops and metrics stand in the work folder under a name that holds the hash of the shard, of the
parameters and of this package's code, so that a run that was killed goes on with the shards that are missing.

The processes are started anew (`shard_worker.py`), not forked: a fork would inherit the locks that this process's
threads hold, and its address space would count against the limit before the first page is read.
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
from typing import Any

from stages.extract_web.params import ExtractWebParams
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.foundations.hashing import stable_hash
from stages.foundations.scratch import PROJECT
from stages.foundations.tables import read_table

MAX_SHARD_SECONDS = 3_600
MAX_SHARD_BYTES = 8 << 30
"""Address space of a shard's process."""
POLL_SECONDS = 0.02
WORKER = "stages.extract_web.shard_worker"


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of one shard; `failure` is empty when its tables are there."""

    name: str
    candidates: Path
    dropped: Path
    metrics: dict[str, int]
    failure: str = ""
    is_reused: bool = False


def find_shards(folder: Path) -> list[Path]:
    """The Parquet files of a folder by name; UserError when there is none."""
    shards = sorted(folder.glob("*.parquet"))
    if not shards:
        raise UserError(
            f"extract_web: {folder} holds no *.parquet: give a page table, or a folder of such shards"
        )
    return shards


def extract_shards(
    shards: Sequence[Path],
    work: Path,
    params: ExtractWebParams,
    max_seconds: float = MAX_SHARD_SECONDS,
    max_bytes: int = MAX_SHARD_BYTES,
) -> list[ShardResult]:
    """One result a shard, in order, `params.processes` at a time. A shard that crashes its process, runs out of time or
    memory, or cannot be read is reported in its result and tried again by the next run."""
    work.mkdir(parents=True, exist_ok=True)
    waiting = list(enumerate(shards))
    running: dict[int, _Running] = {}
    done: dict[int, ShardResult] = {}
    try:
        while waiting or running:
            while waiting and len(running) < params.processes:
                index, shard = waiting.pop(0)
                target = work / f"{shard.stem}-{_key(shard, params)}"
                finished = _finished(shard, target)
                if finished:
                    done[index] = finished
                else:
                    running[index] = _start(shard, target, params, max_seconds, max_bytes)
            time.sleep(POLL_SECONDS if running else 0)
            for index, one in list(running.items()):
                result = one.result(max_seconds)
                if result:
                    done[index] = result
                    del running[index]
    finally:
        for one in running.values():
            one.kill()
    return [done[index] for index in range(len(shards))]


@dataclass(frozen=True, slots=True)
class _Running:
    """A shard whose process is at work."""

    shard: Path
    target: Path
    process: subprocess.Popen[bytes]
    deadline: float

    def result(self, max_seconds: float) -> ShardResult | None:
        """None while the process runs within its time."""
        code = self.process.poll()
        if code is None and time.monotonic() > self.deadline:
            self.kill()
            return _failed(self.shard, self.target, f"took more than {max_seconds:g} s")
        return None if code is None else _outcome(self.shard, self.target, code)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _start(
    shard: Path, target: Path, params: ExtractWebParams, max_seconds: float, max_bytes: int
) -> _Running:
    request = {
        "parent": os.getpid(), "shard": str(shard), "outputs": [str(path) for path in _tables(target)],
        "params": params.model_dump(), "max_bytes": max_bytes,
    }  # fmt: skip
    # One thread: each reserves an address space of its own, and there is a process for each core already.
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS")}
    path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    with open(_log(target), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", WORKER, json.dumps(request)], stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, env={**os.environ, **threads, "PYTHONPATH": path},
        )  # fmt: skip
    return _Running(shard, target, process, time.monotonic() + max_seconds)


def rows_of(results: Sequence[ShardResult], schema: str) -> Iterator[dict[str, Any]]:
    """The rows of all shards that worked, in order; `schema` is candidate or dropped."""
    for result in results:
        if not result.failure:
            path = result.candidates if schema == "candidate" else result.dropped
            yield from read_table(path, schema).to_dict("records")


def _key(shard: Path, params: ExtractWebParams) -> str:
    values = params.model_dump(exclude={"processes"})
    code = [sha256_of(source) for source in sorted(Path(__file__).parent.glob("*.py"))]
    return stable_hash([sha256_of(shard), values, code])[:16]


def _tables(target: Path) -> tuple[Path, Path, Path]:
    names = ("candidates.parquet", "dropped.parquet", "json")
    one, two, three = (target.with_name(f"{target.name}.{name}") for name in names)
    return one, two, three


def _log(target: Path) -> Path:
    return target.with_name(f"{target.name}.log")


def _finished(shard: Path, target: Path) -> ShardResult | None:
    candidates, dropped, metrics = _tables(target)
    if not metrics.is_file() or not candidates.is_file() or not dropped.is_file():
        return None
    content = json.loads(metrics.read_text())
    if "metrics" not in content:
        return None
    return ShardResult(shard.name, candidates, dropped, content["metrics"], is_reused=True)


def _outcome(shard: Path, target: Path, code: int) -> ShardResult:
    candidates, dropped, metrics = _tables(target)
    if code == 0 and metrics.is_file():
        content = json.loads(metrics.read_text())
        if "metrics" in content:
            _log(target).unlink(missing_ok=True)
            return ShardResult(shard.name, candidates, dropped, content["metrics"])
        return _failed(shard, target, content["failure"])
    said = _log(target).read_text(errors="replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return _failed(shard, target, f"its process ended with {how}" + (f": {said[-1][:300]}" if said else ""))


def _failed(shard: Path, target: Path, failure: str) -> ShardResult:
    candidates, dropped, metrics = _tables(target)
    for path in (metrics, _log(target)):
        path.unlink(missing_ok=True)
    return ShardResult(shard.name, candidates, dropped, {}, failure)
