r"""Says what kind of answer a tree is: one value, values with names, a list, a set of numbers, an unsolved relation.

The conventions of answers are applied here: `x = 5` names a value; in `x = 2 + 3 = 5` the last link counts, in
`x = 1/3 \approx 0.33` the last exact one; `1 \pm 2` is two values; an inequality in one unknown is a set of numbers.
A set of real numbers is a union of intervals, from interval notation or from an inequality that is solved here.
Read `shape_of` first; names are the middle of the file, intervals and inequalities its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from itertools import product

from stages.algorithms.answers.evaluation import constant_value, exact_rational, symbols_of
from stages.algorithms.answers.latex import Node, is_reciprocal, number, signed, substituted
from stages.algorithms.answers.same_function import degree, rational_value

_INEQUALITIES = frozenset(["lt", "le", "gt", "ge", "ne"])
# `\pm 1 \pm \sqrt2` has two; a text with a hundred of them is left unchanged.
_MAX_SIGNS = 3


@dataclass(frozen=True, slots=True)
class Named:
    """A value under a name."""

    name: str
    answer: object


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, which are nodes and may be infinite; a single point is closed at both ends."""

    low: Node
    high: Node
    is_low_closed: bool
    is_high_closed: bool


@dataclass(frozen=True, slots=True)
class Numbers:
    """A set of real numbers; of an unknown if one was named."""

    pieces: tuple[Interval, ...]
    name: str | None


