"""Whether two expressions have the same value: exactly where the algebra decides, else by their values.

The precision rule, for two numbers of which at least one is a decimal:
1. equal, they agree;
2. not farther apart than 1e-6, absolutely and relative to the larger, they agree: noise of floating point;
3. a decimal agrees with an exact value (a fraction, root, power, multiple of pi ...; not an integer) of which it is the
   rounding, half up or half even, to the decimal's own places, if it shows at least four significant digits;
4. else they differ. A caller may state a tolerance of its own: then numbers also agree when no farther apart than it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from stages.algorithms.answers import algebra
from stages.algorithms.answers.evaluation import constant_value, symbols_of
from stages.algorithms.answers.functions import is_partial, same_function
from stages.algorithms.answers.latex_tokens import UnreadableError
from stages.algorithms.answers.latex_tree import Node

NOISE = Fraction(1, 10**6)
LEAST_SIGNIFICANT_DIGITS = 4
_SAME = 1e-9
"""Imaginary part of a float, as a share of its size, below which it is rounding."""


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
    names = symbols_of(gold) | symbols_of(prediction)
    if is_same and not (names and (is_partial(gold) or is_partial(prediction))):
        return True
    if not names:
        if _is_out_of_reach(gold, forms[1]) or _is_out_of_reach(prediction, forms[0]):
            return False
        return _same_constant(gold, prediction, forms, is_same, tolerance)
    if is_same is False:
        return False
    found = same_function(gold, prediction)
    return is_same if found is None else found


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
        return is_same if is_same is not None else same_function(gold, prediction)
    if tolerance is not None or any(side.places is not None for side in sides):
        return agree_as_written(sides[0], sides[1], tolerance)
    return is_same if is_same is not None else same_function(gold, prediction)


def _written(node: Node, form: algebra.Form | None) -> Written | None:
    """A real constant with its notation; None for others."""
    if node.head == "percent" and node.first.head == "number" and node.first.parts[1] >= 0:
        value, places = node.first.parts
        return Written(value / 100, places + 2, False)
    rational = algebra.rational_value(form) if form is not None else None
    if rational is not None:
        places = node.parts[1] if node.head == "number" and node.parts[1] >= 0 else None
        return Written(rational, places, rational.denominator == 1 and places is None)
    value = constant_value(node)
    if value is None or abs(value.imag) > _SAME * abs(value) or abs(value) > 1e15:
        return None
    return Written(Fraction(value.real), None, False)
