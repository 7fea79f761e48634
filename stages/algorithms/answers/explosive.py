r"""Tells texts whose evaluation would explode before a computer algebra system sees them: `9^{9^{9^9}}`, `(999999!)!`.

Only a screen, so that the usual attacks cost microseconds instead of a time limit and a new process. What it lets
through meets those limits.
"""

from __future__ import annotations

import re

_MAX_TOWER = 3
"""Exponents above each other; `e^{-x^{2}}` has two."""
_MAX_DEPTH = 25
_MAX_EXPONENTS = 300
"""Product of the exponents on brackets inside each other: as many terms or more would an expansion have."""
_MAX_CONTROL_WORDS = 300
_LARGE_FACTORIAL = re.compile(r"[0-9]{5,}[)}\] ]{0,9}!|!\s{0,3}[)}\]]{0,9}\s{0,3}!")
_CHAIN = re.compile(r"(?:\^\s{0,3}[0-9]{1,20}\s{0,3}){3}")
_LARGE_POWER = re.compile(
    r"[0-9]{3,}[)}\] ]{0,9}(?:\^|\*\*)[{(\s]{0,9}[0-9]{5,}|(?:\^|\*\*)[{(\s]{0,9}-?[0-9]{7,}"
)
_RUN = re.compile(r"([^\w\s.-])\1{15}")
_EMPTY_SET = re.compile(r"[\s$]{0,9}(?:∅|\\\{\s{0,9}\\\})[\s$.]{0,9}")
_ESCAPE = re.compile(r"\\[{}()\[\]]|\\(?:left|right) ?\.")
_EXPONENT = re.compile(r"\s{0,3}\^\s{0,3}[{(]{0,2}([0-9]{1,9})")
_OPENING, _CLOSING = frozenset("({["), frozenset(")}]")


def is_explosive(text: str) -> bool:
    """True for a tower of exponents, a giant power or factorial, or deep nesting. Linear in the length of the text."""
    if _LARGE_FACTORIAL.search(text) or _LARGE_POWER.search(text) or text.count("\\") > _MAX_CONTROL_WORDS:
        return True
    powers = text.replace("**", "^")
    if _CHAIN.search(powers):
        return True
    if _deepest(powers) > _MAX_DEPTH or _highest_tower(powers) >= _MAX_TOWER:
        return True
    return _nested_exponents(powers) > _MAX_EXPONENTS


def is_debris(text: str) -> bool:
    """True for what no reader takes for mathematics: control characters, no letter or digit, open brackets, a long run
    of one sign. Round and square brackets may close each other, as in [0, 1)."""
    if _EMPTY_SET.fullmatch(text):
        return False
    if not "".join(text.split()).isprintable() or not any(map(str.isalnum, text)) or _RUN.search(text):
        return True
    plain = _ESCAPE.sub("", text)
    return plain.count("{") != plain.count("}") or sum(map(plain.count, "([")) != sum(map(plain.count, ")]"))


def _deepest(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in _OPENING:
            depth += 1
            deepest = max(deepest, depth)
        elif character in _CLOSING:
            depth = max(0, depth - 1)
    return deepest


def _highest_tower(text: str) -> int:
    """How many exponents stand on each other, by the brackets after `^`."""
    highest = 0
    levels = [0]
    after_power = False
    for character in text:
        if character == "^":
            highest = max(highest, levels[-1] + 1)
            after_power = True
        elif character in _OPENING:
            levels.append(levels[-1] + after_power)
            after_power = False
        elif character in _CLOSING and len(levels) > 1:
            levels.pop()
        elif not character.isspace():
            after_power = False
    return highest


def _nested_exponents(text: str) -> int:
    """The largest product of whole exponents on brackets that stand inside each other: 60 * 9 in ((x+1)^60+y)^9."""
    products = [1]
    for at, character in enumerate(text):
        if character in _OPENING:
            products.append(1)
        elif character in _CLOSING and len(products) > 1:
            exponent = _EXPONENT.match(text, at + 1)
            product = min(products.pop() * int(exponent[1] if exponent else 1), 10**9)
            products[-1] = max(products[-1], product)
    return max(products)
