"""Recognises the words with which pages label exercises, solutions, answers and hints.

A label is either a whole block ("Show Solution", "Q12", "Exercise 3.") or the beginning of one, set off by emphasis,
a colon, a full stop or a number ("Answer: 7", "Q12. Compute 3+4"). What a label means in its surroundings (a key at
the page's end, a list that is merely numbered) is decided in page_labels.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from stages.extract_web.labels.blocks import Block
from stages.extract_web.labels.label_words import NUMBER, PLURAL_PROBLEMS, WORDS


class Part(StrEnum):
    """What follows a label."""

    PROBLEM = "problem"
    SOLUTION = "solution"
    ANSWER = "answer"
    ASIDE = "aside"
    """Hints, discussion, ratings: belongs to the exercise and to none of the three."""
    BOUNDARY = "boundary"
    """Belongs to no exercise: instructions for several, the heading of a key."""


@dataclass(frozen=True, slots=True)
class Label:
    """A recognised label."""

    part: Part
    rest: str
    """Text of the block after the label; empty when the label is the whole block."""
    number: str
    """The exercise's number as written, empty when there is none."""
    end: int | None = None
    """Where the part ends, when the page's markup says so."""
    rule: str = "words"
    """What it was recognised by: words, number (a run of them), markup, or none."""


_SMALL = NUMBER.replace("[A-Z]", "[a-z]")
"""A number in a lower-case text: patterns that ignore case take three times as long."""
_WORDS = {Part(part): words for part, words in WORDS.items()}
_BEFORE_NUMBER = r"\s*(?:no\.?\s*|number\s*|[#№]\s*)?"
_NUMBERED = dict.fromkeys(Part, _BEFORE_NUMBER) | {Part.PROBLEM: r"(?:[.-](?=\s?\d))?" + _BEFORE_NUMBER}
"""What may stand between a label and its number. After "Solution." a number is what is found."""
_TAIL = r"(?:\s+of\s+\d{1,4})?(?:\s+(?:by|from)\s+[\w .@-]{1,40})?(?:\s*[(\[][^()\[\]]{0,40}[)\]]){0,2}"
_WHOLE = {
    part: re.compile(
        (
            rf"(?:{words})(?::(?=\s\d))?{_NUMBERED[part]}(?:{_SMALL})?(?:/\d{{1,3}})?{_TAIL}"
            if part is Part.PROBLEM
            else rf"(?:{words}){_NUMBERED[part]}(?:{_SMALL})?{_TAIL}"
        )
        + r"\s*[.:：)\]>▼▾▸+–—-]*\s*"
    )
    for part, words in _WORDS.items()
}
_SEVERAL = re.compile(rf"(?:[\w-]+\s+)?(?:{PLURAL_PROBLEMS})\b", re.IGNORECASE)
_PREFIX = {
    part: re.compile(
        rf"(?:{words}){_NUMBERED[part]}(?:{_SMALL}{_TAIL if part is Part.PROBLEM else ''}\s*(?:[:：)\]–—-]|\.(?!\d))"
        r"|[:：)]|\.(?=\s)|\s[–—-](?=\s))\s*"
    )
    for part, words in _WORDS.items()
}
_KINDS = "exercise|problem|question|example|task|puzzle|challenge|drill|activity|quiz|practice|investigation|item|q"
_OF_AN_EXERCISE = re.compile(
    rf"(?:(?:full|worked|detailed)\s+)?(?P<word>answer|solution)s?\s+(?:to|for|of)\s+(?:the\s+)?"
    rf"(?:(?:(?:weekly|daily|monthly)\s+)?(?:{_KINDS})(?:\s+of\s+the\s+(?:day|week|month|year))?)?"
    rf"\s*#?{_SMALL}?\s*[.:]*"
)
HIDES = re.compile(r"\W*(?:hide|close|collapse)\b", re.IGNORECASE)
_DECORATION = " `¶§#[]()✔✓✅☑★☆⭐▶►▷▼▽▾▸»›>+*•·👉💡🔽⬇→↓—–-"
_LETTER_A = re.compile(rf"A(?:{NUMBER}\s*[.:)–—-]?|\s*:)\s*")
"""One letter is a label only as `A:` or `A12.`: "a", "a." and "A)" are choices and parts of exercises."""
_FIRST_OPTION = re.compile(r"\W*A\s*[:：]")
_SECOND_OPTION = re.compile(r"\W*B\s*[:：]")
_OPTIONS_IN_LINE = re.compile(r"\W*A\s*[:：].*?(?:^|[\s,;)|])B\s*[:：]", re.DOTALL)
_BARE_NUMBER = re.compile(
    r"[(\[]?(?P<number>\d{1,4}(?:[.-]\d{1,3}){0,2})[.):\]]*(?:\s*(?:\*+|★|\$\\star\$))?"
)
_FIRST_LETTERS = re.compile(r"[^\w$\\]{0,3}[^\W_]")
_DOTTED = re.compile(r"[A-Z]?[\d.]*\.\d+\Z")
MAX_LABEL_CHARACTERS = 80
MAX_PREFIX_CHARACTERS = 250


