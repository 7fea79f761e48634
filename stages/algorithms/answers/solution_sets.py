"""Sets of real numbers as unions of intervals: from interval notation, from inequalities, with their equality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from stages.algorithms.answers import algebra
from stages.algorithms.answers.evaluation import constant_value, symbols_of
from stages.algorithms.answers.latex_tokens import UnreadableError
from stages.algorithms.answers.latex_tree import Node, number, signed

_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}
_NOISE = 1e-12


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, which are nodes, infinite ones included; a single point is closed at both ends."""

    low: Node
    high: Node
    is_low_closed: bool
    is_high_closed: bool


INFINITY = Node("infinity", ())
EVERYTHING = Interval(signed("-", INFINITY), INFINITY, False, False)


def endpoint_value(node: Node) -> float | None:
    """The number that an end of an interval is, infinities included; None when it is no real constant."""
    if node.head == "infinity":
        return math.inf
    if node.head == "multiply" and node.parts[-1].head == "infinity" and len(node.parts) == 2:
        return -math.inf if node.first == number(-1) else None
    value = None if symbols_of(node) else constant_value(node)
    return None if value is None or abs(value.imag) > _NOISE else value.real


def interval(opening: str, closing: str, low: Node, high: Node) -> Interval | None:
    """The interval of such brackets; None when its ends are no real constants in rising order."""
    values = endpoint_value(low), endpoint_value(high)
    if values[0] is None or values[1] is None or values[0] >= values[1]:
        return None
    return Interval(low, high, opening == "[", closing == "]")


