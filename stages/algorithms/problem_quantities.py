"""The quantities of a problem, however they are written: `half an hour`, `30 minutes` and `0.5 hours` are one.

A rewording that keeps the problem keeps its quantities, and with them what they count or measure. Read are digits,
number words, fractions in words and signs, dozens and the like, `twice`, percents, and a few units that are written in
two ways (cents and dollars, hours and minutes, feet and inches). Deviation from arithmetic: a 1 is left out, because
`a`, `one` and nothing at all are used alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_UP_TO_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
CARDINALS = {word: value for value, word in enumerate(_UP_TO_TWENTY.split())} | {
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
_ORDINALS = {
    "first": 1,
    "second": 2,
    "third": 3,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
}
_PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "thirds": 3,
    "quarter": 4,
    "quarters": 4,
    "fourth": 4,
    "fourths": 4,
    "fifth": 5,
    "fifths": 5,
    "sixth": 6,
    "sixths": 6,
    "seventh": 7,
    "eighth": 8,
    "eighths": 8,
    "ninth": 9,
    "tenth": 10,
    "tenths": 10,
}
_GROUPS = {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "dozen": 12,
    "dozens": 12,
    "decade": 10,
    "decades": 10,
}
_MULTIPLES = {"twice": 2, "double": 2, "doubled": 2, "thrice": 3, "triple": 3}
_UNITS = {
    **dict.fromkeys(("%", "percent", "cent", "cents"), 0.01),
    **dict.fromkeys(("hour", "hours"), 60),
    **dict.fromkeys(("foot", "feet"), 12),
    **dict.fromkeys(("yard", "yards"), 36),
    **dict.fromkeys(("km", "kilometer", "kilometers", "kg", "kilogram", "kilograms"), 1000),
}
_ORDINAL_ENDING = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b", re.IGNORECASE)
_BETWEEN = frozenset(["-", "a", "an", "of", "the"])
WORDS_TO_NOUN = 4
"""Words after a quantity among which the one is looked for that says what it counts."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a text."""

    value: float
    """In the smaller unit where two are common: minutes, inches, dollars; a percentage as a fraction."""
    following: tuple[str, ...]
    """The words after it, up to the next number."""


def without_ordinal_endings(text: str) -> str:
    """`3rd` as `3`, so that it becomes one word."""
    return _ORDINAL_ENDING.sub("", text)


def quantities(words: Sequence[str]) -> list[Quantity]:
    """The quantities of a normalised text in order; 1 is left out."""
    found: list[Quantity] = []
    place = 0
    while place < len(words):
        value, after = _value(words, place)
        if value is None:
            place += 1
            continue
        unit = after
        while unit < len(words) and words[unit] in _BETWEEN:
            unit += 1
        if unit < len(words):
            value *= _UNITS.get(words[unit], 1)
        value = round(value, 4)
        if value != 1:
            found.append(Quantity(value, tuple(_up_to_number(words[unit : unit + WORDS_TO_NOUN]))))
        place = after
    return found


def _up_to_number(words: Sequence[str]) -> list[str]:
    end = next((i for i, word in enumerate(words) if _cardinal(word) is not None), len(words))
    return list(words[:end])


def _cardinal(word: str) -> float | None:
    if word[0].isdigit():
        return float(word)
    return float(CARDINALS[word]) if word in CARDINALS else None


def _value(words: Sequence[str], place: int) -> tuple[float | None, int]:
    """The number that begins at `place`, None where none does, and the place after it."""
    word, after = words[place], place + 1
    number = _cardinal(word)
    if number is not None:
        return _counted(words, number, after)
    following = words[after] if after < len(words) else ""
    if word in ("a", "an") and following in _PARTS:
        return 1 / _PARTS[following], after + 1
    if word == "half":
        after += following in ("a", "an", "of")
        group = _GROUPS.get(words[after], 0) if after < len(words) else 0
        return (0.5 * group, after + 1) if group else (0.5, after)
    if word in ("quarter", "quarters"):
        return 0.25, after
    known = _MULTIPLES.get(word) or _ORDINALS.get(word) or _GROUPS.get(word)
    return (float(known), after) if known else (None, after)


def _counted(words: Sequence[str], number: float, after: int) -> tuple[float, int]:
    """A cardinal with what may follow it: `/ 4`, `quarters`, `and a half`, `dozen`."""
    following = [*words[after : after + 3], "", "", ""]
    divisor = _cardinal(following[1]) if following[0] == "/" and following[1] else None
    if divisor:
        number, after = number / divisor, after + 2
    elif following[0] in _PARTS and (following[0].endswith("s") or following[0] == "half" or number == 1):
        number, after = number / _PARTS[following[0]], after + 1
    elif following[:2] == ["and", "a"] and following[2] in _PARTS:
        number, after = number + 1 / _PARTS[following[2]], after + 3
    while after < len(words) and words[after] in _GROUPS:
        number, after = number * _GROUPS[words[after]], after + 1
    return number, after
