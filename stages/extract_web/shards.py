"""Pages to tables: one page table, or many Parquet shards in processes of this machine or with Ray.

Runs over shards are resumable, and an unreadable shard is reported. Candidates, drops and metrics of a shard are kept
in the work folder. Their names hold the hash of the shard, of the parameters, of this package's code and of the stage's
fingerprint. A run that was killed continues with the missing shards, with either engine.

Each shard gets a new process with limits of computing time and memory. It is not forked: a fork would inherit the locks
that this process's threads hold, and its address space would count against the limit before the first page is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas

from stages.engines.pieces import are_whole, seal
from stages.engines.workers import pool
from stages.engines.workers.pool import Answer, LostWorker, StartError, WorkerLimits, WorkerPool
from stages.extract_web.extraction import PageLimits, environment, read_pages
from stages.extract_web.params import ExtractWebParams, LocalEngine, RayEngine
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of, stable_hash, write_json
from stages.foundations.job import code_digest
from stages.foundations.params import chosen
from stages.foundations.tables import (
    CANDIDATE,
    DROPPED,
    PAGE,
    Funnel,
    TableSchema,
    read_table,
    require_rows,
    write_table,
)
from stages.observe.progress import progress


@dataclass(frozen=True, slots=True)
class Extracted:
    """Rows of the tables `candidate` and `dropped`, and metrics."""

    candidates: list[dict[str, Any]]
    drops: list[dict[str, Any]]
    counts: dict[str, int]


def extract(
    pages: pandas.DataFrame, params: ExtractWebParams, processes: int
) -> tuple[list[dict[str, Any]], Funnel, dict[str, int]]:
    """All candidates in page order, the funnel, and metrics. `processes` does not change the result.

    The funnel counts pages; candidates of too little confidence are kept aside in it and are a metric of their own.
    """
    records = [
        {name: value if isinstance(value, str) else None for name, value in row.items()}
        for row in pages.to_dict("records")
    ]
    funnel = Funnel("extract_web", len(records))
    doubtful: list[dict[str, Any]] = []
    candidates: list[dict[str, Any]] = []
    limits = PageLimits(params.max_answer_characters, params.page_timeout_seconds, params.page_memory_mib)
    whole = [row for row in records if not _missing(row)]
    outcomes = progress(read_pages(whole, limits, processes), len(whole), "extracting", "pages")
    for page in records:
        missing = _missing(page)
        found, reason, detail = ([], "row_malformed", f"no text in {missing}") if missing else next(outcomes)
        for row in (_table_row(row, params.shared_instructions) for row in found):
            (candidates if row["confidence"] >= params.min_confidence else doubtful).append(row)
        if reason:
            known = {name: page[name] for name in ("page_id", "url", "format")}
            funnel.drop({**known, "beginning": (page["content"] or "")[:500]}, reason, detail)
    kept = len(records) - len(funnel.dropped_frame())
    metrics = {
        **funnel.metrics(kept),
        "candidates/low_confidence": len(doubtful),
        "candidates/all": len(candidates),
        "candidates/with_solution": sum(row["solution"] is not None for row in candidates),
        "candidates/with_answer": sum(row["answer"] is not None for row in candidates),
    }
    for row in doubtful:
        funnel.drop(row, "low_confidence", f"{row['confidence']:g}: {row['evidence']}")
    return candidates, funnel, metrics


def _missing(page: dict[str, Any]) -> list[str]:
    return [name for name in ("page_id", "format", "content") if page[name] is None]


def _table_row(candidate: dict[str, Any], shared_instructions: str) -> dict[str, Any]:
    """The candidate as the table has it: with the instructions in front of the problem, or without them."""
    row = {name: value for name, value in candidate.items() if name != "instructions"}
    if candidate["instructions"] and shared_instructions == "prepended":
        row["problem"] = f"{candidate['instructions']}\n{candidate['problem']}"
    return row


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """What holds for the process of one shard, its pages' processes aside."""

    seconds: float
    """Of computing."""
    memory_mib: int


LIMITS = ShardLimits(seconds=3_600, memory_mib=8_192)


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
        raise UserError(f"extract_web: {folder} holds no *.parquet: give a page table, or a folder of such shards")
    return shards


def cut_into_shards(pages: Path, folder: Path, pages_per_shard: int) -> list[Path]:
    """Writes the page table as shards into `folder`, the same bytes each time; UserError when it has no rows."""
    frame = require_rows(read_table(pages, PAGE), pages, "check the sources of `collect_web`")
    shards = []
    for number, start in enumerate(range(0, len(frame), pages_per_shard)):
        shards.append(folder / f"{number:06}.parquet")
        write_table(frame.iloc[start : start + pages_per_shard], shards[-1], PAGE)
    return shards


