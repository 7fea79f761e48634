"""The value of an expression at a point, in floats: constant time for each part, whatever the numbers in it.

It tells expressions apart. That two expressions have the same value is evidence, not proof, unless variables took
random values (a polynomial identity that fails is caught with probability 1 but for rounding).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping
from fractions import Fraction

from stages.algorithms.answers.latex_tree import Node

_CONSTANTS = {"pi": math.pi, "e": math.e, "i": 1j}
_LARGEST_ROOT = 9
_FUNCTIONS = {
    "sin": cmath.sin,
    "cos": cmath.cos,
    "tan": cmath.tan,
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": cmath.tanh,
    "ln": cmath.log,
    "log": cmath.log,
    "exp": cmath.exp,
    "abs": abs,
    "cot": lambda x: 1 / cmath.tan(x),
    "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x),
    "lg": lambda x: cmath.log(x) / math.log(10),
}


def value_at(node: Node, point: Mapping[str, float]) -> complex | None:
    """The value with the variables of `point`; None where it is undefined, too large, or not known here."""
    try:
        value = complex(_value(node, point))
    except (ArithmeticError, ValueError, KeyError, TypeError):
        return None
    return value if cmath.isfinite(value) else None


def symbols_of(node: Node) -> set[str]:
    """Names of the variables; e and i are numbers."""
    if node.head == "symbol":
        return set() if node.first in _CONSTANTS else {node.first}
    return {name for part in node.parts if isinstance(part, Node) for name in symbols_of(part)}


def is_written_with_i(node: Node) -> bool:
    """True where the imaginary unit stands in it; without it, values that are not real are none in school."""
    if node.head == "symbol":
        return node.first == "i"
    return any(is_written_with_i(part) for part in node.parts if isinstance(part, Node))


def largest_part(node: Node, point: Mapping[str, float]) -> float:
    """The largest absolute value among the sums' terms and the arguments of functions, for a bound of rounding."""
    parts = [part for part in node.parts if isinstance(part, Node)]
    largest = max((largest_part(part, point) for part in parts), default=0.0)
    if node.head in ("add", "call", "power"):
        for part in parts:
            value = value_at(part, point)
            largest = max(largest, math.inf if value is None else abs(value))
    return largest


def _value(node: Node, point: Mapping[str, float]) -> complex:
    head, parts = node.head, node.parts
    if head == "number":
        return float(parts[0])
    if head == "symbol":
        return _CONSTANTS[parts[0]] if parts[0] in _CONSTANTS else point[parts[0]]
    if head == "pi":
        return math.pi
    if head == "add":
        return sum(_value(part, point) for part in parts)
    if head == "multiply":
        product: complex = 1
        for part in parts:
            product *= _value(part, point)
        return product
    if head == "power":
        return _power(_value(parts[0], point), _value(parts[1], point))
    if head == "call":
        return _call(parts[0], [_value(part, point) for part in parts[1:]])
    if head == "percent":
        return _value(parts[0], point) / 100
    if head == "degree":
        return _value(parts[0], point) * math.pi / 180
    raise KeyError(head)


def _power(base: complex, exponent: complex) -> complex:
    """Odd roots of negative numbers are real, as in school and in `algebra`; else the principal value."""
    if not isinstance(base, complex) and not isinstance(exponent, complex) and base < 0:
        fraction = Fraction(exponent).limit_denominator(_LARGEST_ROOT)
        if fraction.denominator % 2 and abs(fraction - exponent) < 1e-12:
            size = (-base) ** exponent
            return -size if fraction.numerator % 2 else size
    return base**exponent


def _call(name: str, arguments: list[complex]) -> complex:
    if name == "factorial":
        return math.gamma(_real(arguments[0]) + 1)
    if name == "binom":
        upper, lower = map(_real, arguments)
        return math.gamma(upper + 1) / (math.gamma(lower + 1) * math.gamma(upper - lower + 1))
    return _FUNCTIONS[name](arguments[0])


def _real(value: complex) -> float:
    if isinstance(value, complex):
        if value.imag:
            raise ValueError("not real")
        return value.real
    return value
