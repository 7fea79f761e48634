"""Labels to sections: which blocks each label governs, and their text.

A labelled part is the box that its label opens, when the page's nesting shows one: the largest container that begins
with the label and holds no second exercise. On a flat page it ends at the next exercise, or at a heading of the
label's rank or above.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from stages.extract_web.blocks import Page
from stages.extract_web.labels import Label, Part
from stages.extract_web.markup import written_vote

FURNITURE = re.compile(
    r"(?:share (?:this|on)|copyright|©|all rights reserved|this work is licen[sc]ed|licen[sc]ed under|advertisement"
    r"|sponsored|(?:posted|asked|answered|edited) (?:by|on|\d)|\d+ (?:votes?|upvotes?|comments?|views?|shares?)\b"
    r"|sign (?:in|up)\b|log in\b|subscribe\b|back to (?:the )?(?:top|exercises?|problems?|questions?)\b"
    r"|return to (?:the )?(?:top|exercises?|problems?|questions?)\b|(?:next|previous) (?:page|lesson|section)"
    r"|was this helpful|report (?:an? )?(?:error|problem|post)|read more\b|download\b.{0,40}$"
    r"|related (?:posts|articles|questions)|powered by|(?:posts|joined|location|reputation): \S|last edited\b"
    r"|(?:reply|quote|report|like|flag|edit|permalink)$|add a comment|score: [+−-]?\d+$|\S+ (?:wrote|said):"
    r"|sort(?:ed)? by\b|flag question$|mark(?:ed)? (?:[\d.]+ )?out of [\d.]+$|not (?:yet )?answered$|points?: [\d./]+$"
    r"|(?:your|the) (?:answer|response) (?:is|was) (?:partially )?(?:in)?correct\W*$"
    r"|(?:in|out) ?\[[\d ]{0,6}\]:?$|[–—-] ?\d{1,4} ?[–—-]$|step \d{1,2} of \d{1,2}$|(?:last )?(?:updated|modified)\b"
    r"|page \d{1,4}(?: of \d{1,4})?$|~ ?[A-Za-z][\w. -]{1,30}$)",
    re.IGNORECASE,
)
IMAGE = re.compile(r"!\[[^\n]*?\]\([^()\n]*\)")
_WITHOUT_WORDS = re.compile(r"\{:[^{}\n]*\}")
"""Attribute lists that a Markdown converter left in the text."""
MAX_FURNITURE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Section:
    """A label and the blocks it governs."""

    part: Part
    label: Label
    start: int
    end: int
    text: str


class LabelIndex:
    """The places of labels by part: `next` in logarithmic time, so that long pages stay linear."""

    def __init__(self, labels: Sequence[Label | None]) -> None:
        self._places = {
            part: [index for index, label in enumerate(labels) if label and label.part is part]
            for part in Part
        }

    def next(self, index: int, limit: int, parts: frozenset[Part]) -> int:
        """The first label of these parts after `index`, at most `limit`."""
        first = limit
        for part in parts:
            places = self._places[part]
            place = bisect_left(places, index + 1)
            if place < len(places):
                first = min(first, places[place])
        return first


_EXERCISES = frozenset([Part.PROBLEM, Part.BOUNDARY])
_ALL = frozenset(Part)
_ALL_BUT_ASIDE = _ALL - {Part.ASIDE}


def find_sections(page: Page, labels: Sequence[Label | None]) -> list[Section]:
    """The sections of all labels in order; asides within a section are left to it."""
    index_of = LabelIndex(labels)
    sections: list[Section] = []
    total = len(page.blocks)
    exercise_end = total
    for index, label in enumerate(labels):
        if label is None or (label.part is Part.ASIDE and sections and index < sections[-1].end):
            continue
        if label.part is Part.BOUNDARY:
            end = label.end or index + 1
            sections.append(Section(label.part, label, index, end, ""))
            continue
        if label.part is Part.PROBLEM:
            exercise_end = _extent(page, labels, index_of, index, total, _EXERCISES)
            end = index_of.next(index, exercise_end, _ALL)
        else:
            limit = exercise_end if index < exercise_end else total
            end = _extent(page, labels, index_of, index, limit, _ALL)
        sections.append(Section(label.part, label, index, end, section_text(page, label, index, end)))
    return sections


def _extent(
    page: Page,
    labels: Sequence[Label | None],
    index_of: LabelIndex,
    index: int,
    limit: int,
    stops: frozenset[Part],
) -> int:
    """End (exclusive) of what the label at `index` governs; `stops` are the labels that end it."""
    label = labels[index]
    assert label is not None
    stop = index_of.next(index, limit, stops - {Part.ASIDE})
    if label.end is not None:
        return min(label.end, stop)
    box = page.box(index, stop)
    if box:
        return box
    stop = index_of.next(index, stop, stops)
    block = page.blocks[index]
    if label.rest and label.part is Part.ANSWER:
        return index + 1
    end = min(stop, page.outer_end[index])
    for i in range(index + 1, end):
        other = page.blocks[i]
        is_boundary = other.kind == "heading" and (not block.level or other.level <= block.level)
        if other.kind == "rule" or (is_boundary and not labels[i]):
            return i
    return end


def section_text(page: Page, label: Label, start: int, end: int) -> str:
    """The governed text, one block a paragraph, list items with a dash, site furniture left out."""
    lines = [label.rest] if label.rest else []
    for block in page.blocks[start + 1 : end]:
        if block.kind not in ("rule", "vote") and not is_furniture(block.text):
            lines.append(f"- {block.text}" if block.kind == "item" else block.text)
    return without_descriptions("\n".join(lines).strip())


def is_furniture(text: str) -> bool:
    """True for a short text that sites put around their content: votes, dates, share links, licences."""
    return len(text) <= MAX_FURNITURE_CHARACTERS and bool(
        FURNITURE.match(text) or written_vote(text) is not None
    )


def is_byline(text: str) -> bool:
    """True for a short block with the name, posts or date of an author, or none at all."""
    return len(text) <= MAX_FURNITURE_CHARACTERS and (not text or any(map(is_furniture, text.split("\n"))))


def without_descriptions(text: str) -> str:
    """Images beside text shrink to `![]()`: they still show that the text leans on a figure, and their descriptions
    are not taken for the author's words. A part that is only images keeps them."""
    return (
        IMAGE.sub("![]()", text)
        if "![" in text and _WITHOUT_WORDS.sub("", IMAGE.sub("", text)).strip()
        else text
    )
