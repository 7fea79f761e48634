"""Labels of pages that name no solution in words that anyone foresaw: what the page does again and again tells.

Boxes that repeat with two parts (html_hints.py finds them), and two emphasised beginnings that take turns
("Student: ... Tutor: ..."), the first of which asks.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise

from stages.extract_web.blocks import Page
from stages.extract_web.instructions import ASKS
from stages.extract_web.labels import Label, Part
from stages.extract_web.numbering import strip_number

_NO_LETTER = re.compile(r"[\W\d_]+")
_NUMBER = re.compile(r"\d{1,4}")
_CALCULATES = re.compile(r"\d|[=√∫∑π]")
_LETTERS = re.compile(r"([A-Z][A-Za-z]?)\W?(\d{1,4})\W?")
MIN_TURNS = 3
MIN_AFTER = 0.7
"""Share of the repeated openings that come after an exercise."""
MAX_LETTERS = 9
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
        if labels[index] is None
        and block.lead
        and block.lead != block.text
        and len(block.lead) <= MAX_LEAD_CHARACTERS
    ]
    common = [
        lead
        for lead, count in Counter(lead for _, lead in begun if lead).most_common(2)
        if count >= MIN_TURNS
    ]
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


def add_toggles(page: Page, labels: list[Label | None]) -> None:
    """Labels what opens a part again and again in the same words ("Show me how"), mostly after an exercise of its own
    that no solution follows."""
    places: dict[str, list[int]] = defaultdict(list)
    for index, block in enumerate(page.blocks):
        if block.kind == "toggle" and labels[index] is None and len(block.text) <= MAX_LEAD_CHARACTERS:
            places[block.text.lower()].append(index)
    often = [found for found in places.values() if len(found) >= MIN_TURNS]
    if not often:
        return
    latest: list[int | None] = []
    problem: int | None = None
    solved: set[int | None] = set()
    for index, label in enumerate(labels):
        latest.append(problem)
        if label and label.part is not Part.ASIDE:
            solved |= {problem} if label.part is Part.SOLUTION else set()
            problem = index if label.part is Part.PROBLEM else None
    for found in often:
        after = len({latest[index] for index in found} - solved - {None})
        if after >= MIN_AFTER * len(found):
            for index in found:
                labels[index] = Label(Part.SOLUTION, "", "")


def add_letters(page: Page, labels: list[Label | None]) -> None:
    """Labels titles of a letter or two and a number that come in pairs: `P1`, `S1`, `P2`, `S2`."""
    titles = []
    for index, block in enumerate(page.blocks):
        title = block.lead or (block.text if block.kind in ("heading", "term") else "")
        found = _LETTERS.fullmatch(title) if 0 < len(title) <= MAX_LETTERS else None
        if found:
            titles.append((index, found[1], found[2], title))
    common = [
        letters for letters, count in Counter(one[1] for one in titles).most_common(2) if count >= MIN_TURNS
    ]
    if len(common) < 2:
        return
    titles = [one for one in titles if one[1] in common]
    first = titles[0][1]
    seconds = [(before, one) for before, one in pairwise(titles) if one[1] != first]
    if not all(before[1] == first and before[2] == one[2] for before, one in seconds):
        return
    for index, letters, number, title in titles:
        rest = page.blocks[index].text[len(title) :].lstrip(" .:)-–—\n")
        labels[index] = Label(Part.PROBLEM if letters == first else Part.SOLUTION, rest, number)


def _rest(page: Page, index: int) -> str:
    block = page.blocks[index]
    return block.text[len(block.lead) :].lstrip(" .:)-–—\n")
