"""Extracts candidates from a page, through the reader of its format; and from many pages, in workers that can be
killed.

A page that hangs, crashes or fills its process costs only itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool
from stages.extract_web.candidates import candidate_rows, judged
from stages.extract_web.exercises import Exercise, find_exercises
from stages.extract_web.readers.html_reader import NotHtml, read_html, read_structured_data
from stages.extract_web.readers.latex_reader import TooManyCommands, read_latex
from stages.extract_web.readers.text_reader import read_markdown, read_text
from stages.extract_web.readers.xml_reader import NotXml, read_xml
from stages.foundations.errors import UserError

READERS: dict[str, Callable[[str], list[Exercise]]] = {
    # Structured data first: there the author names the question and the accepted answer.
    "html": lambda content: read_structured_data(content) or find_exercises(read_html(content)),
    "markdown": read_markdown,
    "text": lambda content: find_exercises(read_text(content)),
    # One reader for both dialects, because it knows the element names of both.
    "cnxml": read_xml,
    "pretext": read_xml,
    "latex": read_latex,
}
MAX_CHARACTERS = 16_000_000
MAX_TAGS = 400_000
"""Most opening brackets in a page of markup; real pages, including formulas, stay below 150,000."""
Outcome = tuple[list[dict[str, Any]], str, str]
"""Candidates of one page; or none, the reason and a detail."""


def extract_page(page: Mapping[str, str], max_answer_characters: int) -> Outcome:
    """Returns the candidates of one page in reading order; an empty list comes with a reason.

    Never raises for a bad page, apart from MemoryError where memory is limited: see `read_pages`.
    """
    reader = READERS.get(page["format"])
    if reader is None:
        return [], "format_not_read", f"no reader for {page['format']!r}; there are: {', '.join(READERS)}"
    content = page["content"]
    if len(content) > MAX_CHARACTERS:
        return [], "too_large", f"{len(content)} characters"
    # Not in LaTeX and plain text, where the sign means less-than.
    if page["format"] in ("html", "markdown", "cnxml", "pretext") and content.count("<") > MAX_TAGS:
        return [], "too_many_tags", f"{content.count('<')} opening brackets"
    try:
        exercises = judged(reader(content))
    except NotHtml as error:
        return [], "not_html", str(error)
    except NotXml as error:
        return [], "not_xml", str(error)
    except TooManyCommands as error:
        return [], "too_many_commands", str(error)
    except RecursionError:
        return [], "nested_too_deep", ""
    candidates = candidate_rows(page, exercises, max_answer_characters)
    return candidates, "" if candidates else "no_exercise", ""


def read_pages(
    pages: Sequence[Mapping[str, str]], max_answer_characters: int, limits: WorkerLimits, processes: int
) -> Iterator[Outcome]:
    """Yields the outcome of each page, in order, from that many processes at once.

    As `extract_page`, with the additional reasons `timed_out`, `crashed` and `out_of_memory`. UserError when no process
    can be started, or two in a row were killed from outside or stalled.
    """
    requests = [{"page": dict(page), "max_answer_characters": max_answer_characters} for page in pages]
    for value, reason, detail in in_readers(extract_page, requests, limits, processes):
        yield ([], reason, detail) if reason else value


def in_readers(
    function: Callable[..., Any], requests: Sequence[Mapping[str, Any]], limits: WorkerLimits, processes: int
) -> Iterator[tuple[Any, str, str]]:
    """Yields for each request, in order, the function's value as JSON; or None, the reason and a detail.

    The time limit is one of computing: the same pages are dropped on a busy machine as on an idle one.
    """
    with WorkerPool(function, min(processes, len(requests)), limits, ONE_THREAD) as pool:
        for pending in [pool.submit(**request) for request in requests]:
            try:
                answer = pending.result()
            except StartError as error:
                raise UserError(
                    f"extract_web: a process that reads pages could not start ({error}): "
                    f"give it memory, extract_web.page_memory_mib is {limits.memory_mib}"
                ) from error
            yield answer.value, *failure_of(answer, limits)


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
