"""The labels of a whole page: what single blocks say, corrected and completed by what the page does again and again.

The markup's own words (a box of class "answer") stand in where there is no text; numbers alone are exercises where
solutions follow them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from stages.extract_web.labels.blocks import Mark, Page
from stages.extract_web.labels.instructions import ASKS, instruction_blocks
from stages.extract_web.labels.labels import Label, Part, find_label, is_first_option
from stages.extract_web.labels.numbering import (
    Numbered,
    numbered_blocks,
    numbered_headings,
    runs,
    strip_number,
)

MAX_RUNS = 50
"""Numbered runs of a page that are tried, the longest first."""
SOLVES = frozenset([Part.SOLUTION, Part.ANSWER])
MIN_QUESTIONS = 3
"""Summaries with a question mark, or that say "show"; fewer may be headings of a text."""
_SHOWS = re.compile(
    r"\W*(?:click\s+(?:here\s+)?to\s+)?(?:show|reveal|unhide|peek)(?:\s+(?:it|me|here))?\W*", re.IGNORECASE
)
MIN_SOLVED_SHARE = 0.25
OPTION_BLOCKS = 2
"""Blocks after the first option in which the second one begins: an option may have a line of code."""
NEAR = 3
"""Blocks from a container's beginning in which another of its kind is the same one."""


def page_labels(page: Page) -> list[Label | None]:
    """One entry for each block: the label that it is or begins with, or None."""
    labels = [find_label(block) for block in page.blocks]
    _drop_options(page, labels)
    if page.marks:
        _add_marks(page, labels)
    _add_hidden_answers(page, labels)
    if any(label and label.part in SOLVES for label in labels):
        _add_numbered_run(page, labels)
    elif not page.quoted:
        _drop_stray_numbers(page, labels)
    for index in instruction_blocks(page, labels):
        labels[index] = Label(Part.BOUNDARY, "", "")
    return labels


def _drop_options(page: Page, labels: list[Label | None]) -> None:
    """`A:` is the first of several options or points, not the label of an answer, where `B:` follows."""
    for index, label in enumerate(labels):
        if label and label.part is Part.ANSWER:
            following = [block.text for block in page.blocks[index + 1 : index + 1 + OPTION_BLOCKS]]
            if is_first_option(page.blocks[index].text, following):
                labels[index] = None


def _add_hidden_answers(page: Page, labels: list[Label | None]) -> None:
    """What a question in a `summary` hides is its answer, where neither that nor what follows is labelled as such.

    A summary without a label is a question where some have a question mark and most ask for something. A summary
    that only says "show" hides the solution of what stands before it.
    """
    hidden: dict[int, int] = {}
    for index, (block, label) in enumerate(zip(page.blocks, labels, strict=True)):
        is_open = label is None or (label.part is Part.PROBLEM and label.rest)
        end = page.box(index, len(page.blocks)) if block.kind == "toggle" and is_open else None
        after = labels[end] if end and end < len(labels) else None
        if end and not any(labels[index + 1 : end]) and not (after and after.part in SOLVES):
            hidden[index] = end
    texts = {index: page.blocks[index].text.rstrip() for index in hidden}
    shows = {index for index, text in texts.items() if _SHOWS.fullmatch(text)}
    questions = sum("?" in text or "？" in text for text in texts.values())
    asking = sum(bool(ASKS.search(text) or "？" in text) for text in texts.values())
    for index, end in hidden.items():
        if index in shows:
            if len(shows) >= MIN_QUESTIONS:
                labels[index] = Label(Part.SOLUTION, "", "", end=end, rule="markup")
            continue
        if labels[index] is None:
            if questions < MIN_QUESTIONS or 2 * asking < len(texts):
                continue
            labels[index] = Label(Part.PROBLEM, page.blocks[index].text, "", end=index + 1)
        first = page.blocks[index + 1]
        rest = f"- {first.text}" if first.kind == "item" else first.text
        labels[index + 1] = Label(Part.SOLUTION, rest, "", end=end, rule="markup")


def _drop_stray_numbers(page: Page, labels: list[Label | None]) -> None:
    """Numbers alone, as versions and slides have them, count only on pages where solutions are labelled or quoted."""
    for index, label in enumerate(labels):
        if label and not label.rest and not re.search("[A-Za-z]", page.blocks[index].text[:12]):
            labels[index] = None


def _add_marks(page: Page, labels: list[Label | None]) -> None:
    kept: list[tuple[int, Mark]] = []
    boxed = {mark.part for start, mark in page.marks.items() if mark.end > start + 1}
    for start, mark in sorted(page.marks.items()):
        part = Part(mark.part)
        while kept and kept[-1][1].end <= start:
            kept.pop()
        label = labels[start]
        if label:
            is_title = mark.end == start + 1 and not label.rest
            is_title = is_title and (page.blocks[start].kind == "heading" or mark.part not in boxed)
            if not is_title and (label.part is part or {label.part, part} <= SOLVES):
                labels[start] = replace(label, end=mark.end)
                kept.append((start, mark))
            continue
        if any(
            Part(outer.part) is part and (part is not Part.PROBLEM or start - first <= NEAR)
            for first, outer in kept
        ):
            continue
        labels[start] = _marked_label(page, labels, start, mark, part)
        kept.append((start, mark))


def _marked_label(page: Page, labels: list[Label | None], start: int, mark: Mark, part: Part) -> Label:
    block = page.blocks[start]
    is_title = block.kind == "heading" and mark.end - start > 1 and labels[start + 1] is None
    following = page.marks.get(start + 1)
    is_title = is_title and not (following and part is Part.PROBLEM and Part(following.part) in SOLVES)
    number, rest = strip_number(block.text) if part is Part.PROBLEM else ("", block.text)
    return Label(part, "" if is_title else rest, number, end=mark.end, rule="markup")


def _add_numbered_run(page: Page, labels: list[Label | None]) -> None:
    """Blocks that are merely numbered are exercises when most solutions of the page follow one of them each."""
    solved = [
        index for index, label in enumerate(labels) if label and label.part in SOLVES and not label.number
    ]
    if any(label and label.part is Part.PROBLEM for label in labels):
        return
    numbered = [*numbered_blocks(page, 0, len(page.blocks)), *numbered_headings(page)]
    free = [one for one in numbered if labels[one.index] is None]
    longest = sorted((run for run in runs(free, is_gapless=True) if len(run) > 1), key=len, reverse=True)
    for run in longest[:MAX_RUNS]:
        places = [one.index for one in run]
        followed = followed_by_solution(labels, places)
        if followed >= 2 and followed >= MIN_SOLVED_SHARE * len(run) and 2 * followed >= len(solved):
            label_run(labels, run)
            return


def label_run(labels: list[Label | None], run: list[Numbered]) -> None:
    """Makes every block of the run an exercise's label."""
    for one in run:
        labels[one.index] = Label(Part.PROBLEM, one.rest, one.number, rule="number")


def followed_by_solution(labels: Sequence[Label | None], places: Sequence[int]) -> int:
    """How many of the places have a solution, and no other exercise's label, before the next."""
    ends = [*places[1:], len(labels)]
    count = 0
    for place, end in zip(places, ends, strict=True):
        first = next(
            (label.part for label in labels[place + 1 : end] if label and label.part is not Part.ASIDE), None
        )
        count += first in SOLVES
    return count
