"""Pages read by workers that can be killed: a page that hangs, crashes or fills its process costs only itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool
from stages.extract_web.running.extraction import Outcome, extract_page
from stages.foundations.errors import UserError

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS")


@dataclass(frozen=True, slots=True)
class PageLimits:
    """What holds for one page: see `ExtractWebParams`."""

    max_answer_characters: int
    seconds: float
    memory_mib: int


def read_pages(pages: Sequence[Mapping[str, str]], limits: PageLimits, processes: int) -> Iterator[Outcome]:
    """The outcome of each page, in order, from that many processes at once.

    As `extract_page`, with the reasons `timed_out`, `crashed` and `out_of_memory` besides. UserError when no process
    can be started.
    """
    confined = WorkerLimits(limits.memory_mib, wall_seconds=limits.seconds)
    with WorkerPool(extract_page, min(processes, len(pages)), confined, environment()) as pool:
        asked = [
            pool.submit(page=dict(page), max_answer_characters=limits.max_answer_characters) for page in pages
        ]
        for answer in asked:
            yield _outcome(answer, limits)


def environment() -> dict[str, str]:
    """For a worker of this package: libraries start no threads.

    Every thread reserves address space, and there is a process for each core already.
    """
    return {**os.environ, **dict.fromkeys(_THREADS, "1")}


def _outcome(asked: Future[Answer], limits: PageLimits) -> Outcome:
    try:
        answer = asked.result()
    except StartError as error:
        raise UserError(
            f"extract_web: a process that reads pages could not start ({error}): "
            f"give it memory, extract_web.page_memory_mib is {limits.memory_mib}"
        ) from error
    match answer.failure:
        case "":
            return answer.value
        case "timed_out":
            return [], "timed_out", f"took more than {limits.seconds:g} s"
        case "crashed":
            return [], "crashed", f"its process ended with {answer.ending}"
    return [], answer.failure, ""
