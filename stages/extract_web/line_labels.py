"""The lines of one block, parted where a line begins a part of an exercise: pages that break lines, not paragraphs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from lxml.etree import _Element

from stages.extract_web.blocks import tidy
from stages.extract_web.html_tables import MAX_LEAD_CHARACTERS
from stages.extract_web.labels import (
    Part,
    answer_after_letter,
    is_question,
    is_solution_label,
    is_whole_label,
    prefix_label,
)

_NUMBERED = re.compile(r"(?:#\s?)?[(\[]?(\d{1,4})[.):\]]+(?:\s+(?=\S)|(?=[^\d\s]))")
_BEGINS = re.compile(r"(?:[^\W\d]{1,12}\.?\s?)?[(\[#]?\d{1,4}(?:\.\d{1,3})?[.):\]]+\s")
_IN_LINE = re.compile(
    r"(?<=[.?!:)\]$])\s+(?=(?:Answer|Solution|Ans|Soln|Sol|ANSWER|SOLUTION|ANS)\s?(?:[:.]|[:.]?\s?[–—-])\s)"
    r"|\s*[(\[](?=(?:Answer|Ans|ANS|ANSWER|Solution|Sol)\s?[:.=]\s?[^\n]{1,600}[)\]]\Z)"
)
"""Where an answer begins within the line of its exercise: after a sentence, or in brackets at the end."""
_ARROW = re.compile(r"\s*(?:[—–-]+|[→⇒»>•]+)\s*(?=[A-Z])")
_NUMBER_WITH_SIGN = re.compile(r"[(\[]?\d{1,4}[.):\]]+")
MIN_NUMBERED = 3
"""Numbers that lines must count through to be parted there."""


def labelled_lines(text: str) -> list[str]:
    """The text, parted before each line that begins with a label of an exercise's part, or with the next number."""
    lines = text.split("\n")
    numbered = _counted(lines)
    pieces: list[str] = []
    asked = False
    for index, (line, following) in enumerate(pairwise([*lines, ""])):
        line = _without_arrow(line) if pieces else line
        if not pieces or index in numbered or is_whole_label(line) or prefix_label(line):
            asked = is_question(line)
            pieces.append(line)
        elif asked and answer_after_letter(line, following):
            asked = False
            pieces.append(line)
        else:
            pieces[-1] += "\n" + line
    return pieces


def _without_arrow(line: str) -> str:
    """A solution's line without the dash or arrow before its label."""
    arrow = _ARROW.match(line)
    label = prefix_label(line[arrow.end() :]) if arrow else None
    return line[arrow.end() :] if arrow and label and label.part in (Part.SOLUTION, Part.ANSWER) else line


def answer_in_line(text: str, is_item: bool) -> list[str]:
    """A numbered exercise and the answer that the same line goes on with; one piece where there is none."""
    place = _IN_LINE.search(text) if "ns" in text or "ol" in text or "NS" in text or "OL" in text else None
    if not place or not place.start() or "\n" in text or not (is_item or _BEGINS.match(text)):
        return [text]
    answer = text[place.end() :]
    if text[: place.end()].rstrip()[-1:] in "([":
        answer = answer[:-1] if answer[-1] in ")]" else answer
    return [text[: place.start()], answer]


def begins_line(pieces: Sequence[str], element: _Element) -> bool:
    """True for a label that stands emphasised at the beginning of a line of the block that the pieces make; within a
    line only that of a solution, with a colon."""
    before = next((piece for piece in reversed(pieces) if piece.strip(" ")), "")
    text = tidy("".join(element.itertext())) if len(element) < 10 else ""
    if not before.endswith("\n"):
        sign = text[-1:] if text[-1:] in ":." else (element.tail or "").lstrip()[:1]
        is_short = sign == ":" and 3 < len(text) <= MAX_LEAD_CHARACTERS
        return is_short and before.rstrip()[-1:] not in ("(", "[") and is_solution_label(text.rstrip(":"))
    return 0 < len(text) <= MAX_LEAD_CHARACTERS and (
        is_whole_label(text) or is_whole_label(text + ":") or bool(_NUMBER_WITH_SIGN.fullmatch(text))
    )


def _counted(lines: Sequence[str]) -> frozenset[int]:
    """Lines that begin with 1, 2, 3 and so on, from whatever number; none where there are fewer than three."""
    found = [(index, int(number[1])) for index, line in enumerate(lines) if (number := _NUMBERED.match(line))]
    if len(found) < MIN_NUMBERED:
        return frozenset()
    kept = found[:1]
    for index, number in found[1:]:
        if kept[-1][1] < number <= kept[-1][1] + 2:
            kept.append((index, number))
    return frozenset(index for index, _ in kept) if len(kept) >= MIN_NUMBERED else frozenset()
