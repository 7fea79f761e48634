"""Pages to candidates: each page through the reader of its format, then pairing, then the short answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pandas

from stages.extract_web.html_reader import NotHtml, read_html
from stages.extract_web.latex_reader import TooManyCommands, read_latex
from stages.extract_web.pairing import Exercise, find_exercises
from stages.extract_web.params import ExtractWebParams
from stages.extract_web.short_answer import short_answer
from stages.extract_web.text_reader import read_text
from stages.extract_web.xml_reader import NotXml, read_xml
from stages.foundations.funnel import Funnel
from stages.foundations.lifetime import die_with_parent
from stages.foundations.progress import progress

READERS: dict[str, Callable[[str], list[Exercise]]] = {
    "html": lambda content: find_exercises(read_html(content)),
    "markdown": lambda content: find_exercises(read_text(content)),
    "text": lambda content: find_exercises(read_text(content)),
    "cnxml": read_xml,
    "pretext": read_xml,
    "latex": read_latex,
}
MAX_CHARACTERS = 16_000_000
MAX_TAGS = 400_000
"""Opening brackets in a page of markup; real pages, formulas included, stay under 150,000."""
PAGES_PER_TASK = 16

Outcome = tuple[list[dict[str, Any]], str, str]
"""Candidates of one page; or none, the reason and a detail."""


def extract_page(page: Mapping[str, str], max_answer_characters: int) -> Outcome:
    """The candidates of one page in reading order; an empty list comes with a reason. Never raises for a bad page."""
    reader = READERS.get(page["format"])
    if reader is None:
        return [], "format_not_read", f"no reader for {page['format']!r}; there are: {', '.join(READERS)}"
    content = page["content"]
    if len(content) > MAX_CHARACTERS:
        return [], "too_large", f"{len(content)} characters"
    if page["format"] in ("html", "cnxml", "pretext") and content.count("<") > MAX_TAGS:
        return [], "too_many_tags", f"{content.count('<')} opening brackets"
    try:
        exercises = reader(content)
    except NotHtml as error:
        return [], "not_html", str(error)
    except NotXml as error:
        return [], "not_xml", str(error)
    except TooManyCommands as error:
        return [], "too_many_commands", str(error)
    except (RecursionError, MemoryError) as error:
        return [], "nested_too_deep" if isinstance(error, RecursionError) else "out_of_memory", ""
    candidates = [
        {
            "candidate_id": f"{page['page_id']}#{index}",
            "page_id": page["page_id"],
            "url": page["url"],
            "problem": exercise.problem,
            "solution": exercise.solution,
            "answer": short_answer(exercise.solution, exercise.answer, max_answer_characters),
            "instructions": exercise.instructions,
            "licence": page["licence"],
        }
        for index, exercise in enumerate(exercises)
    ]
    return candidates, "" if candidates else "no_exercise", ""


def extract(
    pages: pandas.DataFrame, params: ExtractWebParams
) -> tuple[list[dict[str, Any]], Funnel, dict[str, int]]:
    """All candidates in page order, the funnel of pages, and metrics. `processes` does not change the result."""
    records = pages.to_dict("records")
    funnel = Funnel("extract_web", len(records))
    candidates: list[dict[str, Any]] = []
    outcomes = progress(_outcomes(records, params), len(records), "extracting", "pages")
    for page, (found, reason, detail) in zip(records, outcomes, strict=True):
        candidates += [_table_row(row, params.shared_instructions) for row in found]
        if reason:
            known = {name: page[name] for name in ("page_id", "url", "format")}
            funnel.drop({**known, "beginning": page["content"][:500]}, reason, detail)
    kept = len(records) - len(funnel.dropped_frame())
    metrics = {
        **funnel.metrics(kept),
        "candidates/all": len(candidates),
        "candidates/with_solution": sum(row["solution"] is not None for row in candidates),
        "candidates/with_answer": sum(row["answer"] is not None for row in candidates),
    }
    return candidates, funnel, metrics


def _table_row(candidate: dict[str, Any], shared_instructions: str) -> dict[str, Any]:
    """The candidate as the table has it: with the instructions in front of the problem, or without them."""
    row = {name: value for name, value in candidate.items() if name != "instructions"}
    if candidate["instructions"] and shared_instructions == "prepended":
        row["problem"] = f"{candidate['instructions']}\n{candidate['problem']}"
    return row


def _outcomes(records: Sequence[Mapping[str, str]], params: ExtractWebParams) -> Iterator[Outcome]:
    limits = [params.max_answer_characters] * len(records)
    if params.processes == 1 or len(records) < 2 * PAGES_PER_TASK:
        yield from map(extract_page, records, limits)
        return
    with ProcessPoolExecutor(params.processes, initializer=die_with_parent) as pool:
        yield from pool.map(extract_page, records, limits, chunksize=PAGES_PER_TASK)
