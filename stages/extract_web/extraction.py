"""Extracts candidates from a page, through the reader of its format; and from many pages, in workers that can be
killed.

A page that hangs, crashes or fills its process costs only itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool
from stages.extract_web.blocks import Page
from stages.extract_web.candidates import candidate_rows, judged
from stages.extract_web.exercises import Exercise, find_exercises
from stages.extract_web.readers.html_reader import NotHtml, read_html, read_structured_data
from stages.extract_web.readers.latex_reader import TooManyCommands, read_latex
from stages.extract_web.readers.text_reader import read_markdown, read_text
from stages.extract_web.readers.xml_reader import NotXml, read_xml
from stages.foundations.errors import UserError


def _read_html(content: str) -> tuple[list[Exercise], int]:
    # Structured data first: there the author names the question and the accepted answer.
    found = read_structured_data(content)
    page = Page() if found else read_html(content)
    return found or find_exercises(page), page.boxes_left_out


READERS: dict[str, Callable[[str], tuple[list[Exercise], int]]] = {
    "html": _read_html,
    "markdown": lambda content: (read_markdown(content), 0),
    "text": lambda content: (find_exercises(read_text(content)), 0),
    # One reader for both dialects, because it knows the element names of both.
    "cnxml": lambda content: (read_xml(content), 0),
    "pretext": lambda content: (read_xml(content), 0),
    "latex": lambda content: (read_latex(content), 0),
}
"""Format -> function that returns the exercises and the boxes that it left out as site furniture."""
MAX_CHARACTERS = 16_000_000
MAX_TAGS = 400_000
"""Most opening brackets in a page of markup; real pages, including formulas, stay below 150,000."""
Outcome = tuple[list[dict[str, Any]], str, str, int]
"""Candidates of one page; or none, the reason and a detail. Last, the boxes left out as site furniture."""


def extract_page(page: Mapping[str, str], max_answer_characters: int) -> Outcome:
    """Returns the candidates of one page in reading order; an empty list comes with a reason.

    Never raises for a bad page, apart from MemoryError where memory is limited: see `read_pages`.
    """
    reader = READERS.get(page["format"])
    if reader is None:
        return [], "format_not_read", f"no reader for {page['format']!r}; there are: {', '.join(READERS)}", 0
    content = page["content"]
    if len(content) > MAX_CHARACTERS:
        return [], "too_large", f"{len(content)} characters", 0
    # Not in LaTeX and plain text, where the sign means less-than.
    if page["format"] in ("html", "markdown", "cnxml", "pretext") and content.count("<") > MAX_TAGS:
        return [], "too_many_tags", f"{content.count('<')} opening brackets", 0
    try:
        exercises, boxes = reader(content)
        candidates = candidate_rows(page, judged(exercises), max_answer_characters)
    except NotHtml as error:
        return [], "not_html", str(error), 0
    except NotXml as error:
        return [], "not_xml", str(error), 0
    except TooManyCommands as error:
        return [], "too_many_commands", str(error), 0
    except RecursionError:
        return [], "nested_too_deep", "", 0
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
