"""Blocks to candidates: what each label opens, and which solution belongs to which exercise.

An exercise is the box that its label opens, when the page's nesting shows one: the largest container that begins
with the label and holds no second exercise. On a flat page it ends at the next exercise, or at a heading of the
label's rank or above. The same goes for a solution inside the exercise. An exercise without a label is what stands
between the last boundary and a toggle that shows a solution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stages.extract_web.blocks import Page
from stages.extract_web.labels import Label, Part, find_label

FURNITURE = re.compile(
    r"(?:share (?:this|on)|copyright|©|all rights reserved|this work is licen[sc]ed|licen[sc]ed under|advertisement"
    r"|sponsored|(?:posted|asked|answered|edited) (?:by|on|\d)|\d+ (?:votes?|upvotes?|comments?|views?|shares?)\b"
    r"|sign (?:in|up)\b|log in\b|subscribe\b|back to top|(?:next|previous) (?:page|lesson|section)|was this helpful"
    r"|report (?:an? )?(?:error|problem|post)|read more\b|download\b.{0,40}$|related (?:posts|articles|questions)"
    r"|powered by)",
    re.IGNORECASE,
)
IMAGE = re.compile(r"!\[[^\n]*?\]\([^()\n]*\)")
MAX_FURNITURE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Exercise:
    """What a page says about one exercise; None where it says nothing."""

    problem: str
    solution: str | None
    answer: str | None
    number: str


@dataclass(frozen=True, slots=True)
class _Section:
    """A label and the blocks it governs."""

    part: Part
    label: Label
    start: int
    end: int
    text: str


def find_exercises(page: Page) -> list[Exercise]:
    """Every exercise of the page in reading order, those without a solution included."""
    labels = [find_label(block) for block in page.blocks]
    labels = _without_stray_numbers(page, labels)
    sections = _sections(page, labels)
    exercises: list[Exercise] = []
    index = 0
    while index < len(sections):
        if sections[index].part is Part.PROBLEM:
            own = _owned(sections, index)
            exercises.append(_exercise(sections[index], own))
            index += 1 + len(own)
            continue
        if sections[index].part in (Part.SOLUTION, Part.ANSWER):
            own = _adjoining(sections, index)
            problem = _unlabelled_problem(page, sections, index)
            if problem:
                head = _Section(Part.PROBLEM, Label(Part.PROBLEM, "", ""), 0, 0, problem)
                exercises.append(_exercise(head, own))
            index += len(own)
            continue
        index += 1
    return [exercise for exercise in exercises if exercise.problem]


def _without_stray_numbers(page: Page, labels: list[Label | None]) -> list[Label | None]:
    """Headings that are bare numbers count only on pages where solutions or answers are labelled."""
    if any(label and label.part in (Part.SOLUTION, Part.ANSWER) for label in labels):
        return labels
    return [label if label is None or re.search("[A-Za-z]", page.blocks[i].text[:12]) else None
            for i, label in enumerate(labels)]  # fmt: skip


def _sections(page: Page, labels: list[Label | None]) -> list[_Section]:
    sections: list[_Section] = []
    exercise_end = len(page.blocks)
    for index, label in enumerate(labels):
        if label is None or (label.part is Part.ASIDE and sections and index < sections[-1].end):
            continue
        if label.part is Part.PROBLEM:
            exercise_end = _extent(page, labels, index, len(page.blocks), {Part.PROBLEM})
            end = _next_label(labels, index, exercise_end, set(Part))
        else:
            limit = exercise_end if index < exercise_end else len(page.blocks)
            end = _extent(page, labels, index, limit, set(Part))
        sections.append(_Section(label.part, label, index, end, _text(page, label, index, end)))
    return sections


def _extent(page: Page, labels: list[Label | None], index: int, limit: int, stops: set[Part]) -> int:
    """End (exclusive) of what the label at `index` governs; `stops` are the labels that end it."""
    stop = _next_label(labels, index, limit, stops - {Part.ASIDE})
    boxes = [end for end in page.spans.get(index, []) if index + 1 < end <= stop]
    if boxes:
        return boxes[-1]
    stop = _next_label(labels, index, stop, stops)
    block, label = page.blocks[index], labels[index]
    if label.rest and label.part is Part.ANSWER:
        return index + 1
    end = min(stop, page.outer_end[index])
    for i in range(index + 1, end):
        other = page.blocks[i]
        is_boundary = other.kind == "heading" and (not block.level or other.level <= block.level)
        if other.kind == "rule" or (is_boundary and not labels[i]):
            return i
    return end


def _next_label(labels: list[Label | None], index: int, limit: int, parts: set[Part]) -> int:
    return next((i for i in range(index + 1, limit) if labels[i] and labels[i].part in parts), limit)


def _text(page: Page, label: Label, start: int, end: int) -> str:
    """The governed text, one block a paragraph, list items with a dash, site furniture left out."""
    lines = [label.rest] if label.rest else []
    for block in page.blocks[start + 1 : end]:
        is_furniture = len(block.text) <= MAX_FURNITURE_CHARACTERS and FURNITURE.match(block.text)
        if block.kind != "rule" and not is_furniture:
            lines.append(f"- {block.text}" if block.kind == "item" else block.text)
    return _without_descriptions("\n".join(lines).strip())


def _without_descriptions(text: str) -> str:
    """Images beside text shrink to `![]()`: they still show that the text leans on a figure, and their descriptions
    are not taken for the author's words. A part that is only images keeps them."""
    return IMAGE.sub("![]()", text) if IMAGE.sub("", text).strip() else text


def _owned(sections: list[_Section], head: int) -> list[_Section]:
    """The solutions, answers and asides that follow the section `head` before the next exercise.

    They must follow without a gap: prose between an exercise and a solution means that they are strangers.
    """
    own: list[_Section] = []
    end = sections[head].end
    for section in sections[head + 1 :]:
        if section.part is Part.PROBLEM or section.start > end:
            break
        own.append(section)
        end = section.end
    return own


def _adjoining(sections: list[_Section], first: int) -> list[_Section]:
    """The section `first` and those that follow it without a block between, each part once."""
    own = [sections[first]]
    for section in sections[first + 1 :]:
        if section.start != own[-1].end or section.part in {Part.PROBLEM, *(earlier.part for earlier in own)}:
            break
        own.append(section)
    return own


def _unlabelled_problem(page: Page, sections: list[_Section], index: int) -> str:
    """Text right before a solution that no labelled exercise owns: back to a heading, a rule or the last section."""
    section = sections[index]
    last_end = max((earlier.end for earlier in sections[:index]), default=0)
    start = section.start
    while start > last_end and page.blocks[start - 1].kind not in ("heading", "rule"):
        start -= 1
        if page.blocks[start].kind == "paragraph" and page.outer_end[start] != page.outer_end[start + 1]:
            break
    return _text(page, Label(Part.PROBLEM, "", ""), start - 1, section.start)


def _exercise(head: _Section, own: list[_Section]) -> Exercise:
    """The first solution and the first answer count; a lone answer stands for both, as sites use the words freely."""
    solution = next((section.text for section in own if section.part is Part.SOLUTION and section.text), None)
    answer = next((section.text for section in own if section.part is Part.ANSWER and section.text), None)
    return Exercise(head.text, solution if solution is not None else answer, answer, head.label.number)
