"""The lines of one block, parted where a line begins a part of an exercise: pages that break lines, not paragraphs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from stages.extract_web.labels.labels import (
    Part,
    answer_after_letter,
    is_question,
    is_whole_label,
    prefix_label,
)

_NUMBERED = re.compile(r"(?:#\s?)?[(\[]?(\d{1,4})[.):\]]+(?:\s+(?=\S)|(?=[^\d\s]))")
_ARROW = re.compile(r"\s*(?:[—–-]+|[→⇒»>•]+)\s*(?=[A-Z])")
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
