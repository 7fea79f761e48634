"""The value of an expression at a point: in floats, which tell values apart, or to 50 digits and more, which settle
doubts. A number without roots and functions has an exact value.

Variables are real, and so is every value on the way, unless the imaginary unit stands in one of the two expressions: a
root of a negative number has no value. Odd roots of negative numbers are real, as in school and in `algebra`.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from stages.algorithms.answers.latex_tree import Node

_MOST_EXACT_BITS = 50_000
_MOST_BITS_OF_WORK = 1_500_000
"""Of all the numbers on the way to an exact value: some 0.1 s."""
_MAX_FACTORIAL = 5_000
_CONSTANTS = ("e", "i")
_FUNCTION_NAMES = {
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "ln": "log",
    "log": "log",
    "exp": "exp",
}


class UndefinedError(ArithmeticError):
    """The expression has no value at the point."""


@dataclass(frozen=True)
class Arithmetic:
    """The numbers that an expression is evaluated in."""

    number: Callable[[Any], Any]
    library: Any
    """Holds pi, e and the functions by the names of `math`."""
    is_real: bool
    gamma: Callable[[Any], Any]


REAL = Arithmetic(float, math, True, math.gamma)
COMPLEX = Arithmetic(float, cmath, False, math.gamma)


@lru_cache(maxsize=16)
def exact(is_real: bool, digits: int) -> Arithmetic:
    """Arithmetic to so many digits. Loads mpmath, which most runs never need."""
    import mpmath

    context = mpmath.MPContext()
    context.dps = digits

    def number(value: Fraction | float):
        value = Fraction(value)
        return context.mpf(value.numerator) / value.denominator

    return Arithmetic(number, context, is_real, context.gamma)


def value_at(node: Node, point: Mapping[str, Any], arithmetic: Arithmetic = COMPLEX) -> Any:
    """The value with the variables of `point`; None where it is too large or not known here.

    UndefinedError where it has none: in a pole, or where a value on the way is not real.
    """
    try:
        value = _value(node, point, arithmetic)
        return value if cmath.isfinite(complex(value)) else None
    except UndefinedError:
        raise
    except (OverflowError, KeyError, TypeError):
        return None
    except (ArithmeticError, ValueError) as error:
        raise UndefinedError from error


def constant_value(node: Node) -> complex | None:
    """The value of an expression without variables; None where it has none or is not known here."""
    try:
        value = value_at(node, {})
    except UndefinedError:
        return None
    return None if value is None else complex(value)


def exact_rational(node: Node) -> Fraction | None:
    """The value of sums, products, whole powers, factorials and binomials of numbers; None for others and large ones.

    The caller bounds what the tree may be worth (`explosive.bits_of`); the work is bounded here.
    """
    work = 0

    def value(part: Node) -> Fraction:
        nonlocal work
        found = _exact_rational(part, value)
        bits = found.numerator.bit_length() + found.denominator.bit_length()
        work += bits
        if bits > _MOST_EXACT_BITS or work > _MOST_BITS_OF_WORK:
            raise OverflowError
        return found

    try:
        return value(node)
    except (ArithmeticError, KeyError):
        return None


def _exact_rational(node: Node, value: Callable[[Node], Fraction]) -> Fraction:
    head, parts = node.head, node.parts
    if head == "number":
        return parts[0]
    if head == "percent":
        return value(parts[0]) / 100
    if head in ("add", "multiply"):
        total = value(parts[0])
        for part in parts[1:]:
            total = total + value(part) if head == "add" else total * value(part)
        return total
    if head == "power":
        base, exponent = value(parts[0]), value(parts[1])
        bits = base.numerator.bit_length() + base.denominator.bit_length()
        if exponent.denominator > 1 or abs(exponent) * bits > _MOST_EXACT_BITS:
            raise OverflowError
        return base**exponent.numerator
    if head == "call" and parts[0] in ("factorial", "binom"):
        values = [value(part) for part in parts[1:]]
        if not all(one.denominator == 1 and 0 <= one <= _MAX_FACTORIAL for one in values):
            raise OverflowError
        count = math.factorial if parts[0] == "factorial" else math.comb
        return Fraction(count(*(one.numerator for one in values)))
    raise KeyError(head)


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


def _value(node: Node, point: Mapping[str, Any], arithmetic: Arithmetic) -> Any:
    head, parts = node.head, node.parts
    if head == "number":
        return arithmetic.number(parts[0])
    if head == "symbol":
        if parts[0] in _CONSTANTS:
            return 1j if parts[0] == "i" else +arithmetic.library.e
        return point[parts[0]]
    if head == "pi":
        return +arithmetic.library.pi
    if head == "add":
        return sum(
            (_value(part, point, arithmetic) for part in parts[1:]), _value(parts[0], point, arithmetic)
        )
    if head == "multiply":
        product = _value(parts[0], point, arithmetic)
        for part in parts[1:]:
            product = product * _value(part, point, arithmetic)
        return product
    if head == "power":
        return _power(parts[0], parts[1], point, arithmetic)
    if head == "call":
        values = [_value(part, point, arithmetic) for part in parts[1:]]
        return _in_the_field(_call(parts[0], values, arithmetic), arithmetic)
    if head == "percent":
        return _value(parts[0], point, arithmetic) / 100
    if head == "degree":
        return _value(parts[0], point, arithmetic) * arithmetic.library.pi / 180
    raise KeyError(head)


def _power(base_node: Node, exponent_node: Node, point: Mapping[str, Any], arithmetic: Arithmetic) -> Any:
    base, fraction = _value(base_node, point, arithmetic), rational(exponent_node)
    if fraction is not None and fraction.denominator == 1:
        return base**fraction.numerator if abs(fraction) < 2**53 else base ** arithmetic.number(fraction)
    exponent = _value(exponent_node, point, arithmetic) if fraction is None else arithmetic.number(fraction)
    if _is_complex(base) or _is_complex(exponent) or base >= 0:
        return _in_the_field(base**exponent, arithmetic)
    if fraction is not None and fraction.denominator % 2:
        size = (-base) ** exponent
        return -size if fraction.numerator % 2 else size
    if fraction is None and exponent == int(exponent):
        return base ** int(exponent) if abs(exponent) < 2**53 else None
    return _in_the_field(
        complex(base) ** exponent if arithmetic.library is cmath else base**exponent, arithmetic
    )


def _is_complex(value: Any) -> bool:
    return isinstance(value, complex) or hasattr(value, "_mpc_")


def _in_the_field(value: Any, arithmetic: Arithmetic) -> Any:
    if arithmetic.is_real and _is_complex(value):
        raise UndefinedError
    return value


def rational(node: Node) -> Fraction | None:
    """The number that a fraction in an exponent is; None for what is written otherwise."""
    if node.head == "number":
        return node.first
    if node.head == "multiply":
        factors = [rational(part) for part in node.parts]
        return None if None in factors else math.prod(factors)  # type: ignore[arg-type]
    if node.head == "power" and node.parts[1].head == "number" and node.parts[1].first == -1:
        value = rational(node.first)
        return 1 / value if value else None
    return None


def _call(name: str, values: list[Any], arithmetic: Arithmetic) -> Any:
    library = arithmetic.library
    if name in _FUNCTION_NAMES:
        return getattr(library, _FUNCTION_NAMES[name])(values[0])
    if name == "abs":
        return abs(values[0])
    if name in ("cot", "sec", "csc"):
        return 1 / getattr(library, {"cot": "tan", "sec": "cos", "csc": "sin"}[name])(values[0])
    if name == "lg":
        return library.log(values[0]) / library.log(10)
    if name in ("factorial", "binom"):
        upper, *lower = (value.real if _is_complex(value) and not value.imag else value for value in values)
        gamma = arithmetic.gamma
        if not lower:
            return gamma(upper + 1)
        return gamma(upper + 1) / (gamma(lower[0] + 1) * gamma(upper - lower[0] + 1))
    if name in ("floor", "ceil") and not _is_complex(values[0]):
        return getattr(math if library is cmath else library, name)(values[0])
    if name in ("mod", "max", "min") and not any(map(_is_complex, values)):
        return values[0] % values[1] if name == "mod" else {"max": max, "min": min}[name](values)
    raise KeyError(name)