def united(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """The same set in the fewest pieces, in rising order."""
    ordered = sorted(intervals, key=lambda piece: (endpoint_value(piece.low), not piece.is_low_closed))
    pieces: list[Interval] = []
    for piece in ordered:
        if pieces and _touch(pieces[-1], piece):
            last = pieces[-1]
            high, is_closed = last.high, last.is_high_closed
            if endpoint_value(piece.high) > endpoint_value(high):  # type: ignore[operator]
                high, is_closed = piece.high, piece.is_high_closed
            elif endpoint_value(piece.high) == endpoint_value(high):
                is_closed = is_closed or piece.is_high_closed
            pieces[-1] = Interval(last.low, high, last.is_low_closed, is_closed)
        else:
            pieces.append(piece)
    return tuple(pieces)


def _touch(left: Interval, right: Interval) -> bool:
    end, start = endpoint_value(left.high), endpoint_value(right.low)
    return start < end or (start == end and (left.is_high_closed or right.is_low_closed))  # type: ignore[operator]


def common(first: Sequence[Interval], second: Sequence[Interval]) -> tuple[Interval, ...]:
    """What both sets hold."""
    shared = []
    for one in first:
        for other in second:
            low = max((one, other), key=lambda piece: (endpoint_value(piece.low), not piece.is_low_closed))
            high = min((one, other), key=lambda piece: (endpoint_value(piece.high), piece.is_high_closed))
            ends = endpoint_value(low.low), endpoint_value(high.high)
            if ends[0] < ends[1] or (ends[0] == ends[1] and low.is_low_closed and high.is_high_closed):  # type: ignore[operator]
                shared.append(Interval(low.low, high.high, low.is_low_closed, high.is_high_closed))
    return tuple(shared)


def without_points(pieces: Sequence[Interval], points: Sequence[Node]) -> tuple[Interval, ...] | None:
    """The set less single points; None where a point is no real constant."""
    for point in points:
        if endpoint_value(point) is None:
            return None
        around = Interval(EVERYTHING.low, point, False, False), Interval(point, INFINITY, False, False)
        pieces = common(pieces, around)
    return tuple(pieces)


def solve(items: Sequence[Node], signs: Sequence[str]) -> tuple[str, tuple[Interval, ...]] | None:
    r"""Name of the unknown and solutions of `2 < x \le 3`, `x \ge 1`, `-x > 2`, `1 < |x| < 2`, `x \ne 0`; else None."""
    if len(items) == 3:
        directions = {sign[0] for sign in signs}
        if directions == {"g"}:
            items, signs = items[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
        elif directions != {"l"}:
            return None
        low, middle, high = items
        found = interval("[" if signs[0] == "le" else "(", "]" if signs[1] == "le" else ")", low, high)
        if found is None:
            return None
        return _with_mirror(middle, found)
    if len(items) != 2 or signs[0] not in _FLIPPED:
        return None
    return _solve_one(items[0], signs[0], items[1])


def _with_mirror(middle: Node, found: Interval) -> tuple[str, tuple[Interval, ...]] | None:
    if middle.head == "call" and middle.first == "abs" and middle.parts[1].head == "symbol":
        if endpoint_value(found.low) < 0:  # type: ignore[operator]
            return None
        ends = signed("-", found.high), signed("-", found.low)
        mirrored = Interval(*ends, found.is_high_closed, found.is_low_closed)
        return middle.parts[1].first, united([mirrored, found])
    name = unknown_name(middle)
    return None if name is None else (name, (found,))


def unknown_name(node: Node) -> str | None:
    """The name of an unknown: a variable, or a function of one such as f(x)."""
    if node.head == "symbol":
        return node.first
    if node.head == "call" and node.first.startswith("unknown"):
        return node.first
    return None


def _solve_one(left: Node, sign: str, right: Node) -> tuple[str, tuple[Interval, ...]] | None:
    is_left_constant = endpoint_value(left) is not None
    if is_left_constant and (unknown_name(right) is not None or _is_distance(right)):
        left, sign, right = right, _FLIPPED[sign], left
    if _is_distance(left):
        return _solve_distance(left.parts[1], sign, right)
    name = unknown_name(left)
    if name is None or endpoint_value(right) is None:
        try:
            linear = _linear(left, right)
        except UnreadableError:
            return None
        if linear is None:
            return None
        name, slope, bound = linear
        right = number(bound)
        sign = _FLIPPED[sign] if slope < 0 else sign
    return name, _ray(sign, right)


def _is_distance(node: Node) -> bool:
    return node.head == "call" and node.first == "abs"


def _solve_distance(inner: Node, sign: str, bound: Node) -> tuple[str, tuple[Interval, ...]] | None:
    """`|x - 3| < 2` and its like, for an inside that is linear in one variable and a rational bound above zero."""
    try:
        linear = _linear(inner, number(0))
        radius = algebra.rational_value(algebra.canonical_form(bound))
    except UnreadableError:
        return None
    if linear is None or radius is None or radius <= 0:
        return None
    name, slope, centre = linear
    low, high = (number(centre + side * radius / abs(slope)) for side in (-1, 1))
    if sign == "ne":
        return name, without_points([EVERYTHING], [low, high]) or ()
    if sign in ("lt", "le"):
        return name, (Interval(low, high, sign == "le", sign == "le"),)
    return name, united([*_ray(_FLIPPED[sign], low), *_ray(sign, high)])


def _ray(sign: str, bound: Node) -> tuple[Interval, ...]:
    if sign == "ne":
        return without_points([EVERYTHING], [bound]) or ()
    if sign in ("lt", "le"):
        return (Interval(EVERYTHING.low, bound, False, sign == "le"),)
    return (Interval(bound, INFINITY, sign == "ge", False),)


def _linear(left: Node, right: Node) -> tuple[str, Fraction, Fraction] | None:
    """Name, slope and root of a difference that is linear in one variable with rational coefficients."""
    difference = algebra.canonical_form(Node("add", (left, signed("-", right))))
    names = algebra.variables(difference.top)
    if len(names) != 1 or algebra.variables(difference.bottom) or len(difference.top) > 2:
        return None
    [name] = names
    slope = difference.top.get(((name, Fraction(1)),))
    if slope is None or not difference.is_transparent:
        return None
    rest = [value for monomial, value in difference.top.items() if monomial != ((name, Fraction(1)),)]
    if rest and () not in difference.top:
        return None
    return name, slope, -sum(rest, Fraction(0)) / slope
