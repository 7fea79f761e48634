r"""Evaluates expressions at points, and estimates how large their numbers may grow.

A number without roots and functions has an exact value. Other values are floats, or have as many digits as is asked.
Variables and all intermediate values are real, unless the caller's arithmetic is complex: the square root of a negative
number then has no value. Odd roots of negative numbers are real, as in school.

The second part estimates how much a computer algebra system would have to write out (`9^{9^9}`, `(999999!)!`,
`\sum_{k=1}^{10^9} k`). It needs only the tree and floats: towers and giant sums cost microseconds and kill no worker.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from stages.algorithms.answers.latex import Node, substituted

# 5,000! has 54,233 bits: factorials and other exact values are limited to about the same size.
MOST_EXACT_BITS = 50_000
_MOST_BITS_OF_WORK = 1_500_000
"""Bits of all intermediate numbers of one exact value: about 0.1 s."""
_MAX_FACTORIAL = 5_000
_LARGEST_EXPONENT = 2**53
"""Of exponents that are computed; a float holds every whole number up to it."""
_CONSTANTS = ("e", "i")
_FUNCTION_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log"}
_FUNCTION_NAMES |= {name: name for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "log", "exp")}
UNDEFINED = "undefined"
"""The value where an expression has none."""


@dataclass(frozen=True)
class Arithmetic:
    """The number type that an expression is evaluated in."""

    number: Callable[[Any], Any]
    library: Any
    """Has pi, e and the functions under the names of `math`."""
    is_real: bool


REAL = Arithmetic(float, math, True)
COMPLEX = Arithmetic(float, cmath, False)


@lru_cache(maxsize=16)
def exact(is_real: bool, digits: int) -> Arithmetic:
    """Arithmetic to this many digits. Loads mpmath, which most runs never need."""
    import mpmath

    context = mpmath.MPContext()
    context.dps = digits

    def number(value: Fraction | float):
        value = Fraction(value)
        return context.mpf(value.numerator) / value.denominator

    return Arithmetic(number, context, is_real)


def value_at(node: Node, point: Mapping[str, Any], arithmetic: Arithmetic = COMPLEX) -> Any:
    """Returns the value with the variables of `point`; None where it is too large or not known here.

    `UNDEFINED` where it has none: at a pole, or where an intermediate value is not real.
    """
    try:
        # The order of the handlers matters: OverflowError is an ArithmeticError, and means too large, not undefined.
        value = _value(node, point, arithmetic)
        # In floats 1e308 * 10 gives infinity, not an exception.
        return value if arithmetic.library.isfinite(value) else None
    except (OverflowError, KeyError, TypeError):
        return None
    except (ArithmeticError, ValueError):
        return UNDEFINED


def constant_value(node: Node) -> complex | None:
    """Returns the value of an expression without variables; None where it has none or is not known here."""
    value = value_at(node, {})
    return None if value is None or value is UNDEFINED else complex(value)


def exact_rational(node: Node) -> Fraction | None:
    """Returns the value of sums, products, whole powers, factorials, remainders and the like of numbers; None for
    others, and for large values.
    """
    work = 0

    def value(part: Node) -> Fraction:
        nonlocal work
        result = _exact_rational(part, value)
        bits = result.numerator.bit_length() + result.denominator.bit_length()
        work += bits
        # `bits` stops one giant number, `work` a sum of forty large ones.
        if bits > MOST_EXACT_BITS or work > _MOST_BITS_OF_WORK:
            raise OverflowError
        return result

    try:
        return value(node)
    except (ArithmeticError, KeyError, TypeError):
        return None


_OF_RATIONALS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "mod": lambda value, divisor: value % divisor,
    "max": max,
    "min": min,
}
_OF_INTEGERS: dict[str, Callable[..., int]] = {
    "factorial": math.factorial,
    "binom": math.comb,
    "gcd": math.gcd,
    "lcm": math.lcm,
}


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
        if exponent.denominator > 1 or abs(exponent) * bits > MOST_EXACT_BITS:
            raise OverflowError
        return base**exponent.numerator
    if head != "call":
        raise KeyError(head)
    values = [value(part) for part in parts[1:]]
    if parts[0] in _OF_RATIONALS:
        return Fraction(_OF_RATIONALS[parts[0]](*values))
    function = _OF_INTEGERS[parts[0]]
    is_count = parts[0] in ("factorial", "binom")
    if any(one.denominator > 1 or (is_count and not 0 <= one <= _MAX_FACTORIAL) for one in values):
        raise OverflowError
    return Fraction(function(*(one.numerator for one in values)))


def symbols_of(node: Node) -> set[str]:
    """Names of the variables; e and i are numbers."""
    if node.head == "symbol":
        return set() if node.first in _CONSTANTS else {node.first}
    return {name for part in node.children for name in symbols_of(part)}


def is_written_with_i(node: Node) -> bool:
    """True where the imaginary unit occurs; without it, values that are not real count as undefined, as in school."""
    if node.head == "symbol":
        return node.first == "i"
    return any(map(is_written_with_i, node.children))


def _value(node: Node, point: Mapping[str, Any], arithmetic: Arithmetic) -> Any:
    head, parts = node.head, node.parts
    if head == "number":
        return arithmetic.number(parts[0])
    if head == "symbol":
        if parts[0] in _CONSTANTS:
            # `+` makes a number of mpmath's constant, which is else evaluated anew at each use.
            return getattr(arithmetic.library, "j", 1j) if parts[0] == "i" else +arithmetic.library.e
        return point[parts[0]]
    if head == "pi":
        return +arithmetic.library.pi
    if head == "add":
        return sum((_value(part, point, arithmetic) for part in parts[1:]), _value(parts[0], point, arithmetic))
    if head == "multiply":
        product = _value(parts[0], point, arithmetic)
        for part in parts[1:]:
            product = product * _value(part, point, arithmetic)
        return product
    if head == "power":
        return _in_bounds(_power(parts[0], parts[1], point, arithmetic), arithmetic)
    if head == "call":
        values = [_in_bounds(_value(part, point, arithmetic), arithmetic) for part in parts[1:]]
        return _in_bounds(_call(parts[0], values, arithmetic), arithmetic)
    if head == "percent":
        return _value(parts[0], point, arithmetic) / 100
    if head == "degree":
        return _value(parts[0], point, arithmetic) * arithmetic.library.pi / 180
    raise KeyError(head)


def _power(base_node: Node, exponent_node: Node, point: Mapping[str, Any], arithmetic: Arithmetic) -> Any:
    # An exponent that is written as a fraction is taken exactly: the float 1/3 is not a third, and (-8)^{1/3} would be
    # complex.
    base, fraction = _value(base_node, point, arithmetic), rational(exponent_node)
    if fraction is not None and fraction.denominator == 1:
        # A whole exponent stays an integer, so that (-2)^3 is real.
        return base**fraction.numerator
    exponent = _value(exponent_node, point, arithmetic) if fraction is None else arithmetic.number(fraction)
    if abs(exponent) > _LARGEST_EXPONENT:
        raise OverflowError
    if is_complex(base) or is_complex(exponent) or base >= 0:
        return base**exponent
    # Odd roots as in school: \sqrt[3]{-8} is -2, where Python gives a complex number.
    if fraction is not None and fraction.denominator % 2:
        size = (-base) ** exponent
        return -size if fraction.numerator % 2 else size
    # (-2)^n at the whole points, where n is a float such as 3.0.
    if fraction is None and exponent == int(exponent):
        return base ** int(exponent)
    # A negative base with any other exponent: complex, or undefined where all values must be real.
    return complex(base) ** exponent if arithmetic.library is cmath else base**exponent


def is_complex(value: Any) -> bool:
    return isinstance(value, complex) or hasattr(value, "_mpc_")


def _in_bounds(value: Any, arithmetic: Arithmetic) -> Any:
    """Returns the value; OverflowError where it is large enough to slow down mpmath, ArithmeticError if not real."""
    if arithmetic.is_real and is_complex(value):
        raise ArithmeticError("not real")
    if arithmetic.library not in (math, cmath) and arithmetic.library.mag(value) > MOST_EXACT_BITS:
        raise OverflowError
    return value


def rational(node: Node) -> Fraction | None:
    """Returns the number of a fraction in an exponent; None for other notation."""
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
    # math and cmath have none of these.
    if name in ("cot", "sec", "csc"):
        return 1 / getattr(library, {"cot": "tan", "sec": "cos", "csc": "sin"}[name])(values[0])
    if name == "lg":
        return library.log(values[0]) / library.log(10)
    if name in ("factorial", "binom"):
        # n! for a variable n: gamma(n + 1), so that \frac{n!}{(n-1)!} equals n at every random point.
        upper, *lower = (value.real if is_complex(value) and not value.imag else value for value in values)
        gamma = getattr(library, "gamma", math.gamma)  # cmath has none
        if not lower:
            return gamma(upper + 1)
        return gamma(upper + 1) / (gamma(lower[0] + 1) * gamma(upper - lower[0] + 1))
    if name in ("floor", "ceil") and not is_complex(values[0]):
        # cmath has no floor; the value is real here.
        return getattr(math if library is cmath else library, name)(values[0])
    if name in ("mod", "max", "min") and not any(map(is_complex, values)):
        return values[0] % values[1] if name == "mod" else {"max": max, "min": min}[name](values)
    # gcd, lcm, series and unknown functions: `value_at` returns None for it, no opinion.
    raise KeyError(name)


# ------------------------------------------------------------------------------------------------------- sizes
MAX_BITS = 20_000
"""2^{99999999} counts 200 million bits; an integer of 6,000 digits is still computed."""
# (x+1)^{60} counts 60; (((x+1)^{60}+y)^{60}+z)^{60} counts 216,000.
_MAX_FACTORS = 300
_MAX_TERMS = 10_000
"""Of a sum or product with bounds."""
_BEYOND = math.inf
_EXPONENTIAL = frozenset(["exp", "sinh", "cosh", "tanh"])


def is_explosive(node: Node) -> bool:
    """True where computing the expression could need numbers or polynomials larger than in any answer."""
    bits, factors = _size(node)
    return bits > MAX_BITS or factors > _MAX_FACTORS


def bits_of(node: Node) -> float:
    """Returns the bits that the numbers in an expression may have: with this many digits no two values look alike."""
    return _size(node)[0]


def _size(node: Node) -> tuple[float, float]:
    """Returns the bits of its numbers, and how many sums with variables are multiplied; infinite beyond the limits."""
    head = node.head
    if head == "number":
        # Less one, since a whole number has the denominator 1, which has one bit.
        return float(node.first.numerator.bit_length() + node.first.denominator.bit_length() - 1), 0.0
    if head == "symbol":
        return 2.0, 0.0
    sizes = [_size(part) for part in node.all_children]
    if not sizes:
        # pi, infinity, an empty set: they do not grow.
        return 2.0, 0.0
    if head == "power":
        return _power_size(sizes[0], node.parts[1], sizes[1])
    if head == "call" and node.first in ("factorial", "binom"):
        return _times_size(_largest_of(sizes[0][0]), sizes[0][0] + 1), sizes[0][1]
    if head == "call" and node.first in _EXPONENTIAL and not symbols_of(node):
        value = constant_value(node.parts[1])
        return 3 * (_largest_of(sizes[0][0]) if value is None else abs(value)) + sizes[0][0], 0.0
    if head == "call" and node.first.startswith(("sum over", "prod over")):
        terms = _largest_of(max(sizes[0][0], sizes[1][0]))
        if terms > _MAX_TERMS:
            return _BEYOND, 0.0
        # The last term of a series is the largest, or near it: \sum_{k=1}^{999} k^{k^k} is measured at k = 999.
        bits, factors = _size(substituted(node.parts[3], node.first[len("sum over ") :], node.parts[2]))
        return _times_size(bits, terms), _times_size(factors, terms)
    if head == "multiply":
        return sum(bits for bits, _ in sizes), sum(factors for _, factors in sizes)
    factors = max(factors for _, factors in sizes)
    # A sum with letters is one factor that may have to be multiplied out; a sum of numbers is a number.
    if head == "add" and symbols_of(node):
        factors = max(factors, 1.0)
    return max(bits for bits, _ in sizes) + len(sizes), factors


def _power_size(base: tuple[float, float], exponent: Node, size: tuple[float, float]) -> tuple[float, float]:
    value = rational(exponent)
    if value is not None:
        # A float holds no exponent of 400 digits; beyond 10^30 everything is too large anyway.
        factor = float(min(abs(value.numerator), 10**30))
        return _times_size(base[0], factor), _times_size(base[1], factor / value.denominator)
    if symbols_of(exponent):
        return base[0] + size[0], base[1] + size[1]
    number = constant_value(exponent)
    factor = _largest_of(size[0]) if number is None else abs(number)
    return _times_size(base[0], factor), _times_size(base[1], factor)


def _largest_of(bits: float) -> float:
    """The largest number with this many bits."""
    return 2.0**bits if bits < 1_000 else _BEYOND


def _times_size(first: float, second: float) -> float:
    return first * second if first and second else 0.0
