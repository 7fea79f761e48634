r"""Rewrites a question so that its answer is an integer, where that is exact, and records the way back.

Source: DAPO (arXiv 2503.14476, section 3.5 and appendix A), where the question asks for a + b + c instead of (a +
sqrt(b))/c. Deviations:
1. DAPO lets a language model rewrite question and answer. Here rules rewrite only forms whose integers are unique.
   The request names the form and the conditions that make its integers unique.
2. An inexact answer stays unchanged, with the reason: a decimal may be rounded, `3\frac{1}{2}` may be a product.
3. The integers and the form with letters are recorded: `IntegerQuestion.original` puts the integers into the form.

Forms, each with or without a minus: m/n; m\sqrt{n}/p; m\pi/n; (m + n\sqrt{p})/q and (m + n\pi)/p, with a plus or a
minus between the terms, without a divisor of 1; tuples of nonzero integers. Roots of a number with a square factor and
fractions that are not in lowest terms are reduced first, which keeps their value: \sqrt{8} is 2\sqrt{2}.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import gcd

from stages.algorithms.answers.normalisation import clean, compact, read_number

_LONGEST_INTEGER = 12
"""Digits. A sum of longer numbers cannot be checked by eye, and factoring them is slow."""
_LARGEST_ROOT = 10**8
"""Largest radicand that is searched for squares."""
# As many letters as any form may need.
_MOST_IN_TUPLE = 4
_LETTERS = "mnpqrsuvwabcghjkMNPQRSUVW"
"""Letters that a request may use, in order. Letters that a problem is likely to use itself are left out."""
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_DIGITS = rf"[0-9]{{1,{_LONGEST_INTEGER}}}"
# m + n\sqrt{p}, with the rational part before or after the root, and pi in place of the root.
_SUM = re.compile(
    rf"(?:(?P<a>-?{_DIGITS})(?P<between>[+-]))?"
    rf"(?P<sign>-?)(?P<b>{_DIGITS})?(?:\\sqrt\{{(?P<c>{_DIGITS})\}}|(?P<pi>\\pi))(?:(?P<after>[+-]{_DIGITS}))?"
)
_OVER = re.compile(rf"(?P<sign>-?)\\frac\{{(?P<top>[^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)?)\}}\{{(?P<divisor>{_DIGITS})\}}")
# (1+\sqrt{2})/3 in plain text.
_SLASH = re.compile(rf"(?P<sign>-?)\(?(?P<top>[^()/]*)\)?/(?P<divisor>{_DIGITS})")
# \frac{2}{3}\sqrt{5} is \frac{2\sqrt{5}}{3}.
_FACTOR = re.compile(
    rf"(?P<sign>-?)\\frac\{{(?P<top>{_DIGITS})\}}\{{(?P<divisor>{_DIGITS})\}}(?P<rest>\\sqrt\{{{_DIGITS}\}}|\\pi)"
)
_TUPLE = re.compile(rf"\((-?{_DIGITS}(?:,-?{_DIGITS})+)\)")
_MIXED = re.compile(rf"-?{_DIGITS}(?:\\frac\{{{_DIGITS}\}}\{{{_DIGITS}\}}| {_DIGITS}/{_DIGITS})")


class Inexact(StrEnum):
    """Why an answer was left as it is."""

    decimal = "decimal"
    """The answer does not show whether 0.33 was rounded."""
    percent = "percent"
    """The problem may ask for a percentage as 25 or as 0.25."""
    mixed_number = "mixed_number"
    r"""`3\frac{1}{2}` may mean three and a half, or a product."""
    zero_part = "zero_part"
    """A tuple with a 0 in it has no positive integers."""
    no_form = "no_form"
    """None of the forms above."""
    no_letters = "no_letters"
    """The problem itself uses every letter that is available to the request."""


@dataclass(frozen=True)
class IntegerQuestion:
    """A question whose answer is an integer, in place of one whose answer is not."""

    request: str
    """Sentence to add to the problem."""
    form: str
    r"""The old answer with letters for its integers: `-\frac{m}{n}`."""
    parts: dict[str, int]
    """The positive integers, by letter."""

    @property
    def answer(self) -> str:
        """Their sum, which is the new answer."""
        return str(sum(self.parts.values()))

    @property
    def sum_text(self) -> str:
        """How the new answer comes from the parts, such as `m + n = 3 + 4`."""
        return f"{' + '.join(self.parts)} = {' + '.join(map(str, self.parts.values()))}"

    @property
    def original(self) -> str:
        """The inverse of the rewriting: the form with its integers, equal to the old answer."""
        return _LETTER.sub(lambda match: str(self.parts[match[0]]), self.form)


@dataclass(frozen=True)
class _Surd:
    """(a + b x) / divisor, where x is the square root of `root` (square-free), or pi if `root` is None; reduced."""

    a: int
    b: int
    root: int | None
    divisor: int


def ask_for_integer(answer: str, problem: str) -> IntegerQuestion | Inexact | None:
    """Returns the question for an integer in place of `answer`, or why there is none; None if it is already an integer.

    The letters do not occur in `problem`. Never raises.
    """
    text = compact(clean(answer))
    # An integer needs no rewriting. 28\% is not an integer; a very long integer has no value here but still is one.
    number = read_number(text)
    if number is not None and (number.value is None or number.value.denominator == 1) and not number.is_percent:
        return None
    used = set(_LETTER.findall(problem))
    letters = [letter for letter in _LETTERS if letter not in used]
    if len(letters) < _MOST_IN_TUPLE:
        return Inexact.no_letters
    if number is not None:
        if number.is_percent:
            return Inexact.percent
        return Inexact.decimal if number.is_decimal else _ask_for_fraction(number.value, letters)
    if _MIXED.fullmatch(text):
        return Inexact.mixed_number
    listed = _TUPLE.fullmatch(text)
    if listed:
        return _ask_for_tuple([int(part) for part in listed[1].split(",")], letters)
    surd = _read_surd(text)
    return Inexact.no_form if surd is None else _ask_for_surd(surd, letters)


def _ask_for_fraction(value: Fraction, letters: Sequence[str]) -> IntegerQuestion | Inexact:
    sign, (m, n) = ("-" if value < 0 else ""), letters[:2]
    # `_LONGEST_INTEGER` applies to fractions too: the pattern does not limit their digits.
    if max(abs(value.numerator), value.denominator) >= 10**_LONGEST_INTEGER:
        return Inexact.no_form
    form = f"{sign}\\frac{{{m}}}{{{n}}}"
    request = f"The answer is ${form}$ with positive integers ${m}$ and ${n}$ in lowest terms. Find ${m} + {n}$."
    return IntegerQuestion(request, form, {m: abs(value.numerator), n: value.denominator})


def _ask_for_tuple(values: Sequence[int], letters: Sequence[str]) -> IntegerQuestion | Inexact:
    if len(values) > _MOST_IN_TUPLE:
        return Inexact.no_form
    if 0 in values:
        return Inexact.zero_part
    parts = dict(zip(letters, map(abs, values), strict=False))
    signed = [f"{'-' if value < 0 else ''}{letter}" for letter, value in zip(parts, values, strict=True)]
    return _question(f"({', '.join(signed)})", parts, [])


def _ask_for_surd(surd: _Surd, letters: Sequence[str]) -> IntegerQuestion:
    names = iter(letters)
    parts: dict[str, int] = {}

    def name(value: int) -> str:
        letter = next(names)
        parts[letter] = value
        return letter

    # Letters stand for positive integers, so a sign in front goes before the whole form.
    is_negative = surd.a < 0 or (surd.a == 0 and surd.b < 0)
    a, b = (-surd.a, -surd.b) if is_negative else (surd.a, surd.b)
    top = f"{name(a)} {'+' if b > 0 else '-'} " if a else ""
    top += name(abs(b)) + ("\\pi" if surd.root is None else f"\\sqrt{{{name(surd.root)}}}")
    conditions = []
    if surd.root is not None:
        # Without it 2\sqrt{8} and 4\sqrt{2} would both fit, with different sums.
        conditions.append(f", ${list(parts)[-1]}$ free of squares")
    # The radicand is not divided: (2 + 4\sqrt{3})/6 is reduced by 2, with any number under the root.
    coefficients = [letter for letter in parts if surd.root is None or letter != list(parts)[-1]]
    form = top
    if surd.divisor != 1:
        divisor = name(surd.divisor)
        form = f"\\frac{{{top}}}{{{divisor}}}"
        conditions.append(f", ${', '.join([*coefficients, divisor])}$ without a common divisor")
    if is_negative:
        form = f"-({form})" if a and surd.divisor == 1 else f"-{form}"
    return _question(form, parts, conditions)


def _question(form: str, parts: dict[str, int], conditions: Sequence[str]) -> IntegerQuestion:
    words = "a positive integer" if len(parts) == 1 else "positive integers"
    named, total = ", ".join(parts), " + ".join(parts)
    request = f"The answer is ${form}$ with {words} ${named}${''.join(conditions)}. Find ${total}$."
    return IntegerQuestion(request, form, parts)


def _read_surd(text: str) -> _Surd | None:
    r"""`a+b\sqrt{c}`, `\frac{...}{d}`, `(...)/d` or `\frac{a}{d}\sqrt{c}`, reduced; None for anything else."""
    factor = _FACTOR.fullmatch(text)
    over = _OVER.fullmatch(text) or _SLASH.fullmatch(text)
    if factor:
        sign, top, divisor = factor["sign"], f"{factor['top']}{factor['rest']}", int(factor["divisor"])
    elif over:
        is_bare = over.re is _SLASH and over[0][len(over["sign"]) :][:1] != "("
        if is_bare and re.search(r"[^-][+-]", over["top"]):
            return None  # 1+\sqrt{2}/3: the divisor belongs to the last term alone
        sign, top, divisor = over["sign"], over["top"], int(over["divisor"])
    else:
        sign, top, divisor = "", text, 1
    parts = _SUM.fullmatch(top)
    # `1 + 2\sqrt3 + 4` has two rational parts, and a sign before the root beside `between` is none of the forms.
    if parts is None or divisor == 0 or (parts["a"] and (parts["sign"] or parts["after"])):
        return None
    b = int(parts["b"] or 1) * (-1 if "-" in (parts["between"], parts["sign"]) else 1)
    a = int(parts["a"] or parts["after"] or 0)
    a, b = (-a, -b) if sign else (a, b)
    return _reduced(a, b, None if parts["pi"] else int(parts["c"]), divisor)


def _reduced(a: int, b: int, root: int | None, divisor: int) -> _Surd | None:
    """Returns the reduced form; None where nothing irrational is left, or the root is too large to search."""
    if root is not None:
        if not 2 <= root <= _LARGEST_ROOT:
            return None
        # \sqrt{8} is 2\sqrt{2}.
        square, root = _without_squares(root)
        b *= square
        if root == 1:
            return None
    if b == 0:
        return None
    common = gcd(a, b, divisor)
    return _Surd(a // common, b // common, root, divisor // common)


def _without_squares(number: int) -> tuple[int, int]:
    """(s, r) with number = s*s*r and r free of squares."""
    square, divisor = 1, 2
    # At most 10^4 steps for the largest radicand.
    while divisor * divisor <= number:
        while number % (divisor * divisor) == 0:
            number //= divisor * divisor
            square *= divisor
        divisor += 1
    return square, number
