"""Labels to sections: which blocks each label governs, and their text.

A labelled part is the box that its label opens, when the page's nesting shows one: the largest container that begins
with the label and holds no second exercise. On a flat page it ends at the next exercise, or at a heading of the
label's rank or above.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from stages.extract_web.labels.blocks import Page
from stages.extract_web.labels.furniture import (
    is_about_problem,
    is_furniture,
    is_placeholder,
    line_form,
    repeated_first_lines,
    repeated_form,
    repeated_last_line,
    repeated_problem_ends,
)
from stages.extract_web.labels.labels import Label, Part

MAX_LINES_AROUND = 3
"""Lines that a site writes around every part, one below the other."""
MIN_ALIKE = 2
"""Solutions of one paragraph each that tell how long the last one is."""
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
    return _without_repeated(_without_furniture(_without_ending(page, sections)))


def _without_ending(page: Page, sections: list[Section]) -> list[Section]:
    """The last solution without what follows on a flat page, where every other solution is one paragraph."""
    solutions = [
        place for place, section in enumerate(sections) if section.part in (Part.SOLUTION, Part.ANSWER)
    ]
    if len(solutions) <= MIN_ALIKE or not sections[solutions[-1]].label.rest:
        return sections
    if any(sections[place].end - sections[place].start > 1 for place in solutions[:-1]):
        return sections
    last = sections[solutions[-1]]
    if last.label.end is not None or page.outer_end[last.start] == last.end < len(page.blocks):
        return sections
    text = section_text(page, last.label, last.start, last.start + 1)
    sections[solutions[-1]] = replace(last, end=last.start + 1, text=text)
    return sections


def _without_furniture(sections: list[Section]) -> list[Section]:
    """The sections without the line in which most exercises end, solved ones and unsolved ones: it is no answer."""
    tails: dict[int, bool] = {}
    last, is_solved = None, False
    for place, section in enumerate([*sections, None]):
        if section is None or section.part in (Part.PROBLEM, Part.BOUNDARY):
            if last is not None:
                tails[last] = is_solved
            last, is_solved = (place, False) if section and section.part is Part.PROBLEM else (None, False)
        elif last is not None and section.text and section.part is not Part.ASIDE:
            last, is_solved = place, True
    lines = {place: line_form(sections[place].text.rpartition("\n")[2]) for place in tails}
    form = repeated_form([line for place, line in lines.items() if not tails[place]], list(lines.values()))
    if form is None:
        return sections
    kept = list(sections)
    for place, line in lines.items():
        before = sections[place].text.rpartition("\n")[0]
        if line == form and before:
            kept[place] = replace(sections[place], text=before)
    return kept


def _without_repeated(sections: list[Section]) -> list[Section]:
    """The sections without lines that most problems begin with or end in, or most solutions end in."""
    for _ in range(MAX_LINES_AROUND):
        problems = [section.text for section in sections if section.part is Part.PROBLEM]
        solutions = [section.text for section in sections if section.part in (Part.SOLUTION, Part.ANSWER)]
        first, end = repeated_first_lines(problems), repeated_problem_ends(problems)
        last = repeated_last_line(solutions)
        if not first and not end and last is None:
            break
        sections = [_without_lines(section, first, end, last) for section in sections]
    return sections


def _without_lines(
    section: Section, first: Collection[str], end: Collection[str], last: str | None
) -> Section:
    text = section.text
    if "\n" not in text:
        return section
    if section.part is Part.PROBLEM:
        text = text.partition("\n")[2] if text.partition("\n")[0] in first else text
        before, _, line = text.rpartition("\n")
        text = before if before and line in end else text
    elif section.part in (Part.SOLUTION, Part.ANSWER) and last is not None:
        text = text.removesuffix(f"\n{last}")
    return replace(section, text=text) if text != section.text else section


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
        if other.kind == "rule" or (is_boundary and not labels[i]):
            return i
    return end


def section_text(page: Page, label: Label, start: int, end: int) -> str:
    """The governed text, one block a paragraph, list items with a dash, site furniture left out."""
    lines = [label.rest] if label.rest and not is_furniture(label.rest) else []
    for block in page.blocks[start + 1 : end]:
        if block.kind != "rule" and not is_furniture(block.text):
            lines.append(f"- {block.text}" if block.kind == "item" else block.text)
    if label.part is Part.PROBLEM:
        said = [i for i, line in enumerate(lines) if not is_about_problem(line)]
        lines = lines[said[0] : said[-1] + 1] if said else lines
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
