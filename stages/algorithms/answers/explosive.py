r"""How much a computer algebra system would have to write out: `9^{9^9}`, `(999999!)!`, `\\sum_{k=1}^{10^9} k`.

Told from the tree of an answer, bottom up and with floats at most: how many bits its numbers may have, and how
many sums with variables stand to be multiplied out. So towers and giant sums cost microseconds, and no worker its life.
"""

from __future__ import annotations

import math
import re

from stages.algorithms.answers.evaluation import constant_value, rational, symbols_of
from stages.algorithms.answers.latex_tree import Node

_MAX_BITS = 20_000
_MAX_FACTORS = 300
_MAX_TERMS = 10_000
"""Of a sum or product with bounds."""
_BEYOND = math.inf
_EXPONENTIAL = frozenset(["exp", "sinh", "cosh", "tanh"])
_RUN = re.compile(r"([^\w\s.-])\1{15}")
_EMPTY_SET = re.compile(r"[\s$]{0,9}(?:∅|\\\{\s{0,9}\\\})[\s$.]{0,9}")
_ESCAPE = re.compile(r"\\[{}()\[\]]|\\(?:left|right) ?\.")


def is_explosive(node: Node) -> bool:
    """True where working the expression out could take numbers or polynomials of a size that no answer has."""
    bits, factors = _size(node)
    return bits > _MAX_BITS or factors > _MAX_FACTORS


def bits_of(node: Node) -> float:
    """Bits that the numbers in an expression may have: so many digits tell what it adds up from what it does not."""
    return _size(node)[0]


def _size(node: Node) -> tuple[float, float]:
    """Bits that the numbers in it may have, and how many sums with variables are multiplied; infinite beyond reach."""
    head = node.head
    if head == "number":
        return float(node.first.numerator.bit_length() + node.first.denominator.bit_length() - 1), 0.0
    if head == "symbol":
        return 2.0, 0.0
    sizes = [_size(part) for part in _parts(node)]
    if not sizes:
        return 2.0, 0.0
    if head == "power":
        return _power_size(sizes[0], node.parts[1], sizes[1])
    if head == "call" and node.first in ("factorial", "binom"):
        return _times(_value(sizes[0][0]), sizes[0][0] + 1), sizes[0][1]
    if head == "call" and node.first in _EXPONENTIAL and not symbols_of(node):
        value = constant_value(node.parts[1])
        return 3 * (_value(sizes[0][0]) if value is None else abs(value)) + sizes[0][0], 0.0
    if head == "call" and node.first.startswith(("sum over", "prod over")):
        terms = _value(max(sizes[0][0], sizes[1][0]))
        if terms > _MAX_TERMS:
            return _BEYOND, 0.0
        bits, factors = _size(_with(node.parts[3], node.first[len("sum over ") :], node.parts[2]))
        return _times(bits, terms), _times(factors, terms)
    if head == "multiply":
        return sum(bits for bits, _ in sizes), sum(factors for _, factors in sizes)
    factors = max(factors for _, factors in sizes)
    if head == "add" and symbols_of(node):
        factors = max(factors, 1.0)
    return max(bits for bits, _ in sizes) + len(sizes), factors


def _with(node: Node, name: str, value: Node) -> Node:
    """The tree with `value`, the last of a series, for its index."""
    if node.head == "symbol":
        return value if node.first == name else node
    return Node(
        node.head, tuple(_with(part, name, value) if isinstance(part, Node) else part for part in node.parts)
    )


def _power_size(base: tuple[float, float], exponent: Node, size: tuple[float, float]) -> tuple[float, float]:
    value = rational(exponent)
    if value is not None:
        factor = float(min(abs(value.numerator), 10**30))
        return _times(base[0], factor), _times(base[1], factor / value.denominator)
    if symbols_of(exponent):
        return base[0] + size[0], base[1] + size[1]
    number = constant_value(exponent)
    factor = _value(size[0]) if number is None else abs(number)
    return _times(base[0], factor), _times(base[1], factor)


def _value(bits: float) -> float:
    """The largest number of so many bits."""
    return 2.0**bits if bits < 1_000 else _BEYOND


def _times(first: float, second: float) -> float:
    return first * second if first and second else 0.0


def _parts(node: Node) -> list[Node]:
    flat = [part for entry in node.parts for part in (entry if isinstance(entry, tuple) else (entry,))]
    return [part for part in flat if isinstance(part, Node)]


def is_debris(text: str) -> bool:
    """True for what no reader takes for mathematics: control characters, no letter or digit, open brackets, a long run
    of one sign. Round and square brackets may close each other, as in [0, 1)."""
    if _EMPTY_SET.fullmatch(text):
        return False
    if not "".join(text.split()).isprintable() or not any(map(str.isalnum, text)) or _RUN.search(text):
        return True
    plain = _ESCAPE.sub("", text)
    return plain.count("{") != plain.count("}") or sum(map(plain.count, "([")) != sum(map(plain.count, ")]"))