@dataclass(frozen=True, slots=True)
class Several:
    """A `list` or `set` (order does not count), or a `sequence` in brackets (it does)."""

    kind: str
    items: tuple
    brackets: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation or inequality that is not solved."""

    items: tuple[Node, ...]
    signs: tuple[str, ...]


def shape_of(node: Node):
    """Returns a Named, Numbers, Several or Relation, or the node itself: a value, matrix, ratio or text."""
    # The order matters only for the last case: the heads exclude each other.
    if node.head == "relation":
        return _relation(*node.parts)
    if node.head in ("list", "set"):
        return _several(node.head, node.parts)
    if node.head == "sequence":
        opening, closing, items = node.parts
        return Several("sequence", tuple(map(shape_of, items)), opening + closing)
    if node.head == "number_set":
        return Numbers((EVERYTHING,), None) if node.first == "R" else node
    if node.head in ("union", "intersection", "minus"):
        return _set_operation(node)
    # `A(1, 2)` names a point.
    if node.head == "multiply" and len(node.parts) == 2 and node.parts[1].head == "sequence":
        name = node.first
        if name.head == "symbol" and name.first[0].isupper():
            return Named(name.first, shape_of(node.parts[1]))
    values = _without_plus_minus(node)
    return node if values is None else Several("list", values)


def as_numbers(shape) -> Numbers | None:
    """Returns the set of numbers that brackets, braces or one value represent; None where they represent none."""
    if isinstance(shape, Numbers):
        return shape
    if isinstance(shape, Several) and shape.kind == "sequence":
        # Three coordinates are not an interval.
        if len(shape.items) != 2 or not all(isinstance(item, Node) for item in shape.items):
            return None
        piece = interval(shape.brackets[0], shape.brackets[1], *shape.items)
        return None if piece is None else Numbers((piece,), None)
    if isinstance(shape, Several):
        # {1, 2} is the union of two points, so that it can be compared with, or taken from, an interval.
        if any(not isinstance(item, Node) or endpoint_value(item) is None for item in shape.items):
            return None
        return Numbers(united([Interval(item, item, True, True) for item in shape.items]), None)
    return None


def _several(kind: str, items: tuple[Node, ...]):
    pairs = [(item, shape_of(item)) for item in items]
    if kind == "list":
        # Both steps come before the list is read as one set: `x > 1, x \in \mathbb{R}` is the ray, `x \ne 1, 2`
        # excludes both numbers.
        pairs = _without_domains(pairs)
        pairs = _with_exceptions(pairs)
    shapes = [shape for _, shape in pairs]
    # Conditions side by side are one set: `x > 0, x < 6` is (0, 6).
    if kind == "list" and all(isinstance(shape, Numbers) and shape.name for shape in shapes):
        return _all_of(shapes)
    flat: list = []
    for item, shape in pairs:
        # The two values of a plus-minus sign join the list around it; a group that was written as a list does not.
        is_plus_minus = item.head != "list" and isinstance(shape, Several) and shape.kind == "list"
        flat += shape.items if is_plus_minus else [shape]  # type: ignore[union-attr]
    return flat[0] if kind == "list" and len(flat) == 1 else Several(kind, tuple(flat))


def _without_domains(pairs: list) -> list:
    r"""Drops `x \in \mathbb{R}` beside a condition on the same x."""
    conditions = {shape.name for _, shape in pairs if isinstance(shape, Numbers) and shape.name}
    everything = Numbers((EVERYTHING,), None)
    return [
        (item, shape)
        for item, shape in pairs
        if not (isinstance(shape, Named) and shape.answer == everything and shape.name in conditions)
    ]


def _with_exceptions(pairs: list) -> list:
    r"""Reads `x \ne 1, 2` as `x \ne 1, x \ne 2`."""
    first, shape = pairs[0]
    if first.head != "relation" or first.parts[1] != ("ne",) or not isinstance(shape, Numbers):
        return pairs
    # `x \ne 1, y = 2` is a list of two statements.
    if any(endpoint_value(item) is None for item, _ in pairs[1:]):
        return pairs
    relations = [Node("relation", ((first.first[0], item), ("ne",))) for item, _ in pairs[1:]]
    return [pairs[0], *((relation, shape_of(relation)) for relation in relations)]


def _all_of(shapes: list[Numbers]):
    """Joins inequalities in one unknown: their union where they exclude each other, else their intersection."""
    if len({shape.name for shape in shapes}) != 1:
        return Several("list", tuple(shapes))
    pieces = [piece for shape in shapes for piece in shape.pieces]
    # As many pieces as before: they exclude each other, and no number satisfies both (`x < 0, x > 6`), so that `or` is
    # meant.
    together = united(pieces)
    if len(together) == len(pieces):
        return Numbers(together, shapes[0].name)
    shared = reduce(common, (shape.pieces for shape in shapes))
    return Numbers(shared, shapes[0].name) if shared else Several("list", tuple(shapes))


def _set_operation(node: Node):
    left, right = (as_numbers(shape_of(part)) for part in node.parts)
    if node.head == "union" and left is not None and right is not None:
        # `x < 1 or y > 2` is not a set of numbers.
        if left.name != right.name:
            return node
        return Numbers(united([*left.pieces, *right.pieces]), left.name)
    if node.head == "minus" and left is not None and node.parts[1].head == "set":
        pieces = without_points(left.pieces, node.parts[1].parts)
        return node if pieces is None else Numbers(pieces, None)
    return node


def _relation(items: tuple[Node, ...], signs: tuple[str, ...]):
    # `x \in [1, 2]` gives x the set as its value.
    if signs[0] == "in" and len(signs) == 1:
        name = name_of(items[0])
        return shape_of(items[1]) if name is None else Named(name, shape_of(items[1]))
    if all(sign in _INEQUALITIES for sign in signs):
        solved = solve(items, signs)
        return Relation(items, signs) if solved is None else Numbers(solved[1], solved[0])
    if any(sign not in ("eq", "approx") for sign in signs):
        return Relation(items, signs)
    name = name_of(items[0])
    # The value before the first \approx is the exact one; all values after it are roundings.
    exact = signs.index("approx") if "approx" in signs else len(signs)
    if name is not None:
        # `x \approx 3.14` has no exact value: the rounding is taken.
        return Named(name, shape_of(items[exact or 1]))
    # A chain without a name, `2 + 3 = 4 + 1 = 5`: its last exact link.
    if len(items) > 2 or exact == 0:
        return shape_of(items[exact])
    values = [endpoint_value(item) for item in items]
    if None not in values and len(set(values)) == 1:
        # Of `\frac{3}{16} = 0.1875` the fraction is taken: the decimal may be a rounding.
        return items[0] if items[1].head == "number" and items[1].parts[1] >= 0 else items[1]
    return Relation(items, signs)


def name_of(node: Node) -> str | None:
    r"""Returns the name on a left side: `x`, `f(x)`, `AB`, `|AB|`, `A:B`, `\frac{NO}{BO}`, `(x, y)`; else None."""
    if (name := unknown_name(node)) is not None:
        return name
    if node.head == "call" and node.first == "abs":
        inner = name_of(node.parts[1])
        # An unknown whose absolute value is 42 is 42 or -42.
        return None if inner in (None, "x", "y") else f"|{inner}|"
    if node.head == "text":
        return node.first
    # W(n) is read as a product; before an equals sign it is a function.
    if node.head == "multiply" and _is_application(node.parts):
        return f"unknown {node.first.first}"
    # `AB = 5`, `A:B = 2`, `\frac{NO}{BO} = 3`: lengths and ratios of figures.
    if node.head in ("multiply", "ratio") and all(_is_name_part(part) for part in node.parts):
        return f"{node.head} " + " ".join(str(_names(part)) for part in node.parts)
    if node.head == "sequence" and all(name_of(item) is not None for item in node.parts[2]):
        return "sequence " + " ".join(str(name_of(item)) for item in node.parts[2])
    return None


def _is_application(parts: tuple[Node, ...]) -> bool:
    """True for the form of a function of one variable: a capital and a small letter, as in `W(n)`."""
    if len(parts) != 2 or any(part.head != "symbol" for part in parts):
        return False
    return parts[0].first[0].isupper() and len(parts[1].first) == 1 and parts[1].first.islower()


def _is_name_part(node: Node) -> bool:
    """True for names of figures and their parts, which have capital letters, and for arguments of a named function."""
    if node.head == "power" and node.parts[1].head == "number":
        # A denominator: the BO of \frac{NO}{BO}.
        return node.parts[1].first == -1 and _is_name_part(node.first)
    if node.head == "multiply":
        return all(map(_is_name_part, node.parts))
    if node.head == "sequence":
        return name_of(node) is not None
    if node.head == "text":
        return node.first.startswith(("angle ", "overline ", "widehat "))
    # Small letters are unknowns: `xy = 5` names no value. `theta` and m (a measure or a slope) may be part of a name.
    return node.head == "symbol" and (node.first[0].isupper() or len(node.first) > 3 or node.first == "m")


def without_quantity(node: Node) -> Node:
    r"""Returns the value that an equation gives to a sum of letters or a function: 5 of `m+n = 5` and `f'(2) = 5`.

    For a gold answer without letters. An equation in one unknown, `2x = 10`, is still to be solved, and stays.
    """
    if node.head != "relation" or node.parts[1][0] != "eq" or not _is_quantity(node.first[0]):
        return node
    # `m+n = 2+3 = 5` stays a chain, whose parts must agree (`comparison.holds`).
    items, signs = node.first[1:], node.parts[1][1:]
    # `m+n = k` says nothing without k.
    if symbols_of(items[-1]):
        return node
    return items[0] if len(items) == 1 else Node("relation", (items, signs))


def _is_quantity(node: Node) -> bool:
    if node.head == "operator":
        return node.first == "det" or bool(symbols_of(node.parts[-1]))
    # 100m+n, f(1)+f(2), a determinant; one letter is an unknown, except in a step function.
    if len(symbols_of(node)) > 1 or _holds_call(node, ("unknown", "sum over", "prod over", "floor", "ceil")):
        return True
    if node.head != "multiply" or len(node.parts) != 2:
        return False
    function = node.first.first if is_reciprocal(node.first) else node.first
    # f'(2) and f^{-1}(2), which the grammar reads as products; f(2) is a call, and has a name.
    is_function = function.head == "symbol" and function.first.rstrip("'") in ("f", "g", "h", "F", "G", "H")
    return is_function and (function is not node.first or function.first.endswith("'"))


def _holds_call(node: Node, names: tuple[str, ...]) -> bool:
    is_call = node.head == "call" and node.first.startswith(names)
    return is_call or any(_holds_call(part, names) for part in node.all_children)


def _names(node: Node) -> str:
    if node.head == "symbol":
        return node.first
    return " ".join(map(_names, node.children))


def _without_plus_minus(node: Node) -> tuple[Node, ...] | None:
    """Returns both values of an expression with a plus-minus sign; its signs change together. None without one."""
    count = _count_signs(node)
    if not count or count > _MAX_SIGNS:
        return None
    return _with_sign(node, "+"), _with_sign(node, "-")


def _count_signs(node: Node) -> int:
    return (node.head == "plusminus") + sum(map(_count_signs, node.children))


def _with_sign(node: Node, sign: str) -> Node:
    if node.head == "plusminus":
        kind, inner = node.parts
        # In `a \pm b \mp c` both signs change together: a+b-c and a-b+c.
        flipped = {"+": "-", "-": "+"}[sign] if kind == "mp" else sign
        return signed(flipped, _with_sign(inner, sign))
    return node.map_children(lambda part: _with_sign(part, sign))


def with_letters_of(gold: Node, prediction: Node) -> tuple[Node, Node]:
    r"""Returns both with the gold answer's letter for any whole number (`k \in \mathbb{Z}`) and a constant (`+ C`)."""
    # `\frac\pi4+n\pi, n \in \mathbb{Z}` beside `\frac\pi4+k\pi`: without the domain both are one expression.
    sides = [_without_whole_domain(node) for node in (gold, prediction)]
    trees, domains = zip(*sides, strict=True)
    names = [symbols_of(tree) for tree in trees]
    ours, theirs = names[0] - names[1], names[1] - names[0]
    if len(ours) != 1 or len(theirs) != 1:
        return (trees[0], trees[1]) if not ours and not theirs else (gold, prediction)
    [letter], [other] = ours, theirs
    # One letter on each side, with its domain stated: without the statement, n and m are two variables.
    is_whole_number = len(names[0]) == 1 and {letter, other} & {*domains} and len(letter) == len(other) == 1
    # +C and +c are constants of integration; +a and +b may not be.
    is_constant = all(
        tree.head == "add" and Node("symbol", (name,)) in tree.parts and name in ("C", "c", "K", "k")
        for tree, name in zip(trees, (letter, other), strict=True)
    )
    if is_whole_number or is_constant:
        return trees[0], substituted(trees[1], other, Node("symbol", (letter,)))
    return gold, prediction


