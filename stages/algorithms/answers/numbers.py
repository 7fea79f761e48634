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
_INTEGER = (
    r"(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+|(?:'[0-9]{3})+|(?:\.[0-9]{3}){2,}(?![.0-9]))|[0-9]+)"
)
_GROUPING = str.maketrans("", "", ", .'")
_CURRENCY = r"(?:\\\$|[$€£¥₹] ?)"
_PLAIN = re.compile(
    rf"([+-]?) ?({_CURRENCY})?(-?)({_INTEGER})?(?:\.([0-9]*))?(\\\$|[$€£¥₹])?"
    r"( ?(?:\\?%|percent(?:age)?|pct))?( ?\^\\circ| degrees)?"
)
_FRACTION = re.compile(
    rf"([+-]?) ?(?:\\frac\{{ ?(-?{_INTEGER}) ?\}}\{{ ?({_INTEGER}) ?\}}|({_INTEGER}) ?/ ?({_INTEGER}))"
)
_SCIENTIFIC = re.compile(
    r"([+-]?[0-9]+)(?:\.([0-9]+))? ?"
    r"(?:(?:\\times|\\cdot|\*) ?10 ?\^ ?\{? ?([+-]?[0-9]{1,3}) ?\}?|[eE]([+-]?[0-9]{1,3}))"
)
_UNTIL_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
UNTIL_TWENTY = _UNTIL_TWENTY.split()
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORDS = {name: value for value, name in enumerate(UNTIL_TWENTY)} | {
    f"{tens}{gap}{one}".strip(): 10 * ten + value
    for ten, tens in enumerate(_TENS, start=2)
    for value, one in enumerate(["", *UNTIL_TWENTY[1:10]])
    for gap in (" ", "-")
    if one or gap == " "
}


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
    unit: str = ""
    """The sign of a currency, `%` or `°`; empty without one."""


def read_number(text: str) -> WrittenNumber | None:
    """The number that `text` (as `normalisation.clean` leaves it) denotes, or None when it is not just a number."""
    if text.isdigit() and text.isascii() and len(text) <= _MAX_DIGITS:
        return WrittenNumber(Fraction(int(text)))
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
    sign, before, inner_sign, integer, decimals, after, percent, degrees = match.groups()
    if (integer is None and not decimals) or (sign and inner_sign):
        return None
    whole = (integer or "0").translate(_GROUPING)
    sign = "-" if "-" in (sign, inner_sign) else ""
    fractional = (decimals or "").rstrip("0")
    if len(whole) + len(fractional) > _MAX_DIGITS:
        whole = whole.lstrip("0")
        return None if fractional or percent else WrittenNumber(None, digits=sign + whole)
    numerator = int(sign + whole + fractional)
    scale = 10 ** len(fractional) * (100 if percent else 1)
    places = len(decimals or "") + 2 * bool(percent)
    is_decimal = decimals is not None
    unit = "%" if percent else "°" if degrees else (before or after or "").strip("\\ ")
    return WrittenNumber(Fraction(numerator, scale), is_decimal, bool(percent), places, unit=unit)


def _fraction_number(match: re.Match[str]) -> WrittenNumber | None:
    sign, latex_top, latex_bottom, top, bottom = match.groups()
    texts = [part.translate(_GROUPING) for part in (latex_top or top, latex_bottom or bottom)]
    if max(map(len, texts)) > _MAX_DIGITS:
        return None
    numerator, denominator = map(int, texts)
    if denominator == 0:
        return None
    return WrittenNumber(Fraction(-numerator if sign == "-" else numerator, denominator))
