r"""Signs between letters that may be more than products of numbers: `u \cdot v` and `u \times v`, `A^T A` and `A A^T`.

The algebra takes letters for numbers, whose products have one sign and no order. No text says whether its letters are
numbers, vectors, matrices or statements; so where two answers differ in just that, no rule decides.
"""

from __future__ import annotations

import re

_STYLED = r"\\(?:mathbf|mathrm|vec|bm|boldsymbol|hat|overrightarrow)\s?\{?\s?[A-Za-z]\s?\}?"
_LETTER = rf"(?:{_STYLED}|\\nabla|(?<![A-Za-z\\])[A-Za-z])"
_JOINED = re.compile(
    rf"({_LETTER})\s?(?:\\(times|cdot|land|lor|wedge|vee)(?![a-zA-Z])|([×·∧∨]))\s?"
    rf"(?=({_LETTER})(?![A-Za-z])(?!\s?(?:[<>=]|\\[lgn]e)))"
)
_SIGNS = {"×": "times", "·": "cdot", "∧": "land", "∨": "lor", "wedge": "land", "vee": "lor"}
_MARK = r"\^\s?\{?\s?(?:T|H|-1|\\top|\\intercal|\\dagger|\*)\s?\}?"
_MATRICES = re.compile(rf"(?<![A-Za-z\\])(?:[A-Z](?:{_MARK})?\s?){{2,12}}(?![A-Za-z])")
_MATRIX = re.compile(rf"([A-Z])({_MARK})?")


def may_not_commute(gold: str, prediction: str) -> bool:
    """True where the same letters are joined by another sign, or by a cross or as matrices in another order.

    Letters with an exponent T, H, * or -1 in a row are matrices.
    """
    sides = _joins(gold), _joins(prediction)
    if any(_is_contradicted(one, other) for one, other in (sides, sides[::-1])):
        return True
    rows = [
        [_MATRIX.findall(row) for row in _MATRICES.findall(side) if "^" in row] for side in (gold, prediction)
    ]
    return any(sorted(one) == sorted(other) and one != other for one in rows[0] for other in rows[1])


def _joins(text: str) -> set[tuple[str, str, str]]:
    return {
        (_name(left), _SIGNS.get(command or sign, command or sign), _name(right))
        for left, command, sign, right in _JOINED.findall(text)
    }


def _name(operand: str) -> str:
    return operand if operand == r"\nabla" else operand.rstrip("} ")[-1]


def _is_contradicted(one: set[tuple[str, str, str]], other: set[tuple[str, str, str]]) -> bool:
    for left, sign, right in one:
        if sign in ("land", "lor") and all(join[1] != sign for join in other):
            return True
        others = {(right, "times", left), (left, "cdot", right), (right, "cdot", left)}
        if sign == "times" and (left, sign, right) not in other and others & other:
            return True
    return False
