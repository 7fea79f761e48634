"""Badges that only the place beside an exercise's label tells: rows of spans that a page's style alone parts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lxml.etree import _Element

from stages.extract_web.furniture import is_about_problem, tells
from stages.extract_web.labels import is_toggle_label, is_worded_label
from stages.extract_web.markup import MAX_BADGE_CHARACTERS, MAX_BYLINE_CHARACTERS, short_text

_WORDS = re.compile(r"[^\W\d_]{2}(?:[^\W\d_]|[ ,&/’'.-])*(?:\s\d{1,4}(?:\.\d{1,3})?)?")
_DIGIT = re.compile(r"\d")
MAX_BADGES = 6


def badges_beside_label(row: _Element) -> Sequence[_Element]:
    """The spans of a row that stand after an exercise's label in its first one and tell its field or difficulty; none
    where the row has any other text."""
    if not 2 <= len(row) <= MAX_BADGES + 1 or any(child.tag != "span" for child in row):
        return []
    if (row.text or "").strip() or any((child.tail or "").strip() for child in row):
        return []
    label, *others = (short_text(child, MAX_BYLINE_CHARACTERS) for child in row)
    is_numbered = bool(_DIGIT.search(label)) and is_worded_label(label) and not is_toggle_label(label)
    return list(row)[1:] if is_numbered and all(map(_is_badge, others)) else []


def _is_badge(text: str) -> bool:
    is_name = len(text) <= MAX_BADGE_CHARACTERS and bool(_WORDS.fullmatch(text))
    return is_about_problem(text) or (is_name and not tells(text))
