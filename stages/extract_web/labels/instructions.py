"""Instructions that several exercises share: "For the following exercises, solve for x." """

from __future__ import annotations

import re
from collections.abc import Sequence

from stages.extract_web.labels.blocks import Page
from stages.extract_web.labels.labels import Label, Part

_SEVERAL = r"(?:exercises|problems|questions)"
_COUNTS = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "twelve": 12,
}
_INSTRUCTION = re.compile(
    rf"(?:for|in|with)\s+(?:each\s+of\s+)?(?:the\s+)?(?:following|next)\b(?=.{{0,60}}\b{_SEVERAL})"
    rf"|(?:for|in)\s+{_SEVERAL}\s+#?\d"
    rf"|{_SEVERAL}\s+\d{{1,4}}\s*(?:-|–|—|to|through|and)\s*\d{{1,4}}\s*[:.]?"
    rf"|(?:use|refer|consider|read)\b(?=.{{0,200}}\b(?:next|following)\s+(?:\w+\s+)?{_SEVERAL})"
    r"|(?:directions|instructions)\s*[:.]",
    re.IGNORECASE | re.DOTALL,
)
ASKS = re.compile(
    r"\?|\b(?:prove|show|find|give|compute|calculate|describe|suppose|consider|determine|explain|solve|design|argue"
    r"|simplify|evaluate|write|name|state|list|factor|sketch|graph)\b",
    re.IGNORECASE,
)
"""What a text says that wants something done."""
_CALCULATES = re.compile(r"\d|[=√∫∑π]")
_RANGE = re.compile(rf"{_SEVERAL}\s+#?(\d{{1,4}})\s*(?:-|–|—|to|through|and)\s*#?(\d{{1,4}})", re.IGNORECASE)
_NEXT = re.compile(rf"\bnext\s+(\w+)\s+{_SEVERAL}", re.IGNORECASE)
MAX_CHARACTERS = 1_500


def asks(text: str) -> bool:
    """True for a text that wants something done, or has something to calculate."""
    return bool(ASKS.search(text) or _CALCULATES.search(text))


def is_instruction(text: str) -> bool:
    """True for a text that tells what to do in several exercises."""
    return len(text) <= MAX_CHARACTERS and bool(_INSTRUCTION.match(text))


def instruction_blocks(page: Page, labels: Sequence[Label | None]) -> list[int]:
    """Blocks that are shared instructions: outside each box that an exercise's label opens, an exercise after them."""
    found = []
    problems = [index for index, label in enumerate(labels) if label and label.part is Part.PROBLEM]
    inside, following = 0, 0
    for index in range(problems[-1] if problems else 0):
        if index == problems[following]:
            following += 1
            limit = problems[following] if following < len(problems) else len(page.blocks)
            label = labels[index]
            inside = max(inside, page.box(index, limit) or 0, label.end or 0 if label else 0)
        elif index >= inside and labels[index] is None and is_instruction(page.blocks[index].text):
            found.append(index)
    return found


def instruction_scope(text: str) -> tuple[int | None, tuple[int, int] | None]:
    """(how many exercises, first and last number) that the instruction names; None where it does not."""
    named = _RANGE.search(text)
    following = _NEXT.search(text)
    count = None
    if following:
        word = following[1].lower()
        count = int(word) if word.isdecimal() and len(word) <= 3 else _COUNTS.get(word)
    return count, (int(named[1]), int(named[2])) if named else None
