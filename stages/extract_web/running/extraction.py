"""A page to candidates: through the reader of its format, then pairing, then the short answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stages.extract_web.pairing.candidates import candidate_rows
from stages.extract_web.pairing.confidence import judged
from stages.extract_web.pairing.exercises import Exercise, find_exercises
from stages.extract_web.readers.html_reader import read_html
from stages.extract_web.readers.html_source import NotHtml
from stages.extract_web.readers.latex_reader import TooManyCommands, read_latex
from stages.extract_web.readers.markdown_reader import read_markdown
from stages.extract_web.readers.structured_data import read_structured_data
from stages.extract_web.readers.text_reader import read_text
from stages.extract_web.readers.xml_reader import NotXml, read_xml

READERS: dict[str, Callable[[str], list[Exercise]]] = {
    "html": lambda content: read_structured_data(content) or find_exercises(read_html(content)),
    "markdown": read_markdown,
    "text": lambda content: find_exercises(read_text(content)),
    "cnxml": read_xml,
    "pretext": read_xml,
    "latex": read_latex,
}
MAX_CHARACTERS = 16_000_000
MAX_TAGS = 400_000
"""Opening brackets in a page of markup; real pages, formulas included, stay under 150,000."""

Outcome = tuple[list[dict[str, Any]], str, str]
"""Candidates of one page; or none, the reason and a detail."""


def extract_page(page: Mapping[str, str], max_answer_characters: int) -> Outcome:
    """The candidates of one page in reading order; an empty list comes with a reason.

    Raises for no bad page, apart from MemoryError where memory is limited: see `page_readers.py`.
    """
    reader = READERS.get(page["format"])
    if reader is None:
        return [], "format_not_read", f"no reader for {page['format']!r}; there are: {', '.join(READERS)}"
    content = page["content"]
    if len(content) > MAX_CHARACTERS:
        return [], "too_large", f"{len(content)} characters"
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
