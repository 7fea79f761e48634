r"""Decides whether two expressions are the same function, by their values at points.

Floats separate different expressions. Values with 50 digits more than the numbers in the texts settle doubts.

Functions are compared at points of both signs, small and large. Those with roots, absolute values, logarithms or the
like are compared in every orthant, at whole numbers, and on both sides of each zero or turning point of an expression
under such a sign or a fraction bar. The values must be equal at all these points. Where one expression is undefined,
the other must be undefined too. Single points where one of them is undefined do not count: the points hit them only by
chance. The points are derived from the texts. So equal questions get equal answers, and no text can be tuned to the
points. Two different functions without kinks agree at random points with probability 0 (Schwartz 1980).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import combinations, product
from typing import Any

from stages.algorithms.answers.evaluation import (
    COMPLEX,
    MAX_BITS,
    MOST_EXACT_BITS,
    REAL,
    UNDEFINED,
    Arithmetic,
    bits_of,
    exact,
    exact_rational,
    is_complex,
    is_written_with_i,
    rational,
    symbols_of,
    value_at,
)
from stages.algorithms.answers.latex import Node, number

# A float has 16 digits; a chain of operations with cancellation loses some. More digits settle the other doubts.
_SAME = 1e-9
"""Relative distance below which two floats count as equal until they are computed to 50 digits."""
_SPARE_DIGITS = 50
"""Digits beyond those of the numbers in both expressions together: so no term of a sum is too small to be seen."""
_LOST_DIGITS = 20
"""How many of these digits a computation may lose."""
# docs/explanation/verifier.md: beyond 4,000 bits a formula with functions or roots is unparsed.
_MOST_BITS = 4_000
_MOST_DIGITS_IN_DOUBT = 40_000
"""Most digits for all values that floats leave in doubt: a bound for texts made to leave every point in doubt."""
# With fewer points that have values, equality could be chance: \ln(-x) has none at positive x.
_FEWEST_POINTS = 3
# Half of them have sizes of 0.4 to 2.7, half any magnitude from 0.01 to 1,000. Signs go through the orthants. Small
# values and all signs are needed: |x-3| and x-3 differ only below 3, |x|+|y| and |x+y| only where signs differ.
_GENERIC_POINTS = 16
_POINTS_WITHOUT_KINKS = 5
_POINTS_OF_AN_EQUATION = 8
_MOST_TERMS_OF_A_CONSTANT = 40
"""Each is compared with each; a longer sum is work that is left."""
# For (-1)^n, which is real only at whole numbers: up to 4, 5, 6 and 7.
_WHOLE_POINTS = 4
# A bound for texts with a hundred roots.
_TURNING_PARTS = 10
# \tan x has a pole in every period: the six next to 0 are used.
_TURNS = 6
"""Zeros that are examined of each part and variable, those next to 0 first."""
# Start points of the search for a turning point: from 0.01 to 10^6, six per factor of ten, both signs, and 0.
_MAGNITUDES = [10 ** (step / 6) for step in range(-12, 37)]
_GRID = [-size for size in reversed(_MAGNITUDES)] + [0.0] + _MAGNITUDES
# Each step keeps two thirds of the interval: 3e-11 of it remains, far below the offsets that follow.
_STEPS = 60
# Two sizes on either side. A kink shows at any distance; a step of a tenth may jump over a second turning point
# nearby, a thousandth does not.
_OFFSETS = (-0.1, -0.001, 0.001, 0.1)
"""Offsets from a turning point, as a share of its size (of 1 for those below 1)."""
# Analytic but for single points. Not arctan: that of \tan x has a kink at each pole.
_SMOOTH = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp"])


def _are_too_long(*nodes: Node) -> bool:
    """True for numbers that are too long to be compared: functions of them, and roots, cost far more than x^{2020}."""
    return sum(map(bits_of, nodes)) > (_MOST_BITS if any(map(_holds_functions, nodes)) else MAX_BITS)


def _holds_functions(node: Node) -> bool:
    if node.head == "power":
        exponent = rational(node.parts[1])
        return exponent is None or exponent.denominator > 1 or _holds_functions(node.first)
    return node.head == "call" or any(map(_holds_functions, node.children))


def _digits_for(*nodes: Node) -> int:
    return _SPARE_DIGITS + math.ceil(sum(map(bits_of, nodes)) * math.log10(2))


def rational_value(node: Node) -> Fraction | None:
    r"""Returns the rational number that an expression without variables is, also where roots or functions come out
    even: 1/5 of `\sqrt{0.04}`. None for others.
    """
    value = exact_rational(node)
    if value is not None or symbols_of(node) or _are_too_long(node):
        return value
    digits = _digits_for(node)
    return _nearest_rational(value_at(node, {}, exact(not is_written_with_i(node), digits)), digits)


def _nearest_rational(value: Any, digits: int) -> Fraction | None:
    """Returns the only fraction with a short denominator that these digits can be."""
    if value is None or value is UNDEFINED or (is_complex(value) and value.imag):
        return None
    value = value.real if is_complex(value) else value
    mantissa, power = value.man_exp
    if abs(power) > MOST_EXACT_BITS:
        return None
    exact_value = Fraction(int(mantissa)) * Fraction(2) ** power * (-1 if value < 0 else 1)
    # A third of the digits for the denominator: an irrational number is near such a fraction with probability 1e-10.
    nearest = exact_value.limit_denominator(10 ** ((digits - _LOST_DIGITS) // 3))
    return nearest if abs(exact_value - nearest) * 10 ** (digits - _LOST_DIGITS) <= max(abs(nearest), 1) else None


def same_function(gold: Node, prediction: Node) -> bool | None:
    """Returns True, False, or None where too few points have values that can be computed. Constants have one point."""
    if _are_too_long(gold, prediction):
        return None
    digits = _digits_for(gold, prediction)
    names = sorted(symbols_of(gold) | symbols_of(prediction))
    is_real = not (is_written_with_i(gold) or is_written_with_i(prediction))
    arithmetic = REAL if is_real else COMPLEX
    # Seeded by the trees: equal questions get equal verdicts, and a text that is tuned to the points changes them.
    draw = random.Random(repr((gold, prediction)))
    compared: list[Mapping[str, float]] = []
    doubts = 0
    for point, is_whole in _points(gold, prediction, names, arithmetic, draw):
        values = (value_at(gold, point, arithmetic), value_at(prediction, point, arithmetic))
        # A whole point may be a pole, a single point at which being undefined does not count.
        if is_whole and UNDEFINED in values:
            continue
        if None not in values and UNDEFINED not in values and _are_close(*values):
            compared.append(point)
        elif values != (UNDEFINED, UNDEFINED):
            # Floats may differ by rounding alone, be too small for x^{2020}, or undefined for a root of -1e-17. More
            # digits decide.
            doubts += 1
            if doubts * digits > _MOST_DIGITS_IN_DOUBT:
                return None
            is_same = _same_exactly(gold, prediction, point, is_real, digits)
            if is_same is False:
                return False
            compared += [point] * (is_same is True)
    if len(compared) < (_FEWEST_POINTS if names else 1):
        return None
    # Floats that agree prove nothing about \sin x + 10^{-60}: two of the points are computed to all digits.
    settled = [_same_exactly(gold, prediction, point, is_real, digits) for point in compared[:2]]
    return False if False in settled else True if True in settled else None


def proportion(one: Node, other: Node) -> Fraction | None:
    """Returns the rational number c where the first expression is c times the second; 0 without one, None if open."""
    digits, names = _digits_for(one, other), sorted(symbols_of(one) | symbols_of(other))
    if _are_too_long(one, other) or is_written_with_i(one) or is_written_with_i(other):
        return None
    arithmetic = exact(True, digits)
    draw = random.Random(repr((one, other)))
    ratios = []
    for _ in range(_POINTS_OF_AN_EQUATION):
        point = {name: arithmetic.number(draw.uniform(-3, 3)) for name in names}
        values = value_at(one, point, arithmetic), value_at(other, point, arithmetic)
        if None in values:
            return None
        # Where one is undefined, such as a root of a negative number, the other must be, too.
        if values != (UNDEFINED, UNDEFINED):
            if UNDEFINED in values or not all(values):
                return None
            ratios.append(values[0] / values[1])
    if len(ratios) < _FEWEST_POINTS:
        return None
    noise = abs(ratios[0]) * arithmetic.number(Fraction(1, 10 ** (digits - _LOST_DIGITS)))
    if any(abs(ratio - ratios[0]) > noise for ratio in ratios):
        return Fraction(0)
    factor = _nearest_rational(ratios[0], digits)
    # y = |x-9| and y = 9-x are proportional at small x.
    is_same = factor is not None and same_function(one, Node("multiply", (number(factor), other)))
    return factor if is_same else None


def degree(node: Node) -> Fraction | None:
    """Returns the degree of a polynomial as it is written; None for other expressions."""
    if not symbols_of(node):
        return Fraction(0)
    if node.head == "symbol":
        return Fraction(1)
    if node.head == "power":
        base, exponent = degree(node.first), rational(node.parts[1])
        is_whole = exponent is not None and exponent.denominator == 1 and exponent >= 0
        return base * exponent if base is not None and is_whole else None  # type: ignore[operator]
    if node.head not in ("add", "multiply"):
        return None
    degrees = list(map(degree, node.parts))
    if None in degrees:
        return None
    return max(degrees) if node.head == "add" else sum(degrees, Fraction(0))  # type: ignore[arg-type, type-var]


def hold_like_terms(parts: list[list[Node]]) -> bool:
    """True where constants of two parts differ by a rational factor."""
    terms = [term for part in parts for term in part]
    if len(terms) > _MOST_TERMS_OF_A_CONSTANT or _are_too_long(*terms):
        return len(terms) > _MOST_TERMS_OF_A_CONSTANT
    digits = _digits_for(*terms)
    values = [[value_at(term, {}, exact(False, digits)) for term in part] for part in parts]
    known = [[value for value in part if value not in (None, UNDEFINED, 0)] for part in values]
    return any(
        _nearest_rational(one / other, digits) is not None
        for part, another in combinations(known, 2)
        for one, other in product(part, another)
    )


def _has_kinks(node: Node) -> bool:
    """True for an expression that may not be one analytic function: with a root, a logarithm, |x| and the like."""
    if node.head == "call" and node.first not in _SMOOTH:
        return True
    if node.head == "power" and symbols_of(node):
        exponent = rational(node.parts[1])
        if exponent is None or exponent.denominator > 1:
            return True
    return any(map(_has_kinks, node.children))


def _are_close(first, second) -> bool:
    return abs(first - second) <= _SAME * max(abs(first), abs(second))


def _same_exactly(gold: Node, prediction: Node, point: Mapping[str, float], is_real: bool, digits: int) -> bool | None:
    arithmetic = exact(is_real, digits)
    # The float's exact value is used, so that both sides see the same point.
    place = {name: arithmetic.number(value) for name, value in point.items()}
    values = value_at(gold, place, arithmetic), value_at(prediction, place, arithmetic)
    if None in values:
        return None
    if UNDEFINED in values:
        # Both undefined: they agree. Only one undefined: another domain.
        return values[0] is values[1]
    difference, largest = abs(values[0] - values[1]), max(map(abs, values))
    noise = arithmetic.number(Fraction(1, 10 ** (digits - _LOST_DIGITS)))
    return bool(difference <= noise * max(largest, noise))


def _points(
    gold: Node, prediction: Node, names: list[str], arithmetic: Arithmetic, draw: random.Random
) -> Iterator[tuple[dict[str, float], bool]]:
    """Yields points, and whether they are whole numbers, which may hit a pole or another single point."""
    if not names:
        yield {}, False
        return
    has_kinks = _has_kinks(gold) or _has_kinks(prediction)
    # Counting up from random signs flips one variable after the other: eight pairs of points cover all orthants of
    # three variables.
    signs = draw.getrandbits(len(names))
    generic = []
    for index in range(_GENERIC_POINTS if has_kinks else _POINTS_WITHOUT_KINKS):
        sizes = [draw.uniform(0.4, 2.7) if index % 2 else 10 ** draw.uniform(-2, 3) for _ in names]
        flips = [-1 if (signs ^ (index >> 1)) >> at & 1 else 1 for at in range(len(names))]
        generic.append({name: size * flip for name, size, flip in zip(names, sizes, flips, strict=True)})
        yield generic[-1], False
    if not has_kinks:
        return
    for index in range(_WHOLE_POINTS):
        yield {name: float(draw.randint(1, 4 + index)) for name in names}, True
    parts = list(dict.fromkeys([*_turning_parts(gold), *_turning_parts(prediction)]))[:_TURNING_PARTS]
    for part in parts:
        # The other variables stay at two points of ordinary size; with one variable, one base is enough.
        for base in (generic[1], generic[3])[: len(names)]:
            for name in sorted(symbols_of(part)):
                for turn in _turns(part, name, base, arithmetic):
                    for offset in _OFFSETS:
                        yield base | {name: turn + offset * max(1.0, abs(turn))}, False


def _turning_parts(node: Node) -> Iterator[Node]:
    """Yields expressions under roots, absolute values, logarithms and fraction bars, and sources of poles and ends."""
    for part in node.children:
        yield from _turning_parts(part)
    if node.head == "power":
        exponent = rational(node.parts[1])
        if exponent is None or exponent.denominator > 1 or exponent < 0:
            yield node.first
    elif node.head == "call" and node.first in ("abs", "ln", "log", "lg"):
        yield node.parts[1]
    elif node.head == "call" and node.first in ("arcsin", "arccos"):
        yield from (Node("add", (node.parts[1], number(end))) for end in (-1, 1))
    elif node.head == "call" and node.first in ("tan", "sec"):
        yield Node("call", ("cos", node.parts[1]))
    elif node.head == "call" and node.first in ("cot", "csc"):
        yield Node("call", ("sin", node.parts[1]))


def _turns(part: Node, name: str, base: Mapping[str, float], arithmetic: Arithmetic) -> list[float]:
    """Returns where |part| is least along one variable: zeros, including those that it touches without crossing."""
    point = dict(base)

    def size(place: float) -> float:
        point[name] = place
        value = value_at(part, point, arithmetic)
        return math.inf if value is None or value == UNDEFINED else abs(value)

    # First a grid, then a search by thirds: |x| and x^2 touch zero without a change of sign, so bisection would miss
    # the zero.
    sizes = [size(place) for place in _GRID]
    least = [
        at for at in range(1, len(_GRID) - 1) if sizes[at] <= min(sizes[at - 1], sizes[at + 1]) and sizes[at] < math.inf
    ]
    turns = []
    for at in sorted(least, key=lambda at: abs(_GRID[at]))[:_TURNS]:
        low, high = _GRID[at - 1], _GRID[at + 1]
        for _ in range(_STEPS):
            third = (high - low) / 3
            if size(low + third) <= size(high - third):
                high -= third
            else:
                low += third
        turns.append((low + high) / 2)
    return turns
