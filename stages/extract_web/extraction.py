"""Extracts candidates from a page, through the reader of its format; and from many pages, in workers that can be
killed.

A page that hangs, crashes or fills its process costs only itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool
from stages.extract_web.blocks import Page, Unreadable
from stages.extract_web.candidates import candidate_rows, judged
from stages.extract_web.exercises import find_exercises
from stages.extract_web.readers import READERS
from stages.foundations.errors import UserError
from stages.foundations.page_formats import FORMATS

MAX_CHARACTERS = 16_000_000
MAX_TAGS = 400_000
"""Most opening brackets in a page of markup; real pages, including formulas, stay below 150,000."""
Outcome = tuple[list[dict[str, Any]], str, str, int]
"""Candidates of one page; or none, the reason and a detail. Last, the boxes left out as site furniture."""


def extract_page(page: Mapping[str, str], max_answer_characters: int) -> Outcome:
    """Returns the candidates of one page in reading order; an empty list comes with a reason.

    Never raises for a bad page, apart from MemoryError where memory is limited: see `read_pages`.
    """
    form = page["format"]
    if form not in READERS:
        return [], "format_not_read", f"no reader for {form!r}; there are: {', '.join(READERS)}", 0
    content = page["content"]
    if len(content) > MAX_CHARACTERS:
        return [], "too_large", f"{len(content)} characters", 0
    if FORMATS[form].has_elements and content.count("<") > MAX_TAGS:
        return [], "too_many_tags", f"{content.count('<')} opening brackets", 0
    try:
        found = READERS[form](content)
        exercises = find_exercises(found) if isinstance(found, Page) else found
        candidates = candidate_rows(page, judged(exercises), max_answer_characters)
    except Unreadable as error:
        return [], error.reason, error.detail, 0
    except RecursionError:
        return [], "nested_too_deep", "", 0
    boxes = found.boxes_left_out if isinstance(found, Page) else 0
    return candidates, "" if candidates else "no_exercise", "", boxes


def read_pages(
    pages: Sequence[Mapping[str, str]], max_answer_characters: int, limits: WorkerLimits, processes: int
) -> Iterator[Outcome]:
    """Yields the outcome of each page, in order, from that many processes at once.

    As `extract_page`, with the additional reasons `timed_out`, `crashed` and `out_of_memory`. The time limit is one of
    computing: the same pages are dropped on a busy machine as on an idle one. UserError when no process can be started,
    or two in a row were killed from outside or stalled.
    """
    with WorkerPool(extract_page, min(processes, len(pages)), limits, ONE_THREAD) as pool:
        for pending in [pool.submit(page=dict(page), max_answer_characters=max_answer_characters) for page in pages]:
            try:
                answer = pending.result()
            except StartError as error:
                raise UserError(
                    f"extract_web: a process that reads pages could not start ({error}): "
                    f"give it memory, extract_web.page_memory_mib is {limits.memory_mib}"
                ) from error
            reason, detail = failure_of(answer, limits)
            yield ([], reason, detail, 0) if reason else answer.value


ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS"), "1")
"""For workers: every thread reserves address space, and each core already has a process."""


def failure_of(answer: Answer, limits: WorkerLimits) -> tuple[str, str]:
    """Returns why a worker did not answer, as the reason of a drop, and a detail; the reason is empty if it did."""
    match answer.failure:
        case "exhausted":
            return "timed_out", f"computed for more than {limits.computing_seconds:g} s"
        case "crashed":
            return "crashed", f"its process ended with {answer.ending}"
    return answer.failure, ""
