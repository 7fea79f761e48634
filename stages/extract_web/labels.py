"""Recognises the words with which pages label exercises, solutions, answers and hints.

A label is either a whole block ("Show Solution", "Q12", "Exercise 3.") or the beginning of one, set off by emphasis,
a colon, a full stop or a number ("Answer: 7", "Q12. Compute 3+4").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from stages.extract_web.blocks import Block


class Part(StrEnum):
    """What follows a label."""

    PROBLEM = "problem"
    SOLUTION = "solution"
    ANSWER = "answer"
    ASIDE = "aside"
    """Hints, discussion, ratings: belongs to the exercise and to none of the three."""


@dataclass(frozen=True, slots=True)
class Label:
    """A recognised label."""

    part: Part
    rest: str
    """Text of the block after the label; empty when the label is the whole block."""
    number: str
    """The exercise's number as written, empty when there is none."""


_NUMBER = r"(?P<number>[A-Z]?\d{1,6}(?:[.\-]\d{1,6})*[a-z]?|[ivx]{1,5})"
_OPENER = (
    r"(?:(?:click|tap|press|hover)\s+(?:here\s+)?(?:to|for)\s+)?"
    r"(?:(?:show/hide|show|see|view|reveal|display|hide|check|open|get|toggle)\s+)?"
    r"(?:(?:the|my|a|full|worked|detailed|sample|suggested|model|step-by-step|official|best|accepted|top|final|correct"
    r"|short|complete|expert|verified)\s+){0,3}"
)
_WORDS = {
    Part.PROBLEM: r"(?:(?:(?:worked|practice|sample|review|your|the)\s+)?"
    r"(?:exercises?|problem|question|example|practice|task|quiz|puzzle|challenge|checkpoint|self-?check|your\s+turn"
    r"|try\s+it(?:\s+(?:yourself|now))?)|prob|ques|ex|q)",
    Part.SOLUTION: _OPENER + r"(?:solutions?|soln|sol|workings?|working\s+out|worked\s+out|explanation|steps"
    r"|walkthrough|how\s+to\s+solve\s+it|proof)",
    Part.ANSWER: _OPENER + r"(?:answers?|ans|result|answer\s+key)",
    Part.ASIDE: r"(?:(?:show\s+|see\s+)?hints?|tips?|discussion|comments?|rating|difficulty|topics?|tags?|source"
    r"|remarks?|notes?|strategy)",
}
_NUMBERED = r"(?:\.(?=\s?\d))?\s*(?:no\.?\s*|number\s*|#\s*)?"
_TAIL = r"(?:\s+(?:by|from)\s+[\w .@-]{1,40})?(?:\s*\([^()]{0,40}\))?"
_WHOLE = {
    part: re.compile(rf"(?:{words}){_NUMBERED}(?:{_NUMBER})?{_TAIL}\s*[.:)\]>▼▾▸+–—-]*\s*", re.IGNORECASE)
    for part, words in _WORDS.items()
}
_PREFIX = {
    part: re.compile(
        rf"(?:{words}){_NUMBERED}(?:{_NUMBER}\s*(?:[:)\]–—-]|\.(?!\d))|[:)]|\.(?=\s)|\s[–—-](?=\s))\s*",
        re.IGNORECASE,
    )
    for part, words in _WORDS.items()
}
_OF_AN_EXERCISE = re.compile(
    rf"(?P<word>answer|solution)s?\s+(?:to|for|of)\s+(?:the\s+)?(?:exercise|problem|question|q)?\s*#?{_NUMBER}?\s*[.:]*",
    re.IGNORECASE,
)
_LETTER_A = re.compile(rf"A(?:{_NUMBER}\s*[.:)–—-]?|\s*:)\s*")
"""One letter is a label only as `A:` or `A12.`: "a", "a." and "A)" are choices and parts of exercises."""
_BARE_NUMBER = re.compile(r"[(\[]?(?P<number>\d{1,4}(?:\.\d{1,3}){0,2})[.):\]]*")
_FIRST_LETTERS = re.compile(r"[(\[]?[A-Za-z0-9]")


def find_label(block: Block) -> Label | None:
    """The label that the block is or begins with, or None.

    A bare number counts only as a heading, a term or an emphasised beginning, because paragraphs, cells and the
    steps of a solution begin with numbers too.
    """
    if block.kind in ("table", "rule") or not _FIRST_LETTERS.match(block.text):
        return None
    whole = _whole_label(block.text)
    if whole:
        return whole
    if block.lead and len(block.lead) <= 60 and len(block.lead) < len(block.text):
        leading = _whole_label(block.lead) or _bare_number(block.lead)
        if leading:
            return Label(leading.part, block.text[len(block.lead) :].lstrip(" .:)-–—\n"), leading.number)
    if block.kind in ("heading", "term") or block.lead == block.text:
        bare = _bare_number(block.text)
        if bare:
            return bare
    return _prefix_label(block.text)


def _whole_label(text: str) -> Label | None:
    if len(text) > 80:
        return None
    of_exercise = _OF_AN_EXERCISE.fullmatch(text)
    if of_exercise:
        return Label(Part(of_exercise["word"].lower()), "", of_exercise["number"] or "")
    letter = _LETTER_A.fullmatch(text)
    if letter:
        return Label(Part.ANSWER, "", letter["number"] or "")
    if text in ("Q", "q", "Ex", "ex"):
        return None
    for part, pattern in _WHOLE.items():
        found = pattern.fullmatch(text)
        if found:
            return Label(part, "", found["number"] or "")
    return None


def _prefix_label(text: str) -> Label | None:
    letter = _LETTER_A.match(text)
    if letter and letter[0].rstrip()[-1] in ".:)" and letter.end() < len(text):
        return Label(Part.ANSWER, text[letter.end() :], letter["number"] or "")
    for part, pattern in _PREFIX.items():
        found = pattern.match(text)
        if found and found.end() < len(text):
            return Label(part, text[found.end() :], found["number"] or "")
    return None


def _bare_number(text: str) -> Label | None:
    found = _BARE_NUMBER.fullmatch(text.strip())
    return Label(Part.PROBLEM, "", found["number"]) if found else None


def is_whole_label(text: str) -> bool:
    """True for a text that is nothing but a label."""
    return _whole_label(text) is not None


def is_worded_label(text: str) -> bool:
    """True for a problem, solution or answer label that could name a column ("Question"), not for "A" or "12"."""
    label = _whole_label(text)
    return label is not None and label.part is not Part.ASIDE and len(text) > 2