def _without_whole_domain(node: Node) -> tuple[Node, str]:
    """Returns the answer without the `k in Z` after it, and k."""
    if node.head != "list" or len(node.parts) != 2 or node.parts[1].head != "relation":
        return node, ""
    items, signs = node.parts[1].parts
    if signs != ("in",) or items[0].head != "symbol" or items[1] != Node("number_set", ("Z",)):
        return node, ""
    return node.first, items[0].first


# ---------------------------------------------------------------------------------------- sets of real numbers
_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "ne": "ne"}
# Imaginary part below which a value is real: \sqrt[3]{...} in complex floats leaves 1e-16.
_NOISE = 1e-12
INFINITY = Node("infinity", ())
EVERYTHING = Interval(signed("-", INFINITY), INFINITY, False, False)


def endpoint_value(node: Node) -> float | None:
    """Returns the number of an interval's end, including infinities; None when it is not a real constant."""
    if node.head == "infinity":
        return math.inf
    # -\infty is the product of -1 and infinity.
    if node.head == "multiply" and node.parts[-1].head == "infinity" and len(node.parts) == 2:
        return -math.inf if node.first == number(-1) else None
    value = None if symbols_of(node) else constant_value(node)
    return None if value is None or abs(value.imag) > _NOISE else value.real


def interval(opening: str, closing: str, low: Node, high: Node) -> Interval | None:
    """Returns the interval of such brackets; None unless its ends are real constants in rising order."""
    values = endpoint_value(low), endpoint_value(high)
    # (2, 1) is a point, and (a, b) may be.
    if values[0] is None or values[1] is None or values[0] >= values[1]:
        return None
    return Interval(low, high, opening == "[", closing == "]")


