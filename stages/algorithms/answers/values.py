"""Whether two expressions have the same value: exactly where the algebra decides, else at random points.

The precision rule, for two numbers of which at least one is a decimal:
1. equal, they agree;
2. not farther apart than 1e-6, absolutely and relative to the larger, they agree: noise of floating point;
3. a decimal agrees with an exact value (a fraction, root, power, multiple of pi ...; not an integer) of which it is the
   rounding, half up or half even, to the decimal's own places, if it shows at least four significant digits;
4. else they differ. A caller may state a tolerance of its own: then numbers also agree when no farther apart than it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from fractions import Fraction

from stages.algorithms.answers import algebra
from stages.algorithms.answers.evaluation import is_written_with_i, largest_part, symbols_of, value_at
from stages.algorithms.answers.latex_tokens import UnreadableError
from stages.algorithms.answers.latex_tree import Node

NOISE = Fraction(1, 10**6)
LEAST_SIGNIFICANT_DIGITS = 4
_POINTS = 4
_FEWEST_POINTS = 3
_SAME, _DIFFERENT = 1e-9, 1e-6
"""Relative distances: below the first two values are the same in floats, above the second they are not."""
_ROUNDING = 1e-13
"""Error of a float result relative to the largest number on the way to it, with a margin of 1,000."""


@dataclass(frozen=True, slots=True)
class Written:
    """A number as the precision rule sees it."""

    value: Fraction | float
    places: int | None
    """Decimal places; None for an exact notation."""
    is_integer: bool


def agree_as_written(first: Written, second: Written, tolerance: Fraction | None) -> bool | None:
    """The precision rule for two numbers of which one is a decimal. Never None where both are fractions."""
    difference = abs(first.value - second.value)
    largest = max(abs(first.value), abs(second.value))
    if difference <= NOISE and difference <= NOISE * largest:
        return True
    if tolerance is not None and difference <= tolerance * (1 + NOISE):
        return True
    return _is_rounding(first, second) or _is_rounding(second, first)


def _is_rounding(decimal: Written, exact: Written) -> bool:
    if decimal.places is None or exact.places is not None or exact.is_integer:
        return False
    digits = str(abs(decimal.value.numerator * 10**decimal.places // decimal.value.denominator))
    if len(digits.lstrip("0")) < LEAST_SIGNIFICANT_DIGITS:
        return False
    half = Fraction(1, 2 * 10**decimal.places)
    return abs(decimal.value - exact.value) <= half


def same_value(gold: Node, prediction: Node, tolerance: Fraction | None = None) -> bool | None:
    """True and False where it is certain (False: or the values at random points differ); None where it is not."""
    forms = [_form_of(node) for node in (gold, prediction)]
    is_same = None
    if forms[0] is not None and forms[1] is not None:
        try:
            is_same = algebra.are_equal(forms[0], forms[1])
        except UnreadableError:
            is_same = None
    if is_same:
        return True
    names = sorted(symbols_of(gold) | symbols_of(prediction))
    if not names:
        if _is_out_of_reach(gold, forms[1]) or _is_out_of_reach(prediction, forms[0]):
            return False
        return _same_constant(gold, prediction, forms, is_same, tolerance)
    return is_same if is_same is not None else _same_function(gold, prediction, names)


def _is_out_of_reach(giant: Node, other: algebra.Form | None) -> bool:
    """True for a power tower or factorial that is larger than any number `other` could be."""
    value = None if other is None else algebra.rational_value(other)
    return value is not None and binary_logarithm(giant) > 2 * algebra.MAX_BITS


def binary_logarithm(node: Node) -> float:
    """A lower bound of log2 of a number, infinite beyond 1e308; 0 where none is known."""
    if node.head == "number":
        return math.log2(node.first) if node.first > 1 else 0.0
    if node.head == "power":
        exponent = binary_logarithm(node.parts[1])
        return (
            binary_logarithm(node.first) * (2**exponent if exponent < 1000 else math.inf) if exponent else 0.0
        )
    if node.head == "call" and node.first == "factorial":
        inner = binary_logarithm(node.parts[1])
        return math.inf if inner > 1000 else 2**inner if inner > 2 else 0.0
    return 0.0


def _form_of(node: Node) -> algebra.Form | None:
    try:
        return algebra.canonical_form(node)
    except UnreadableError:
        return None


def _same_constant(gold, prediction, forms, is_same: bool | None, tolerance: Fraction | None) -> bool | None:
    sides = [_written(node, form) for node, form in zip((gold, prediction), forms, strict=True)]
    if sides[0] is None or sides[1] is None:
        return is_same if is_same is not None else _same_function(gold, prediction, [])
    if tolerance is not None or any(side.places is not None for side in sides):
        return agree_as_written(sides[0], sides[1], tolerance)
    return is_same if is_same is not None else _same_function(gold, prediction, [])


def _written(node: Node, form: algebra.Form | None) -> Written | None:
    """A real constant with its notation; None for others."""
    if node.head == "percent" and node.first.head == "number" and node.first.parts[1] >= 0:
        value, places = node.first.parts
        return Written(value / 100, places + 2, False)
    rational = algebra.rational_value(form) if form is not None else None
    if rational is not None:
        places = node.parts[1] if node.head == "number" and node.parts[1] >= 0 else None
        return Written(rational, places, rational.denominator == 1 and places is None)
    value = value_at(node, {})
    if value is None or abs(value.imag) > _SAME * abs(value) or abs(value) > 1e15:
        return None
    return Written(Fraction(value.real), None, False)


def _same_function(gold: Node, prediction: Node, names: list[str]) -> bool | None:
    """By values at random points, or for constants by their value."""
    # The points follow from the texts, so that equal questions get equal answers, and no text can aim at them.
    points = random.Random(repr((gold, prediction)))
    positive = _distances(gold, prediction, names, points, (0.4, 2.7))
    if any(distance > _DIFFERENT for distance in positive):
        return False
    if len(positive) < (_FEWEST_POINTS if names else 1) or max(positive) > _SAME:
        return None
    is_real = not (is_written_with_i(gold) or is_written_with_i(prediction))
    anywhere = _distances(gold, prediction, names, points, (-2.7, 2.7), is_real)
    return True if all(distance <= _SAME for distance in anywhere) else None


def _distances(
    gold: Node, prediction: Node, names: list[str], points: random.Random, interval, is_real: bool = False
) -> list[float]:
    """Relative distances of the two values, at the points where both have one that rounding has not swallowed, and,
    where `is_real`, at least one is real: x^{3/2} and the root of x^3 are both undefined for negative x."""
    found = []
    for _ in range(_POINTS if names else 1):
        point = {name: points.uniform(*interval) for name in names}
        values = value_at(gold, point), value_at(prediction, point)
        if values[0] is None or values[1] is None:
            continue
        if is_real and all(abs(value.imag) > _SAME * abs(value) for value in values):
            continue
        largest, difference = max(abs(values[0]), abs(values[1])), abs(values[0] - values[1])
        rounding = _ROUNDING * max(largest_part(gold, point), largest_part(prediction, point))
        if rounding <= _SAME * largest:
            found.append(difference / largest)
        elif difference > 10 * rounding:
            found.append(1.0)
    return found
