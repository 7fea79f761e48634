r"""The tree of an answer: nodes, and the few ways to build them that several readers share."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an answer. `head` says what it is; `parts` are nodes, or for leaves numbers and names."""

    head: str
    parts: tuple

    @property
    def first(self):
        """The first part."""
        return self.parts[0]


def number(value: Fraction | int, places: int = -1) -> Node:
    """An exact number, or with `places` >= 0 a decimal written with that many decimal places."""
    return Node("number", (Fraction(value), places))


def reciprocal(node: Node) -> Node:
    """One over `node`."""
    return Node("power", (node, number(-1)))


def signed(sign: str, node: Node) -> Node:
    """`node` after one of the signs `+`, `-`, `pm`, `mp`."""
    if sign == "+":
        return node
    if sign == "-":
        if node.head == "number":
            return Node("number", (-node.first, node.parts[1]))
        if node.head == "based":
            return Node("based", (f"-{node.first}", node.parts[1]))
        return Node("multiply", (number(-1), node))
    return Node("plusminus", (sign, node))


def is_whole(node: Node) -> bool:
    """True for a number written without a point."""
    return node.head == "number" and node.parts[1] < 0 and node.first.denominator == 1


def mixed(whole: Node, fraction: Fraction) -> Node:
    """The mixed number of a whole number and a proper fraction; the sign stands before both."""
    value = whole.first + fraction if whole.first >= 0 else whole.first - fraction
    return number(value)


def proper_fraction(node: Node) -> Fraction | None:
    """The value of a node that is a fraction of two whole numbers between 0 and 1."""
    if node.head != "multiply" or len(node.parts) != 2 or node.parts[1].head != "power":
        return None
    top, bottom = node.first, node.parts[1].first
    if is_whole(top) and is_whole(bottom) and 0 <= top.first < bottom.first:
        return top.first / bottom.first
    return None
