r"""Numbers as people write answers, read exactly: `-7`, `1,234.50`, `1 000`, `\$5`, `28\%`, `3/4`, `\frac{3}{4}`,
`7.8\times 10^2`, `90^\circ`, of any length.

Anything else, `3\frac{1}{2}` and `2,74` included, is not a number here: it is for a verifier that can weigh readings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_MAX_DIGITS = 4_000
"""Longest integer that is converted; longer ones are compared as digits. Python refuses above 4,300 by default."""
_INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]{0,2}(?: [0-9]{3})+|[0-9]+)"
_CURRENCY = r"(?:\\\$|[$€£¥₹] ?)"
_PLAIN = re.compile(
    rf"([+-]?) ?{_CURRENCY}?(-?)({_INTEGER})?(?:\.([0-9]*))?(?:\\\$|[$€£¥₹])?"
    r"( ?(?:\\?%|percent(?:age)?|pct))?(?: ?\^\\circ| degrees)?"
)
_FRACTION = re.compile(
    rf"([+-]?) ?(?:\\frac\{{ ?(-?{_INTEGER}) ?\}}\{{ ?({_INTEGER}) ?\}}|({_INTEGER}) ?/ ?({_INTEGER}))"
)
_SCIENTIFIC = re.compile(
    r"([+-]?[0-9]+)(?:\.([0-9]+))? ?"
    r"(?:(?:\\times|\\cdot|\*) ?10 ?\^ ?\{? ?([+-]?[0-9]{1,3}) ?\}?|[eE]([+-]?[0-9]{1,3}))"
)
_WORDS = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip


@dataclass(frozen=True)
class WrittenNumber:
    """An exact value and the parts of its notation that matter for comparing."""

    value: Fraction | None
    """The value, a percentage already divided by 100; None when it is too long to convert."""
    is_decimal: bool = False
    """True when written with a decimal point, so that it may be a rounded value."""
    is_percent: bool = False
    places: int = 0
    """Decimal places of the value, for a decimal."""
    digits: str = ""
    """For an integer too long to convert: its sign and digits without leading zeros."""


def read_number(text: str) -> WrittenNumber | None:
    """The number that `text` (as `normalisation.clean` leaves it) denotes, or None when it is not just a number."""
    if text[:1].isalpha():
        return WrittenNumber(Fraction(_WORDS[text.lower()])) if text.lower() in _WORDS else None
    plain = _PLAIN.fullmatch(text)
    if plain is not None:
        return _plain_number(plain)
    fraction = _FRACTION.fullmatch(text)
    if fraction is not None:
        return _fraction_number(fraction)
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific is not None:
        whole, decimals, latex_exponent, short_exponent = scientific.groups()
        if len(whole) + len(decimals or "") <= _MAX_DIGITS:
            exponent = int(latex_exponent or short_exponent)
            scale = Fraction(10) ** (exponent - len(decimals or ""))
            value = int(whole + (decimals or "")) * scale
            return WrittenNumber(value, is_decimal=True, places=max(0, len(decimals or "") - exponent))
    return None


def _plain_number(match: re.Match[str]) -> WrittenNumber | None:
    sign, inner_sign, integer, decimals, percent = match.groups()
    if (integer is None and not decimals) or (sign and inner_sign):
        return None
    whole = (integer or "0").replace(",", "").replace(" ", "")
    sign = "-" if "-" in (sign, inner_sign) else ""
    fractional = (decimals or "").rstrip("0")
    if len(whole) + len(fractional) > _MAX_DIGITS:
        whole = whole.lstrip("0")
        return None if fractional or percent else WrittenNumber(None, digits=sign + whole)
    numerator = int(sign + whole + fractional)
    scale = 10 ** len(fractional) * (100 if percent else 1)
    places = len(decimals or "") + 2 * bool(percent)
    is_decimal = decimals is not None
    return WrittenNumber(Fraction(numerator, scale), is_decimal, bool(percent), places)


def _fraction_number(match: re.Match[str]) -> WrittenNumber | None:
    sign, latex_top, latex_bottom, top, bottom = match.groups()
    texts = [part.replace(",", "").replace(" ", "") for part in (latex_top or top, latex_bottom or bottom)]
    if max(map(len, texts)) > _MAX_DIGITS:
        return None
    numerator, denominator = map(int, texts)
    if denominator == 0:
        return None
    return WrittenNumber(Fraction(-numerator if sign == "-" else numerator, denominator))
