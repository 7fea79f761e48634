"""Labels of pages that name no solution in words that anyone foresaw: what the page does again and again tells.

Boxes that repeat with two parts (html_hints.py finds them), and two emphasised beginnings that take turns
("Student: ... Tutor: ..."), the first of which asks.
"""

from __future__ import annotations

import re
from collections import Counter

from stages.extract_web.blocks import Page
from stages.extract_web.instructions import ASKS
from stages.extract_web.labels import Label, Part
from stages.extract_web.numbering import strip_number

_NO_LETTER = re.compile(r"[\W\d_]+")
_NUMBER = re.compile(r"\d{1,4}")
_CALCULATES = re.compile(r"\d|[=√∫∑π]")
MIN_TURNS = 3
MAX_LEAD_CHARACTERS = 40
MIN_ASKING = 0.5


def asks(text: str) -> bool:
    """True for a text that wants something done, or has something to calculate."""
    return bool(ASKS.search(text) or _CALCULATES.search(text))


def add_records(page: Page, labels: list[Label | None]) -> None:
    """Labels the parts of the boxes that repeat."""
    for start, mark in page.records.items():
        labels[start : mark.end] = [None] * (mark.end - start)
        text = page.blocks[start].text
        number, rest = strip_number(text) if mark.part == "problem" else ("", text)
        end = mark.end if mark.part == "problem" else max(mark.end, _end_of_details(page, start, mark.end))
        labels[start] = Label(Part(mark.part), rest if any(map(str.isalnum, rest)) else "", number, end=end)


def _end_of_details(page: Page, start: int, end: int) -> int:
    """The end of the box that the toggle right before `start` opens; `end` where there is none."""
    if not start or page.blocks[start - 1].kind != "toggle":
        return end
    return next((last for last in page.spans.get(start - 1, []) if last > start), end)


def add_turns(page: Page, labels: list[Label | None]) -> None:
    """Labels two emphasised beginnings that take turns, each at least three times, if most of the first ask."""
    begun = [
        (index, _NO_LETTER.sub(" ", block.lead).strip().lower())
        for index, block in enumerate(page.blocks)
        if labels[index] is None and block.lead and block.lead != block.text and len(block.lead) <= MAX_LEAD_CHARACTERS
    ]
    common = [lead for lead, count in Counter(lead for _, lead in begun if lead).most_common(2) if count >= MIN_TURNS]
    if len(common) < 2:
        return
    turns = [(index, lead) for index, lead in begun if lead in common]
    first = turns[0][1]
    followed = list(zip(turns, [lead for _, lead in turns[1:]] + [first], strict=True))
    rests = [_rest(page, index) for index, lead in turns if lead == first]
    in_turn = sum(lead != first and after == first for (_, lead), after in followed)
    seconds = sum(lead != first for _, lead in turns)
    if in_turn < seconds or seconds < MIN_TURNS or sum(map(asks, rests)) < MIN_ASKING * len(rests):
        return
    for index, lead in turns:
        number = _NUMBER.search(page.blocks[index].lead)
        part = Part.PROBLEM if lead == first else Part.SOLUTION
        labels[index] = Label(part, _rest(page, index), number[0] if number and part is Part.PROBLEM else "")


def _rest(page: Page, index: int) -> str:
    block = page.blocks[index]
    return block.text[len(block.lead) :].lstrip(" .:)-–—\n")