def extract_shards(
    shards: Sequence[Path], work: Path, params: ExtractWebParams, limits: ShardLimits = LIMITS
) -> list[ShardResult]:
    """One result a shard, in order, `params.engine.processes` at a time. A shard that is no page table is reported in
    its result. `work` must be seen by every node of a Ray cluster under the same name, as the shards must. UserError,
    when all others are finished and kept, where a shard was not: its process crashed, was killed, or needs more time or
    memory than it has. A table without that shard would be cached as the whole one."""
    work.mkdir(parents=True, exist_ok=True)
    common = _common_key(params)
    done: dict[int, ShardResult] = {}
    tasks: dict[int, ShardTask] = {}
    for index, shard in enumerate(shards):
        if not shard.is_file():  # a pipe would never end
            done[index] = _failed(_task(shard, work, ""), "it is no file")
            continue
        task = _task(shard, work, stable_hash([sha256_of(shard), common])[:16])
        finished = _finished(task, is_reused=True) if are_whole(*task.made) else None
        if finished:
            done[index] = finished
        else:
            tasks[index] = task
    places = list(tasks)
    unfinished = dict.fromkeys(places, "Ray lost it, see its log above")
    ended = _run([*tasks.values()], params, limits) if tasks else iter(())
    for place, failure, is_its_own in progress(ended, len(tasks), "extracting", "shards"):
        index = places[place]
        result = _outcome(tasks[index], failure)
        if result.failure and not is_its_own:
            unfinished[index] = result.failure
        else:
            done[index] = result
            del unfinished[index]
    if unfinished:
        first = min(unfinished)
        raise UserError(
            f"extract_web: {len(unfinished)} of {len(shards)} shards could not be finished, the first is "
            f"{shards[first]}: {unfinished[first]}. Run the command again: finished shards are kept. If it fails "
            "again, cut that shard into smaller ones"
        )
    return [done[index] for index in range(len(shards))]


def rows_of(results: Sequence[ShardResult], schema: TableSchema) -> Iterator[dict[str, Any]]:
    """The rows of all shards that worked, in order; `schema` is candidate or dropped."""
    for result in results:
        if not result.failure:
            path = result.candidates if schema is CANDIDATE else result.dropped
            yield from read_table(path, schema).to_dict("records")


def _run(tasks: Sequence[ShardTask], params: ExtractWebParams, limits: ShardLimits) -> Iterator[tuple[int, str, bool]]:
    """The place of each task as it ends, why it failed, or "", and whether that is the file's own fault."""
    match chosen("extract_web.engine", params.engine):
        case LocalEngine(processes=processes):
            return run_in_processes(tasks, params, limits, processes)
        case RayEngine(processes=processes):
            from stages.engines.distributed.ray_session import map_with_ray

            rows = [
                {
                    "place": place,
                    "task": json.dumps(asdict(task), default=str),
                    "params": params.model_dump_json(),
                    "limits": json.dumps(asdict(limits)),
                }
                for place, task in enumerate(tasks)
            ]
            ended = map_with_ray(run_shard_row, rows, processes)
            return ((row["place"], row["failure"], row["is_its_own"]) for row in ended)


def run_shard_row(row: dict[str, Any]) -> dict[str, Any]:
    """A shard as Ray has it, in Ray's worker: `place`, and the rest of what `run_in_processes` says of it."""
    task = ShardTask(**{name: Path(value) for name, value in json.loads(row["task"]).items()})
    params = ExtractWebParams.model_validate_json(row["params"])
    limits = ShardLimits(**json.loads(row["limits"]))
    [(_, failure, is_its_own)] = run_in_processes([task], params, limits, processes=1)
    return {"place": row["place"], "failure": failure, "is_its_own": is_its_own}


def _common_key(params: ExtractWebParams) -> str:
    values = params.model_dump(exclude={"engine", "method"})
    folders = (Path(__file__).parents[1], Path(pool.__file__).parent)
    code = [sha256_of(source) for folder in folders for source in sorted(folder.rglob("*.py"))]
    return stable_hash([values, code, code_digest("extract_web")])


def _task(shard: Path, work: Path, key: str) -> ShardTask:
    beginning = f"{shard.stem}-{key}"
    names = ("candidates.parquet", "dropped.parquet", "json")
    return ShardTask(shard.absolute(), *(work.absolute() / f"{beginning}.{name}" for name in names))


def _finished(task: ShardTask, is_reused: bool) -> ShardResult | None:
    if not all(path.is_file() for path in task.made):
        return None
    metrics = json.loads(task.metrics.read_text())
    return ShardResult(task.shard.name, task.candidates, task.dropped, metrics, is_reused=is_reused)


def _outcome(task: ShardTask, failure: str) -> ShardResult:
    finished = None if failure else _finished(task, is_reused=False)
    if finished is None:
        return _failed(task, failure or "its tables are not there: does every node of Ray see the same folder?")
    seal(*task.made)
    return finished


def _failed(task: ShardTask, failure: str) -> ShardResult:
    task.metrics.unlink(missing_ok=True)
    return ShardResult(task.shard.name, task.candidates, task.dropped, {}, failure)


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