def find_label(block: Block) -> Label | None:
    """The label that the block is or begins with, or None.

    A bare number counts only as a heading, a term or an emphasised beginning, because paragraphs, cells and the
    steps of a solution begin with numbers too.
    """
    if block.kind in ("table", "rule") or not _FIRST_LETTERS.match(block.text):
        return None
    leading = None
    if block.lead and len(block.lead) <= 60 and len(block.lead) < len(block.text):
        leading = _whole_label(block.lead) or _bare_number(block.lead)
    if leading:
        leading = replace(leading, rest=block.text[len(block.lead) :].lstrip(" .:)-–—\n"))
        if leading.part in (Part.SOLUTION, Part.ANSWER) and not leading.number:
            return leading  # of "**Answer** 38" the number is what was found
    label = _whole_label(block.text) or leading
    if label:
        return label
    if block.kind in ("heading", "term") or block.lead == block.text:
        bare = _bare_number(block.text)
        if bare:
            return bare
    return prefix_label(block.text)


def _whole_label(text: str) -> Label | None:
    if not text or len(text) > MAX_LABEL_CHARACTERS:
        return None
    letter = _LETTER_A.fullmatch(text)
    if letter:
        return Label(Part.ANSWER, "", letter["number"] or "")
    if text in ("Q", "q", "Ex", "ex"):
        return None
    for form in (
        (text, text.strip(_DECORATION)) if text[-1] in _DECORATION or text[0] in _DECORATION else (text,)
    ):
        label = _worded_label(form)
        if label:
            return label
    return None


def _worded_label(text: str) -> Label | None:
    small = _lowered(text)
    named = _OF_AN_EXERCISE.fullmatch(small)
    if named:
        return Label(Part(named["word"]), "", _number(text, named))
    for part, pattern in _WHOLE.items():
        found = pattern.fullmatch(small)
        if found:
            number = _number(text, found)
            is_section = part is Part.PROBLEM and _DOTTED.match(number) and _SEVERAL.match(text)
            return Label(part, "", "" if is_section else number)
    return None


def _lowered(text: str) -> str:
    """The text in lower case, every character at its place."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)


def _number(text: str, found: re.Match[str]) -> str:
    start, end = found.span("number")
    return text[start:end] if start >= 0 else ""


def prefix_label(text: str) -> Label | None:
    """The worded label that the text begins with, something after it."""
    letter = _LETTER_A.match(text)
    if letter and letter[0].rstrip()[-1] in ".:)" and letter.end() < len(text):
        return Label(Part.ANSWER, text[letter.end() :], letter["number"] or "")
    small = _lowered(text[:MAX_PREFIX_CHARACTERS])
    for part, pattern in _PREFIX.items():
        found = pattern.match(small)
        if found and found.end() < len(text):
            rest = text[found.end() :]
            number = _number(text, found)
            return Label(part, rest, number)
    return None


def _bare_number(text: str) -> Label | None:
    found = _BARE_NUMBER.fullmatch(text.strip())
    return Label(Part.PROBLEM, "", found["number"]) if found else None


def is_first_option(text: str, following: Sequence[str]) -> bool:
    """True for the choice or point `A: ...` of a list: `B: ...` stands in the same block or begins one soon after."""
    if not _FIRST_OPTION.match(text):
        return False
    return bool(_OPTIONS_IN_LINE.match(text)) or any(map(_SECOND_OPTION.match, following))


def is_whole_label(text: str) -> bool:
    """True for a text that is nothing but a label."""
    return bool(text) and _whole_label(text) is not None


def is_toggle_label(text: str) -> bool:
    """True for the words of a link or button that opens a solution, an answer or a hint."""
    label = _whole_label(text) if text else None
    return label is not None and label.part is not Part.PROBLEM


def is_aside_label(text: str) -> bool:
    """True for a text that labels a hint or a discussion and nothing else."""
    label = _whole_label(text) if text else None
    return label is not None and label.part is Part.ASIDE


def is_problem_title(text: str) -> bool:
    """True for "Exercise 2", "Exercise 2: Sums" and the like."""
    label = (_whole_label(text) or prefix_label(text)) if text else None
    return label is not None and label.part is Part.PROBLEM


def is_solution_label(text: str) -> bool:
    """True for a text that labels a solution or an answer and nothing else."""
    label = _whole_label(text) if text else None
    return label is not None and label.part in (Part.SOLUTION, Part.ANSWER)
