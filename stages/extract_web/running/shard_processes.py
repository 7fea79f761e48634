"""Shards in processes of this machine: one each, with limits of computing time and memory.

A process is started anew for each shard, not forked: a fork would inherit the locks that this process's threads hold,
and its address space would count against the limit before the first page is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.engines.workers.pool import Answer, LostWorker, StartError, WorkerLimits, WorkerPool
from stages.extract_web.params import ExtractWebParams
from stages.extract_web.running.page_readers import environment
from stages.extract_web.running.page_table import extract
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.foundations.tables.candidate import CANDIDATE
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.page import PAGE
from stages.foundations.tables.table import read_table, write_table


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard and the files to make of it; `metrics` is written last, so that its presence means success."""

    shard: Path
    candidates: Path
    dropped: Path
    metrics: Path

    @property
    def made(self) -> tuple[Path, ...]:
        """The files."""
        return self.candidates, self.dropped, self.metrics


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """What holds for the process of one shard, its pages' processes aside."""

    seconds: float
    """Of computing."""
    memory_mib: int


def run_in_processes(
    tasks: Sequence[ShardTask], params: ExtractWebParams, limits: ShardLimits, processes: int
) -> Iterator[tuple[int, str, bool]]:
    """The index of each task as it ends, why it failed ("": it did not), and whether that is the file's own fault.

    What still runs is killed when the caller stops.
    """
    confined = WorkerLimits(limits.memory_mib, limits.seconds, is_trusted=True, is_reused=False)
    with WorkerPool(extract_shard, min(processes, len(tasks)), confined, environment()) as pool:
        asked = {
            pool.submit(
                shard=str(task.shard),
                outputs=[str(path) for path in (task.candidates, task.dropped, task.metrics)],
                params=params.model_dump(),
            ): index
            for index, task in enumerate(tasks)
        }
        for answer in as_completed(asked):
            yield asked[answer], *_failure(answer, limits)


def extract_shard(shard: str, outputs: Sequence[str], params: Mapping[str, Any]) -> tuple[str, bool]:
    """Writes candidates, drops and metrics of a shard; why it failed ("": it did not), and whether that is the file's
    own fault, as where it is no page table, and so the same at every attempt."""
    candidates, dropped, metrics = map(Path, outputs)
    try:
        frame = read_table(Path(shard), PAGE)
    except UserError as error:
        return str(error)[:500], True
    except MemoryError as error:
        return f"MemoryError: {error}"[:500], False
    try:
        found, funnel, counts = extract(frame, ExtractWebParams.model_validate(params), processes=1)
        write_table(found, candidates, CANDIDATE)
        write_table(funnel.dropped_frame(), dropped, DROPPED)
        write_json(metrics, counts)
    except (UserError, MemoryError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"[:500], False
    return "", False


def _failure(asked: Future[Answer], limits: ShardLimits) -> tuple[str, bool]:
    try:
        answer = asked.result()
    except StartError as error:
        return f"its process could not start: {error}", False
    except LostWorker as error:
        return str(error), False
    match answer.failure:
        case "":
            failure, is_its_own = answer.value
            return failure, is_its_own
        case "exhausted":
            return f"computed for more than {limits.seconds:g} s", False
        case "crashed":
            return f"its process ended with {answer.ending}", False
    return f"needs more than {limits.memory_mib} MiB", False