def _start(piece: Interval) -> tuple[float | None, bool]:
    """At equal ends the closed one is first, so that [1, 2) absorbs (1, 2)."""
    return endpoint_value(piece.low), not piece.is_low_closed


def _end(piece: Interval) -> tuple[float | None, bool]:
    return endpoint_value(piece.high), piece.is_high_closed


def united(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Returns the same set in the fewest pieces, in rising order."""
    pieces: list[Interval] = []
    for piece in sorted(intervals, key=_start):
        # (0,1) and (1,2) leave 1 out and stay two pieces; [0,1] and (1,2) join.
        if not pieces or _start(piece) > _end(pieces[-1]):
            pieces.append(piece)
        elif _end(piece) > _end(pieces[-1]):
            pieces[-1] = replace(pieces[-1], high=piece.high, is_high_closed=piece.is_high_closed)
    return tuple(pieces)


def common(first: Sequence[Interval], second: Sequence[Interval]) -> tuple[Interval, ...]:
    """Returns the intersection of both sets."""
    shared = []
    for pair in product(first, second):
        low, high = max(pair, key=_start), min(pair, key=_end)
        # The larger low end and the smaller high end; one point remains where both are closed there.
        if _start(low) < _end(high):
            shared.append(Interval(low.low, high.high, low.is_low_closed, high.is_high_closed))
    return tuple(shared)


def without_points(pieces: Sequence[Interval], points: Sequence[Node]) -> tuple[Interval, ...] | None:
    """Returns the set without single points; None where a point is not a real constant."""
    for point in points:
        if endpoint_value(point) is None:
            return None
        around = Interval(EVERYTHING.low, point, False, False), Interval(point, INFINITY, False, False)
        pieces = common(pieces, around)
    return tuple(pieces)


def solve(items: Sequence[Node], signs: Sequence[str]) -> tuple[str, tuple[Interval, ...]] | None:
    r"""Returns unknown and solutions of `2 < x \le 3`, `x \ge 1`, `-x > 2`, `1 < |x| < 2`, `x \ne 0`, or None."""
    if len(items) == 3:
        directions = {sign[0] for sign in signs}
        # 3 > x > 1 is reversed; 1 < x > 2 is not an interval.
        if directions == {"g"}:
            items, signs = items[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
        elif directions != {"l"}:
            return None
        low, middle, high = items
        piece = interval("[" if signs[0] == "le" else "(", "]" if signs[1] == "le" else ")", low, high)
        return None if piece is None else _with_mirror(middle, piece)
    if len(items) != 2 or signs[0] not in _FLIPPED:
        return None
    return _solve_one(items[0], signs[0], items[1])


def _with_mirror(middle: Node, piece: Interval) -> tuple[str, tuple[Interval, ...]] | None:
    if middle.head == "call" and middle.first == "abs" and middle.parts[1].head == "symbol":
        # -1 < |x| < 2 is not two mirrored intervals.
        if endpoint_value(piece.low) < 0:  # type: ignore[operator]
            return None
        ends = signed("-", piece.high), signed("-", piece.low)
        mirrored = Interval(*ends, piece.is_high_closed, piece.is_low_closed)
        return middle.parts[1].first, united([mirrored, piece])
    name = unknown_name(middle)
    return None if name is None else (name, (piece,))


def unknown_name(node: Node) -> str | None:
    """Returns the name of an unknown: a variable, or a function of one such as f(x)."""
    if node.head == "symbol":
        return node.first
    if node.head == "call" and node.first.startswith("unknown"):
        return node.first
    return None


def _solve_one(left: Node, sign: str, right: Node) -> tuple[str, tuple[Interval, ...]] | None:
    # 3 > x is reversed to x < 3 first.
    is_left_constant = endpoint_value(left) is not None
    if is_left_constant and (unknown_name(right) is not None or _is_distance(right)):
        left, sign, right = right, _FLIPPED[sign], left
    if _is_distance(left):
        return _solve_distance(left.parts[1], sign, right)
    name = unknown_name(left)
    if name is None or endpoint_value(right) is None:
        linear = _linear(left, right)
        if linear is None:
            return None
        name, slope, bound = linear
        right = number(bound)
        # -3x \le 9 is x \ge -3.
        sign = _FLIPPED[sign] if slope < 0 else sign
    return name, _ray(sign, right)


def _is_distance(node: Node) -> bool:
    return node.head == "call" and node.first == "abs"


def _solve_distance(inner: Node, sign: str, bound: Node) -> tuple[str, tuple[Interval, ...]] | None:
    """Solves `|x - 3| < 2` and the like, for an inside that is linear in one variable and a positive rational bound."""
    linear, radius = _linear(inner, number(0)), rational_value(bound)
    # |x| < 0 has no solution and |x| > 0 all but one; they are not solved here.
    if linear is None or radius is None or radius <= 0:
        return None
    name, slope, centre = linear
    # |2x - 6| < 4 is |x - 3| < 2: the radius is divided by the slope.
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


# A polynomial that equals a line at one place more than its degree is that line.
_HIGHEST_DEGREE = 4
_PLACES = range(_HIGHEST_DEGREE + 1)


def _linear(left: Node, right: Node) -> tuple[str, Fraction, Fraction] | None:
    """Returns name, slope and root of a difference that is linear in one variable with rational coefficients."""
    difference = Node("add", (left, signed("-", right)))
    names = symbols_of(difference)
    # None for a variable in a denominator, which may change the direction of the inequality.
    highest = degree(difference)
    if len(names) != 1 or highest is None or highest > _HIGHEST_DEGREE:
        return None
    [name] = names
    values = [exact_rational(substituted(difference, name, number(place))) for place in _PLACES]
    if None in values:
        return None
    start, slope = values[0], values[1] - values[0]  # type: ignore[operator]
    if not slope or any(value != start + slope * place for value, place in zip(values, _PLACES, strict=True)):
        return None
    return name, slope, -start / slope  # type: ignore[operator]
