r"""Evaluates expressions at points, decides whether two are the same function, and estimates how large numbers may
grow.

A number without roots and functions has an exact value. Other values are floats, which separate different expressions,
or have 50 digits more than the numbers in the texts, which settle doubts. Variables and all intermediate values are
real, unless the imaginary unit occurs in one of the two expressions: the square root of a negative number has no value.
Odd roots of negative numbers are real, as in school.

Functions are compared at points of both signs, small and large. Those with roots, absolute values, logarithms or the
like are compared in every orthant, at whole numbers, and on both sides of each zero or turning point of an expression
under such a sign or a fraction bar. The values must be equal at all these points. Where one expression is undefined,
the other must be undefined too. Single points where one of them is undefined do not count: the points hit them only by
chance. The points are derived from the texts. So equal questions get equal answers, and no text can be tuned to the
points. Two different functions without kinks agree at random points with probability 0 (Schwartz 1980).

The third part estimates how much a computer algebra system would have to write out (`9^{9^9}`, `(999999!)!`,
`\sum_{k=1}^{10^9} k`). It needs only the tree and floats: towers and giant sums cost microseconds and kill no worker.
"""

from __future__ import annotations

import cmath
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, product
from typing import Any

from stages.algorithms.answers.latex import Node, number, substituted

# 5,000! has 54,233 bits: factorials and other exact values are limited to about the same size.
_MOST_EXACT_BITS = 50_000
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
        if bits > _MOST_EXACT_BITS or work > _MOST_BITS_OF_WORK:
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
        if exponent.denominator > 1 or abs(exponent) * bits > _MOST_EXACT_BITS:
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
    if value is None or value is UNDEFINED or (_is_complex(value) and value.imag):
        return None
    value = value.real if _is_complex(value) else value
    mantissa, power = value.man_exp
    if abs(power) > _MOST_EXACT_BITS:
        return None
    exact_value = Fraction(int(mantissa)) * Fraction(2) ** power * (-1 if value < 0 else 1)
    # A third of the digits for the denominator: an irrational number is near such a fraction with probability 1e-10.
    nearest = exact_value.limit_denominator(10 ** ((digits - _LOST_DIGITS) // 3))
    return nearest if abs(exact_value - nearest) * 10 ** (digits - _LOST_DIGITS) <= max(abs(nearest), 1) else None


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
    if _is_complex(base) or _is_complex(exponent) or base >= 0:
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


def _is_complex(value: Any) -> bool:
    return isinstance(value, complex) or hasattr(value, "_mpc_")


def _in_bounds(value: Any, arithmetic: Arithmetic) -> Any:
    """Returns the value; OverflowError where it is large enough to slow down mpmath, ArithmeticError if not real."""
    if arithmetic.is_real and _is_complex(value):
        raise ArithmeticError("not real")
    if arithmetic.library not in (math, cmath) and arithmetic.library.mag(value) > _MOST_EXACT_BITS:
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
        upper, *lower = (value.real if _is_complex(value) and not value.imag else value for value in values)
        gamma = getattr(library, "gamma", math.gamma)  # cmath has none
        if not lower:
            return gamma(upper + 1)
        return gamma(upper + 1) / (gamma(lower[0] + 1) * gamma(upper - lower[0] + 1))
    if name in ("floor", "ceil") and not _is_complex(values[0]):
        # cmath has no floor; the value is real here.
        return getattr(math if library is cmath else library, name)(values[0])
    if name in ("mod", "max", "min") and not any(map(_is_complex, values)):
        return values[0] % values[1] if name == "mod" else {"max": max, "min": min}[name](values)
    # gcd, lcm, series and unknown functions: `value_at` returns None for it, no opinion.
    raise KeyError(name)


# ------------------------------------------------------------------------------------------- the same function
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
    return sum(map(bits_of, nodes)) > (_MOST_BITS if any(map(_holds_functions, nodes)) else _MAX_BITS)


def _holds_functions(node: Node) -> bool:
    if node.head == "power":
        exponent = rational(node.parts[1])
        return exponent is None or exponent.denominator > 1 or _holds_functions(node.first)
    return node.head == "call" or any(map(_holds_functions, node.children))


def _digits_for(*nodes: Node) -> int:
    return _SPARE_DIGITS + math.ceil(sum(map(bits_of, nodes)) * math.log10(2))


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


# ------------------------------------------------------------------------------------------------------- sizes
# 2^{99999999} counts 200 million bits. An integer of 6,000 digits is still computed.
_MAX_BITS = 20_000
# (x+1)^{60} counts 60; (((x+1)^{60}+y)^{60}+z)^{60} counts 216,000.
_MAX_FACTORS = 300
_MAX_TERMS = 10_000
"""Of a sum or product with bounds."""
_BEYOND = math.inf
_EXPONENTIAL = frozenset(["exp", "sinh", "cosh", "tanh"])


def is_explosive(node: Node) -> bool:
    """True where computing the expression could need numbers or polynomials larger than in any answer."""
    bits, factors = _size(node)
    return bits > _MAX_BITS or factors > _MAX_FACTORS


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
