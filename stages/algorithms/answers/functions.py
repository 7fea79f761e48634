"""Whether two expressions are the same function: at points on both sides of whatever could make them differ.

Points of both signs, small and large, in every orthant; whole numbers; and both sides of each point where something
under a root, an absolute value, a logarithm or a denominator is zero or turns. There the values must be equal, where
floats leave a doubt to 50 digits more than the numbers in the texts have, and where one expression is undefined so must
the other be. Single points at which one of them is undefined do not count: none of the points is one, but by chance.

The points follow from the texts, so that equal questions get equal answers, and no text can aim at them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from fractions import Fraction

from stages.algorithms.answers.evaluation import (
    COMPLEX,
    REAL,
    Arithmetic,
    UndefinedError,
    exact,
    is_written_with_i,
    rational,
    symbols_of,
    value_at,
)
from stages.algorithms.answers.explosive import bits_of
from stages.algorithms.answers.latex_tree import Node, number

_SAME = 1e-9
"""Relative distance below which two floats are taken for the same value, until 50 digits are asked."""
_SPARE_DIGITS = 50
"""More than the numbers in both expressions have together: then no term of a sum is too small to be seen."""
_LOST_DIGITS = 20
"""How many of them the computation may cost."""
_MOST_BITS = 4_000
_MOST_DIGITS_IN_DOUBT = 40_000
"""Of all the values that floats leave in doubt: a bound for texts that are made to leave every point in doubt."""
_FEWEST_POINTS = 3
_GENERIC_POINTS = 16
_WHOLE_POINTS = 4
_TURNING_PARTS = 10
_TURNS = 6
"""Zeros that are looked at of each part and variable, those next to 0 first."""
_MAGNITUDES = [10 ** (step / 6) for step in range(-12, 37)]
_GRID = [-size for size in reversed(_MAGNITUDES)] + [0.0] + _MAGNITUDES
_STEPS = 60
_OFFSETS = (-0.1, -0.001, 0.001, 0.1)
"""Of a turn, as a share of its size (of 1 for those below 1)."""
_PARTIAL = frozenset(["ln", "log", "lg", "arcsin", "arccos"])
_UNDEFINED = "undefined"


def same_function(gold: Node, prediction: Node) -> bool | None:
    """True, False, or None where too few points have values that can be computed. Constants have one point."""
    bits = bits_of(gold) + bits_of(prediction)
    if bits > _MOST_BITS:
        return None
    digits = _SPARE_DIGITS + math.ceil(bits * math.log10(2))
    names = sorted(symbols_of(gold) | symbols_of(prediction))
    is_real = not (is_written_with_i(gold) or is_written_with_i(prediction))
    arithmetic = REAL if is_real else COMPLEX
    draw = random.Random(repr((gold, prediction)))
    compared: list[Mapping[str, float]] = []
    doubts = 0
    for point, is_whole in _points(gold, prediction, names, arithmetic, draw):
        values = _value(gold, point, arithmetic), _value(prediction, point, arithmetic)
        if None in values or (is_whole and _UNDEFINED in values):
            continue
        if _UNDEFINED not in values and _are_close(*values):
            compared.append(point)
        elif values != (_UNDEFINED, _UNDEFINED):
            doubts += 1
            if doubts * digits > _MOST_DIGITS_IN_DOUBT:
                return None
            is_same = _same_exactly(gold, prediction, point, is_real, digits)
            if is_same is False:
                return False
            compared += [point] * (is_same is True)
    if len(compared) < (_FEWEST_POINTS if names else 1):
        return None
    settled = [_same_exactly(gold, prediction, point, is_real, digits) for point in compared[:2]]
    return False if False in settled else True if True in settled else None


def is_partial(node: Node) -> bool:
    """True for an expression that may be undefined on more than single points: with a root or a logarithm in it."""
    if node.head == "call" and node.first in _PARTIAL:
        return True
    if node.head == "power":
        exponent = rational(node.parts[1])
        if exponent is None or exponent.denominator % 2 == 0:
            return True
    return any(is_partial(part) for part in node.parts if isinstance(part, Node))


def _value(node: Node, point: Mapping[str, float], arithmetic: Arithmetic):
    try:
        return value_at(node, point, arithmetic)
    except UndefinedError:
        return _UNDEFINED


def _are_close(first, second) -> bool:
    return abs(first - second) <= _SAME * max(abs(first), abs(second))


def _same_exactly(
    gold: Node, prediction: Node, point: Mapping[str, float], is_real: bool, digits: int
) -> bool | None:
    arithmetic = exact(is_real, digits)
    place = {name: arithmetic.number(value) for name, value in point.items()}
    values = _value(gold, place, arithmetic), _value(prediction, place, arithmetic)
    if None in values:
        return None
    if _UNDEFINED in values:
        return values[0] is values[1]
    difference, largest = abs(values[0] - values[1]), max(map(abs, values))
    noise = arithmetic.number(Fraction(1, 10 ** (digits - _LOST_DIGITS)))
    return bool(difference <= noise * max(largest, noise))


def _points(
    gold: Node, prediction: Node, names: list[str], arithmetic: Arithmetic, draw: random.Random
) -> Iterator[tuple[dict[str, float], bool]]:
    """Points, and whether they are of whole numbers, which may hit a pole or another single point."""
    if not names:
        yield {}, False
        return
    signs = draw.getrandbits(len(names))
    generic = []
    for index in range(_GENERIC_POINTS):
        sizes = [draw.uniform(0.4, 2.7) if index % 2 else 10 ** draw.uniform(-2, 3) for _ in names]
        flips = [-1 if (signs ^ (index >> 1)) >> at & 1 else 1 for at in range(len(names))]
        generic.append({name: size * flip for name, size, flip in zip(names, sizes, flips, strict=True)})
        yield generic[-1], False
    for index in range(_WHOLE_POINTS):
        yield {name: float(draw.randint(1, 4 + index)) for name in names}, True
    parts = list(dict.fromkeys([*_turning_parts(gold), *_turning_parts(prediction)]))[:_TURNING_PARTS]
    for part in parts:
        for base in (generic[1], generic[3])[: len(names)]:
            for name in sorted(symbols_of(part)):
                for turn in _turns(part, name, base, arithmetic):
                    for offset in _OFFSETS:
                        yield base | {name: turn + offset * max(1.0, abs(turn))}, False


def _turning_parts(node: Node) -> Iterator[Node]:
    """What stands under roots, absolute values, logarithms and in denominators, and what poles and ends come of."""
    for part in node.parts:
        if isinstance(part, Node):
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
    """Where the size of `part` is least along one variable: zeros, also those that it touches without crossing."""
    point = dict(base)

    def size(place: float) -> float:
        point[name] = place
        value = _value(part, point, arithmetic)
        return math.inf if value is None or value == _UNDEFINED else abs(value)

    sizes = [size(place) for place in _GRID]
    least = [
        at
        for at in range(1, len(_GRID) - 1)
        if sizes[at] <= min(sizes[at - 1], sizes[at + 1]) and sizes[at] < math.inf
    ]
    found = []
    for at in sorted(least, key=lambda at: abs(_GRID[at]))[:_TURNS]:
        low, high = _GRID[at - 1], _GRID[at + 1]
        for _ in range(_STEPS):
            third = (high - low) / 3
            if size(low + third) <= size(high - third):
                high -= third
            else:
                low += third
        found.append((low + high) / 2)
    return found
