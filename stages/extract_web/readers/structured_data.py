"""Questions that a page tells search engines about: schema.org's QAPage, in JSON-LD or in microdata.

The JSON library reads the one, the HTML parser the other; their texts go through the reader of HTML. A FAQ is left to
the reader of its text: its questions are seldom exercises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from lxml import etree
from lxml.etree import _Element

from stages.extract_web.labels.labels import Label, Part
from stages.extract_web.pairing.exercises import Exercise
from stages.extract_web.pairing.sections import section_text
from stages.extract_web.readers.html_reader import read_html
from stages.extract_web.readers.html_source import NotHtml, parse_html

MAX_DEPTH = 20
_SCRIPTS = etree.XPath("//script[contains(@type, 'ld+json')]")
_TAG = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?>", re.IGNORECASE)


def read_structured_data(content: str) -> list[Exercise]:
    """The page's questions that have an answer; damaged data has none."""
    if "QAPage" not in content:
        return []
    root = parse_html(content)
    found = []
    for script in _SCRIPTS(root):
        try:
            data = json.loads(script.text or "")
        except (ValueError, RecursionError):
            continue
        found += [one for page in _of_type(data, "QAPage", 0) for one in _exercises(page)]
    if not found:
        item = next((one for one in root.iter() if "schema.org/Question" in one.get("itemtype", "")), None)
        found = [] if item is None else [*_exercises({"mainEntity": _question(item)})]
    return found


def _question(item: _Element) -> dict[str, Any]:
    """A question's microdata as JSON-LD would have it."""
    items: dict[_Element, dict[str, Any]] = {item: {"acceptedAnswer": [], "suggestedAnswer": []}}
    for one in item.iterdescendants():
        name = one.get("itemprop")
        if "schema.org/Answer" in one.get("itemtype", ""):
            items[one] = {}
            items[item]["acceptedAnswer" if name == "acceptedAnswer" else "suggestedAnswer"].append(
                items[one]
            )
        elif name in ("text", "name", "upvoteCount"):
            around = (outer for outer in one.iterancestors() if outer.get("itemscope") is not None)
            items.get(next(around, item), {}).setdefault(name, one)
    return items[item]


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
            problem = _text(question.get("text")) or _text(question.get("name"))
            solution = _text(best.get("text"))
            if problem and solution:
                yield Exercise(problem, solution, None, "")


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _votes(answer: dict[str, Any]) -> int:
    votes = answer.get("upvoteCount")
    if isinstance(votes, _Element):
        votes = votes.get("data-value") or votes.get("content") or (votes.text or "").strip()
    return int(votes) if re.fullmatch(r"-?[0-9]{1,9}", str(votes)) else 0


def _text(value: Any) -> str:
    """The words of a field, which may be an element or HTML; text without tags keeps its lines, as code needs them."""
    if isinstance(value, _Element):
        value = etree.tostring(value, encoding="unicode", method="html", with_tail=False)
    if not isinstance(value, str) or not _TAG.search(value):
        return value.strip() if isinstance(value, str) else ""
    try:
        page = read_html(value)
    except NotHtml:
        return ""
    return section_text(page, Label(Part.BOUNDARY, "", ""), -1, len(page.blocks))
