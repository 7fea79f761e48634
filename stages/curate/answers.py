r"""What kind of thing a gold answer is, and its rewriting into an integer.

Source of the rewriting: DAPO (arXiv 2503.14476, section 3.5 and appendix A), which asks for a + b + c instead of
(a + sqrt(b))/c. Deviation: only forms whose integers are unique are rewritten, by rule; a decimal is not one of
them, since nobody can tell whether 0.33 was rounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import gcd

from stages.algorithms.answers.extraction import is_prose
from stages.algorithms.answers.normalisation import clean, compact
from stages.algorithms.answers.numbers import read_number

_LONGEST_INTEGER = (
    12  # digits; longer numbers would be sums nobody can check by eye, and factoring them is slow
)
_INTEGER = rf"[0-9]{{1,{_LONGEST_INTEGER}}}"
_TOP = rf"(?P<a>{_INTEGER})?(?:\\sqrt\{{(?P<b>{_INTEGER})\}}|(?P<pi>\\pi))"
_ROOT_OR_PI = re.compile(
    rf"(?P<sign>-?)(?:\\frac\{{{_TOP}\}}\{{(?P<c>{_INTEGER})\}}|{_TOP.replace('?P<', '?P<bare_')})"
)
_LETTERS = ("mnk", "pqr", "uvw", "MNK", "PQR")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
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


@dataclass(frozen=True)
class IntegerQuestion:
    """An answer in integers: what to ask for, and the new answer."""

    request: str
    """Sentence to add to the problem."""
    sum_text: str
    """How the new answer comes from the old one, such as `m + n = 3 + 4`."""
    answer: str


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


def ask_for_integer(answer: str, problem: str) -> IntegerQuestion | None:
    r"""The question for an integer in place of `answer`; None when the answer has no exact form known here.

    Forms: m/n; a\sqrt{b} and a\sqrt{b}/c with b free of squares; a\pi and a\pi/c; each with a minus or without.
    Roots that hold a square and root or pi fractions that are not in lowest terms are None: their integers are not
    unique. The letters are ones that `problem` does not use; None when it uses too many.
    """
    used = set(_LETTER.findall(problem))
    letters = next((letters for letters in _LETTERS if not used & set(letters)), None)
    if letters is None:
        return None
    text = compact(clean(answer))
    number = read_number(text)
    if number is not None:
        if number.value is None or number.value.denominator == 1 or number.is_decimal or number.is_percent:
            return None
        return _ask_for_fraction(number.value, letters)
    match = _ROOT_OR_PI.fullmatch(text)
    if match is None:
        return None
    a, b, pi = (match[name] or match[f"bare_{name}"] for name in ("a", "b", "pi"))
    factor, root, divisor = int(a or 1), int(b or 0), int(match["c"] or 1)
    if factor == 0 or divisor == 0 or gcd(factor, divisor) != 1 or (not pi and not _is_square_free(root)):
        return None
    return _ask_for_parts(match["sign"], factor, None if pi else root, divisor, letters)


def _ask_for_fraction(value: Fraction, letters: str) -> IntegerQuestion:
    sign, m, n = ("-" if value < 0 else ""), letters[0], letters[1]
    top, bottom = abs(value.numerator), value.denominator
    request = (
        f"The answer is ${sign}\\frac{{{m}}}{{{n}}}$ with positive integers ${m}$ and ${n}$ in lowest terms. "
        f"Find ${m} + {n}$."
    )
    return IntegerQuestion(request, f"{m} + {n} = {top} + {bottom}", str(top + bottom))


def _ask_for_parts(sign: str, factor: int, root: int | None, divisor: int, letters: str) -> IntegerQuestion:
    """`root` None stands for pi."""
    a, b, c = letters
    top = f"{a}\\pi" if root is None else f"{a}\\sqrt{{{b}}}"
    form = f"\\frac{{{top}}}{{{c}}}" if divisor != 1 else top
    values = {a: factor} | ({} if root is None else {b: root}) | ({} if divisor == 1 else {c: divisor})
    conditions = [f", ${b}$ free of squares"] if root is not None else []
    conditions += [f", ${a}$ and ${c}$ coprime"] if divisor != 1 else []
    names = " + ".join(values)
    request = (
        f"The answer is ${sign}{form}$ with positive {'integer' if len(values) == 1 else 'integers'} "
        f"${', '.join(values)}${''.join(conditions)}. Find ${names}$."
    )
    return IntegerQuestion(
        request, f"{names} = {' + '.join(map(str, values.values()))}", str(sum(values.values()))
    )


def _is_square_free(number: int) -> bool:
    """False for 0 and 1 as well: a root of those is no root."""
    if number < 2 or number > 10**8:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % (divisor * divisor) == 0:
            return False
        divisor += 1
    return True
