"""Whether two expressions have the same value: exactly where the algebra decides, else by their values.

The precision rule, for two numbers of which at least one is a decimal:
1. equal, they agree;
2. not farther apart than 1e-6, absolutely and relative to the larger, they agree: noise of floating point;
3. a gold decimal agrees with an exact value (a fraction, root, power, multiple of pi ...; not an integer) of which it
   is the rounding, half up or half even, to its own places, if it shows at least four significant digits;
4. else they differ.
An exact gold answer is not met by a decimal, however near: 1.000 is no 99999/100000. Who asks may allow it: then 2. and
3. hold there too (`Leniency.decimals`), or numbers agree that are no farther apart than a stated tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from stages.algorithms.answers import algebra
from stages.algorithms.answers.evaluation import constant_value, exact_rational, symbols_of
from stages.algorithms.answers.explosive import is_explosive
from stages.algorithms.answers.functions import is_partial, same_function
from stages.algorithms.answers.latex_tokens import UnreadableError
from stages.algorithms.answers.latex_tree import Node
from stages.algorithms.answers.leniency import STRICT, Leniency

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


def agree_as_written(gold: Written, prediction: Written, allowed: Leniency) -> bool:
    """The precision rule for two numbers of which one is a decimal."""
    difference = abs(gold.value - prediction.value)
    largest = max(abs(gold.value), abs(prediction.value))
    if not difference:
        return True
    if allowed.tolerance is not None and difference <= allowed.tolerance * (1 + NOISE):
        return True
    if gold.places is None and not allowed.decimals:
        return False
    if difference <= NOISE and difference <= NOISE * largest:
        return True
    return _is_rounding(gold, prediction) or _is_rounding(prediction, gold)


def _is_rounding(decimal: Written, exact: Written) -> bool:
    if decimal.places is None or exact.places is not None or exact.is_integer:
        return False
    digits = str(abs(decimal.value.numerator * 10**decimal.places // decimal.value.denominator))
    if len(digits.lstrip("0")) < LEAST_SIGNIFICANT_DIGITS:
        return False
    half = Fraction(1, 2 * 10**decimal.places)
    return abs(decimal.value - exact.value) <= half


def same_value(gold: Node, prediction: Node, allowed: Leniency = STRICT) -> bool | None:
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
        return _same_constant(gold, prediction, forms, is_same, allowed)
    if is_same is False:
        return False
    found = same_function(gold, prediction)
    return is_same if found is None else found


def _form_of(node: Node) -> algebra.Form | None:
    try:
        return algebra.canonical_form(node)
    except UnreadableError:
        return None


def _same_constant(gold, prediction, forms, is_same: bool | None, allowed: Leniency) -> bool | None:
    if is_same is None and not (is_explosive(gold) or is_explosive(prediction)):
        values = exact_rational(gold), exact_rational(prediction)
        is_same = None if None in values else values[0] == values[1]
    sides = [_written(node, form) for node, form in zip((gold, prediction), forms, strict=True)]
    if sides[0] is None or sides[1] is None:
        return is_same if is_same is not None else same_function(gold, prediction)
    is_rounded = allowed.tolerance is not None or any(side.places is not None for side in sides)
    if is_rounded and agree_as_written(sides[0], sides[1], allowed):
        return True
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
