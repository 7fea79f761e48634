"""Extraction over a folder of Parquet shards: one local process each, resumable, a poisoned shard reported.

A shard's candidates, drops and metrics stand in the work folder under a name that holds the hash of the shard, of the
parameters and of this package's code, so that a run that was killed goes on with the shards that are missing.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stages.extract_web.extraction import extract
from stages.extract_web.params import ExtractWebParams
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of, write_json
from stages.foundations.hashing import stable_hash
from stages.foundations.lifetime import die_with_parent
from stages.foundations.tables import read_table, write_table

MAX_SHARD_SECONDS = 3_600
MAX_SHARD_BYTES = 8 << 30
"""Address space of a shard's process."""
POLL_SECONDS = 0.02


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
    running: dict[int, tuple[BaseProcess, float, Path, Path]] = {}
    done: dict[int, ShardResult] = {}
    context = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < params.processes:
            index, shard = waiting.pop(0)
            target = work / f"{shard.stem}-{_key(shard, params)}"
            finished = _finished(shard, target)
            if finished:
                done[index] = finished
                continue
            process = context.Process(target=_run, args=(shard, target, params, max_bytes), daemon=True)
            process.start()
            running[index] = process, time.monotonic() + max_seconds, shard, target
        for index, (process, deadline, shard, target) in list(running.items()):
            process.join(POLL_SECONDS)
            if process.is_alive() and time.monotonic() > deadline:
                process.kill()
                process.join()
                done[index] = _failed(shard, target, f"took more than {max_seconds:g} s")
            elif not process.is_alive():
                done[index] = _outcome(shard, target, process.exitcode)
            if index in done:
                del running[index]
    return [done[index] for index in range(len(shards))]


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


def _run(shard: Path, target: Path, params: ExtractWebParams, max_bytes: int) -> None:
    """In the shard's own process: tables first, metrics last, so that their presence means success."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    candidates, dropped, metrics = _tables(target)
    try:
        frame = read_table(shard, "page")
        found, funnel, counts = extract(frame, params.model_copy(update={"processes": 1}))
        write_table(found, candidates, "candidate")
        write_table(funnel.dropped_frame(), dropped, "dropped")
        write_json(metrics, {"metrics": counts})
    except (UserError, MemoryError, ValueError, OSError) as error:
        write_json(metrics, {"failure": f"{type(error).__name__}: {error}"[:500]})


def _finished(shard: Path, target: Path) -> ShardResult | None:
    candidates, dropped, metrics = _tables(target)
    if not metrics.is_file() or not candidates.is_file() or not dropped.is_file():
        return None
    content = json.loads(metrics.read_text())
    if "metrics" not in content:
        return None
    return ShardResult(shard.name, candidates, dropped, content["metrics"], is_reused=True)


def _outcome(shard: Path, target: Path, code: int | None) -> ShardResult:
    candidates, dropped, metrics = _tables(target)
    if code == 0 and metrics.is_file():
        content = json.loads(metrics.read_text())
        if "metrics" in content:
            return ShardResult(shard.name, candidates, dropped, content["metrics"])
        return _failed(shard, target, content["failure"])
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return _failed(shard, target, f"its process ended with {how}")


def _failed(shard: Path, target: Path, failure: str) -> ShardResult:
    candidates, dropped, metrics = _tables(target)
    metrics.unlink(missing_ok=True)
    return ShardResult(shard.name, candidates, dropped, {}, failure)
