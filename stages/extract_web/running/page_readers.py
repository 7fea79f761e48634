"""Pages read by workers that can be killed: a page that hangs, crashes or fills its process costs only itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool
from stages.extract_web.running.extraction import Outcome, extract_page
from stages.foundations.errors import UserError

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS")


@dataclass(frozen=True, slots=True)
class PageLimits:
    """What holds for one page: see `ExtractWebParams`."""

    max_answer_characters: int
    seconds: float
    """Of computing: the same pages are dropped on a busy machine as on an idle one."""
    memory_mib: int


def read_pages(pages: Sequence[Mapping[str, str]], limits: PageLimits, processes: int) -> Iterator[Outcome]:
    """The outcome of each page, in order, from that many processes at once.

    As `extract_page`, with the reasons `timed_out`, `crashed` and `out_of_memory` besides. UserError when no process
    can be started, or two in a row were killed from outside or stood still.
    """
    requests = [{"page": dict(page), "max_answer_characters": limits.max_answer_characters} for page in pages]
    for value, reason, detail in in_readers(extract_page, requests, limits, processes):
        yield ([], reason, detail) if reason else value


def in_readers(
    function: Callable[..., Any], requests: Sequence[Mapping[str, Any]], limits: PageLimits, processes: int
) -> Iterator[tuple[Any, str, str]]:
    """For each request, in order, what the function returns as JSON has it; or None, the reason and a detail."""
    confined = WorkerLimits(limits.memory_mib, limits.seconds)
    with WorkerPool(function, min(processes, len(requests)), confined, environment()) as pool:
        for answer in [pool.submit(**request) for request in requests]:
            yield _outcome(answer, limits)


def environment() -> dict[str, str]:
    """For a worker of this package: libraries start no threads.

    Every thread reserves address space, and there is a process for each core already.
    """
    return dict.fromkeys(_THREADS, "1")


def _outcome(asked: Future[Answer], limits: PageLimits) -> tuple[Any, str, str]:
    try:
        answer = asked.result()
    except StartError as error:
        raise UserError(
            f"extract_web: a process that reads pages could not start ({error}): "
            f"give it memory, extract_web.page_memory_mib is {limits.memory_mib}"
        ) from error
    match answer.failure:
        case "":
            return answer.value, "", ""
        case "exhausted":
            return None, "timed_out", f"computed for more than {limits.seconds:g} s"
        case "crashed":
            return None, "crashed", f"its process ended with {answer.ending}"
    return None, answer.failure, ""
