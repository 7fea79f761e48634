"""Questions that a page tells search engines about: schema.org's QAPage in JSON-LD, read by the JSON library.

A FAQ is left to the reader of its text: its questions are seldom exercises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lxml import etree

from stages.extract_web.labels.blocks import tidy
from stages.extract_web.pairing.exercises import Exercise
from stages.extract_web.readers.html_source import NotHtml, parse_html

MAX_DEPTH = 20
_SCRIPTS = etree.XPath("//script[contains(@type, 'ld+json')]")


def read_structured_data(content: str) -> list[Exercise]:
    """The page's questions that have an answer; damaged data has none."""
    if "QAPage" not in content:
        return []
    found = []
    for script in _SCRIPTS(parse_html(content)):
        try:
            data = json.loads(script.text or "")
        except (ValueError, RecursionError):
            continue
        found += [one for page in _of_type(data, "QAPage", 0) for one in _exercises(page)]
    return found


def _of_type(data: Any, kind: str, depth: int) -> Iterator[dict[str, Any]]:
    if depth > MAX_DEPTH:
        return
    if isinstance(data, dict) and kind in _several(data.get("@type")):
        yield data
        return
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for one in inner:
        yield from _of_type(one, kind, depth + 1)


def _exercises(page: dict[str, Any]) -> Iterator[Exercise]:
    for question in _several(page.get("mainEntity")):
        if isinstance(question, dict):
            accepted = [one for one in _several(question.get("acceptedAnswer")) if isinstance(one, dict)]
            suggested = [one for one in _several(question.get("suggestedAnswer")) if isinstance(one, dict)]
            best = max(accepted or suggested, key=_votes, default={})
            problem, solution = _text(question.get("text") or question.get("name")), _text(best.get("text"))
            if problem and solution:
                yield Exercise(problem, solution, None, "")


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _votes(answer: dict[str, Any]) -> int:
    votes = answer.get("upvoteCount")
    return votes if isinstance(votes, int) else 0


def _text(value: Any) -> str:
    """The words of a field, which may be HTML."""
    if not isinstance(value, str) or not value.strip():
        return ""
    try:
        return tidy("".join(parse_html(value).itertext()))
    except NotHtml:
        return ""
