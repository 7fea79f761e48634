"""What kind of thing a gold answer is, which decides who can grade it."""

from __future__ import annotations

import re
from enum import StrEnum

from stages.algorithms.answers.extraction import is_prose
from stages.algorithms.answers.normalisation import clean
from stages.algorithms.answers.numbers import read_number

_CHOICE = re.compile(r"\(?[A-J]\)?")
_WORDS = re.compile(r"[A-Za-z]+")


class AnswerKind(StrEnum):
    """How a gold answer is written, which decides who can grade it."""

    integer = "integer"
    """A whole number, in any notation that is exact: `1,234`, `\\$5`, `8/4`."""
    number = "number"
    """Another number: decimal, fraction, percentage."""
    choice = "choice"
    """A letter from A to J."""
    word = "word"
    """One word: True, yes, east."""
    expression = "expression"
    """Anything that takes algebra: math-verify decides."""
    prose = "prose"
    """Two words or more: no verifier here reads them."""


def answer_kind(answer: str) -> AnswerKind | None:
    """The kind, None for an answer with nothing in it."""
    text = clean(answer)
    if not text.strip(" .,;:!?$"):
        return None
    if _CHOICE.fullmatch(text):
        return AnswerKind.choice
    number = read_number(text)
    if number is not None:
        is_whole = number.value is None or number.value.denominator == 1
        return AnswerKind.integer if is_whole and not number.is_percent else AnswerKind.number
    if _WORDS.fullmatch(text):
        return AnswerKind.word
    return AnswerKind.prose if is_prose(text) else AnswerKind.expression
