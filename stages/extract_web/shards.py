"""Extracts rows from Parquet shards of pages, each in a separate process, on this machine or with Ray.

A folder of shards is used as it is; a page table is cut into shards. Each shard gets a new process with limits on
computing time and memory, and its pages get another one. Neither is forked. A fork would inherit the locks that this
process's threads hold. Its address space would also count against the limit before the first page is read.

Runs are resumable, and an unreadable shard is reported. Candidates, drops and metrics of a shard are kept in the work
folder. Their names contain the hash of the shard, of the parameters, of this package's code and of the stage's
fingerprint. A resumed run continues with the missing shards, with either engine.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas

from stages.engines.pieces import are_whole, seal
from stages.engines.workers import pool
from stages.engines.workers.pool import LostWorker, StartError, WorkerLimits, WorkerPool
from stages.extract_web.extraction import ONE_THREAD, failure_of, read_pages
from stages.extract_web.stage import ExtractWebParams, LocalEngine, RayEngine
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of, stable_hash, write_json
from stages.foundations.job import code_digest
from stages.foundations.machine import state_folder
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
from stages.observe.progress import progress, say

LIMITS = WorkerLimits(memory_mib=8_192, computing_seconds=3_600, is_trusted=True, is_reused=False)
"""For the process of one shard, which parses no page itself; its pages' process has the parameters' limits."""
PAGES_PER_SHARD = 512
"""At most so many pages of a table are read again after a kill; starting a process costs as much as 20 pages."""


Rows = list[dict[str, Any]]


@dataclass(slots=True)
class Shard:
    """Some pages, the paths of what is made of them, and the outcome."""

    pages: Path
    made: tuple[Path, Path, Path]
    """Candidates, drops and metrics."""
    failure: str = ""
    """Why these files do not exist."""
    is_reused: bool = False


def extract(pages: Path, params: ExtractWebParams, pieces: Path) -> tuple[Rows, Rows, dict[str, int]]:
    """Returns candidates, drops and metrics of a page table, or of a folder of shards, in order. Unreadable shards
    become rows of the dropped table; UserError only when all are. Shards of a table are in `pieces`; results of a
    folder are kept permanently."""
    if pages.is_dir():
        shards = extract_shards(find_shards(pages), state_folder() / "scratch" / "extract_web-shards", params)
    else:
        shards = extract_shards(cut_into_shards(pages, pieces, params), pieces, params)
    failed = [shard for shard in shards if shard.failure]
    if failed:
        first = f"the first: {failed[0].pages.name}: {failed[0].failure}"
        if len(failed) == len(shards):
            raise UserError(f"extract_web: every shard of {pages} failed, {first}")
        say(f"WARNING: extract_web leaves out {len(failed)} of {len(shards)} shards, which cannot be read, {first}")
    unreadable = Funnel("extract_web", len(failed))
    for shard in failed:
        unreadable.drop({"shard_id": shard.pages.name}, "shard_failed", shard.failure)
    counts = Counter({"shards/all": len(shards), "shards/failed": len(failed)} if pages.is_dir() else {})
    for shard in shards:
        if not shard.failure:
            counts.update(json.loads(shard.made[2].read_text()))
    # Pages first, then rows: the result does not show where a table was cut.
    drops = sorted(rows_of(shards, DROPPED), key=lambda drop: drop["reason"] == "low_confidence")
    drops += unreadable.dropped_frame().to_dict("records")
    return list(rows_of(shards, CANDIDATE)), drops, dict(counts)


def find_shards(folder: Path) -> list[Path]:
    """Returns the Parquet files of a folder by name; UserError when there is none."""
    shards = sorted(folder.glob("*.parquet"))
    if not shards:
        raise UserError(f"extract_web: {folder} holds no *.parquet: give a page table, or a folder of such shards")
    return shards


def cut_into_shards(pages: Path, folder: Path, params: ExtractWebParams) -> list[Path]:
    """Writes the page table as shards into `folder`, the same bytes each time; UserError when it has no rows."""
    frame = require_rows(read_table(pages, PAGE), pages, "check the sources of `collect_web`")
    match params.engine:
        case RayEngine(pages_per_shard=size):
            pass
        case LocalEngine(processes=processes):
            # At least one shard for each process, or some of them would be idle.
            size = min(PAGES_PER_SHARD, math.ceil(len(frame) / processes))
    shards = []
    for number, start in enumerate(range(0, len(frame), size)):
        shards.append(folder / f"{number:06}.parquet")
        write_table(frame.iloc[start : start + size], shards[-1], PAGE)
    return shards


def extract_shards(
    pages: Sequence[Path], work: Path, params: ExtractWebParams, limits: WorkerLimits = LIMITS
) -> list[Shard]:
    """Reads the shards, in order, `params.engine.processes` at a time. One that is no page table has a `failure`. Every
    node of a Ray cluster must see `work` and the shards under the same paths. UserError, after all other shards are
    finished and kept, if the process of a shard crashed, was killed, or exceeded its time or memory.
    A table without that shard would be cached as the whole one."""
    work.mkdir(parents=True, exist_ok=True)
    common = _common_key(params)
    shards = [_shard(path, work, common) for path in pages]
    unfinished: dict[int, str] = {}
    for place, shard in enumerate(shards):
        if not shard.pages.is_file():  # a pipe would never end
            shard.failure = "it is no file"
        elif are_whole(*shard.made):
            shard.is_reused = True
        else:
            # A shard that Ray loses never ends, and keeps this reason.
            unfinished[place] = "Ray lost it, see its log above"
    requests = {
        place: {
            "pages": str(shards[place].pages),
            "outputs": [str(path) for path in shards[place].made],
            "params": params.model_dump(),
        }
        for place in unfinished
    }
    ended = _run(requests, params, limits) if requests else iter(())
    for end in progress(ended, len(requests), "extracting", "shards"):
        place, failure = end["place"], end["failure"]
        shard = shards[place]
        if not failure and not all(path.is_file() for path in shard.made):
            failure = "its tables are not there: does every node of Ray see the same folder?"
        if failure and not end["is_its_own"]:
            unfinished[place] = failure
            continue
        del unfinished[place]
        shard.failure = failure
        if not failure:
            seal(*shard.made)
    if unfinished:
        first = min(unfinished)
        raise UserError(
            f"extract_web: {len(unfinished)} of {len(shards)} shards could not be finished, the first is "
            f"{shards[first].pages}: {unfinished[first]}. Run the command again: finished shards are kept. If it fails "
            "again, cut that shard into smaller ones"
        )
    return shards


def rows_of(shards: Sequence[Shard], schema: TableSchema) -> Iterator[dict[str, Any]]:
    """Returns the rows of all successful shards, in order; `schema` is candidate or dropped."""
    for shard in shards:
        if not shard.failure:
            candidates, dropped, _ = shard.made
            yield from read_table(candidates if schema is CANDIDATE else dropped, schema).to_dict("records")


def _common_key(params: ExtractWebParams) -> str:
    # Without the engine, since both engines share results.
    values = params.model_dump(exclude={"engine"})
    # The code of the pool too: its behaviour at a limit decides which pages are dropped.
    folders = (Path(__file__).parent, Path(pool.__file__).parent)
    code = [sha256_of(source) for folder in folders for source in sorted(folder.rglob("*.py"))]
    return stable_hash([values, code, code_digest("extract_web")])


def _shard(pages: Path, work: Path, common: str) -> Shard:
    key = stable_hash([sha256_of(pages), common])[:16] if pages.is_file() else ""
    # Absolute, because a worker of Ray may run in another folder.
    beginning = work.absolute() / f"{pages.stem}-{key}"
    candidates, dropped, metrics = (
        beginning.with_name(f"{beginning.name}.{name}") for name in ("candidates.parquet", "dropped.parquet", "json")
    )
    return Shard(pages.absolute(), (candidates, dropped, metrics))


def _run(
    requests: Mapping[int, dict[str, Any]], params: ExtractWebParams, limits: WorkerLimits
) -> Iterator[dict[str, Any]]:
    match chosen("extract_web.engine", params.engine):
        case LocalEngine(processes=processes):
            return run_in_processes(requests, limits, processes)
        case RayEngine(processes=processes):
            from stages.engines.distributed.ray_session import map_with_ray

            # As JSON: a column of Ray's tables has one type, and the values of parameters have many.
            shown = json.dumps(asdict(limits))
            rows = [
                {"place": place, "request": json.dumps(request), "limits": shown} for place, request in requests.items()
            ]
            return map_with_ray(run_row, rows, processes)


def run_row(row: dict[str, Any]) -> dict[str, Any]:
    """Reads a shard in Ray's worker, from Ray's row."""
    request, limits = json.loads(row["request"]), WorkerLimits(**json.loads(row["limits"]))
    [end] = run_in_processes({row["place"]: request}, limits, processes=1)
    return end


def run_in_processes(
    requests: Mapping[int, dict[str, Any]], limits: WorkerLimits, processes: int
) -> Iterator[dict[str, Any]]:
    """Yields for each shard as it ends its `place`, why it failed ("": it did not), and whether that `is_its_own`
    fault.

    Running shards are killed when the caller stops.
    """
    with WorkerPool(extract_shard, min(processes, len(requests)), limits, ONE_THREAD) as workers:
        pending = {workers.submit(**request): place for place, request in requests.items()}
        for done in as_completed(pending):
            failure, is_its_own = "", False
            try:
                answer = done.result()
            except StartError as error:
                failure = f"its process could not start: {error}"
            except LostWorker as error:
                failure = str(error)
            else:
                reason, detail = failure_of(answer, limits)
                failure = detail or (reason and f"needs more than {limits.memory_mib} MiB")
                if not reason:
                    failure, is_its_own = answer.value
            yield {"place": pending[done], "failure": failure, "is_its_own": is_its_own}


def extract_shard(pages: str, outputs: Sequence[str], params: Mapping[str, Any]) -> tuple[str, bool]:
    """Writes candidates, drops and metrics of a shard.

    Returns why it failed ("": it did not), and whether the fault is in the file (such as not being a page table). Such
    a fault is the same at every attempt.
    """
    candidates, dropped, metrics = map(Path, outputs)
    try:
        frame = read_table(Path(pages), PAGE)
    except UserError as error:
        return str(error)[:500], True
    except MemoryError as error:
        # The next attempt may have more memory, so this is not a permanent fault of the file.
        return f"MemoryError: {error}"[:500], False
    try:
        found, funnel, counts = extract_table(frame, ExtractWebParams.model_validate(params))
        write_table(found, candidates, CANDIDATE)
        write_table(funnel.dropped_frame(), dropped, DROPPED)
        write_json(metrics, counts)
    except (UserError, MemoryError, ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"[:500], False
    return "", False


def extract_table(pages: pandas.DataFrame, params: ExtractWebParams) -> tuple[Rows, Funnel, dict[str, int]]:
    """Returns all candidates in page order, the funnel, and metrics.

    The funnel counts pages; candidates with too little confidence are stored in it separately and have their own
    metric.
    """
    records = [
        {name: value if isinstance(value, str) else None for name, value in row.items()}
        for row in pages.to_dict("records")
    ]
    funnel = Funnel("extract_web", len(records))
    doubtful: Rows = []
    candidates: Rows = []
    limits = WorkerLimits(params.page_memory_mib, params.page_timeout_seconds)
    whole = [row for row in records if not _missing(row)]
    boxes_left_out = 0
    # One process, because the shards themselves run in parallel.
    outcomes = read_pages(whole, params.max_answer_characters, limits, processes=1)
    for page in records:
        missing = _missing(page)
        unread = ([], "row_malformed", f"no text in {missing}", 0)
        found, reason, detail, left_out = unread if missing else next(outcomes)
        boxes_left_out += left_out
        for row in found:
            instructions = row.pop("instructions")
            if instructions and params.shared_instructions == "prepended":
                row["problem"] = f"{instructions}\n{row['problem']}"
            (candidates if row["confidence"] >= params.min_confidence else doubtful).append(row)
        if reason:
            known = {name: page[name] for name in ("page_id", "url", "format")}
            funnel.drop({**known, "beginning": (page["content"] or "")[:500]}, reason, detail)
    # Counted before the doubtful rows join the funnel, which counts pages.
    kept = len(records) - len(funnel.dropped_frame())
    metrics = {
        **funnel.metrics(kept),
        "pages/boxes_left_out": boxes_left_out,
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
