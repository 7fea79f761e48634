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

from stages.extract_web.labels.blocks import Page
from stages.extract_web.labels.furniture import is_furniture, is_placeholder
from stages.extract_web.labels.labels import Label, Part

IMAGE = re.compile(r"!\[[^\n]*?\]\([^()\n]*\)")
_WITHOUT_WORDS = re.compile(r"\{:[^{}\n]*\}")
"""Attribute lists that a Markdown converter left in the text."""


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
            is_last = page.blocks[index].kind == "toggle" and index + 1 == exercise_end and not label.rest
            limit = exercise_end if index < exercise_end and not is_last else total
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
    end = min(stop, page.outer_end[index])
    if block.kind == "toggle" and end == index + 1 < stop and not label.rest:
        opened = [last for last in page.spans.get(end, []) if last <= stop]
        return max(opened, default=end)
    for i in range(index + 1, end):
        other = page.blocks[i]
        is_boundary = other.kind == "heading" and (not block.level or other.level <= block.level)
        is_rule = other.kind == "rule" and (
            i > index + 1 or label.rest
        )  # right below a label it is decoration
        if is_rule or (is_boundary and not labels[i]):
            return i
    return end


def section_text(page: Page, label: Label, start: int, end: int) -> str:
    """The governed text, one block a paragraph, list items with a dash, site furniture left out."""
    lines = [label.rest] if label.rest and not is_furniture(label.rest) else []
    for block in page.blocks[start + 1 : end]:
        if block.kind != "rule" and not is_furniture(block.text):
            lines.append(f"- {block.text}" if block.kind == "item" else block.text)
    text = without_descriptions("\n".join(lines).strip())
    if label.part in (Part.SOLUTION, Part.ANSWER):
        return "" if is_placeholder(text) else text
    return text


def without_descriptions(text: str) -> str:
    """Images beside text shrink to `![]()`: they still show that the text leans on a figure, and their descriptions
    are not taken for the author's words. A part that is only images keeps them."""
    return (
        IMAGE.sub("![]()", text)
        if "![" in text and _WITHOUT_WORDS.sub("", IMAGE.sub("", text)).strip()
        else text
    )
