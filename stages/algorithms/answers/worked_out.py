r"""Whether an answer leaves work to the reader: `2+2`, `3 \cdot 4`, an integral. Restating a problem is not solving it.

The one rule: beside a number, numbers have been added and multiplied. Fractions, powers, roots, logarithms, factorials
and binomials are notation for a number, and so is scientific notation; integrals, limits, sums, remainders are not,
whatever they stand beside. An equation or an inequality that holds its unknown anywhere but alone is to be solved.
"""

from __future__ import annotations

from collections.abc import Iterator

from stages.algorithms.answers.evaluation import symbols_of
from stages.algorithms.answers.latex_tree import Node, is_whole, number
from stages.algorithms.answers.shapes import Named, Numbers, Relation, Several, name_of

_OPERATIONS = frozenset(["floor", "ceil", "mod", "max", "min", "gcd", "lcm"])
_NOTATIONS = frozenset(["factorial", "binom"])


def leaves_work(prediction, gold) -> bool:
    """True for a shape (see `shapes.shape_of`) with operations, or beside a number with arithmetic, still to be done.

    A gold answer that leaves work itself asks for none.
    """
    is_number = not any(map(symbols_of, _nodes(gold)))
    return any(_leaves_work(node, is_number) for node in _nodes(prediction)) and not any(
        _leaves_work(node, is_number) for node in _nodes(gold)
    )


def leaves_unsolved(prediction: Node, gold: Node) -> bool:
    """True for a relation such as `2x = 10` whose unknown stands alone nowhere, beside a gold answer without unknowns.

    A gold answer `y = 2x + 1` holds one: that a line may be written in many ways is for `agree_relations`.
    """
    return _is_unsolved(prediction) and not _is_unsolved(gold) and not _unknowns(gold)


def _is_unsolved(node: Node) -> bool:
    return node.head == "relation" and bool(_unknowns(node)) and not any(map(_stands_alone, node.first))


def _stands_alone(side: Node) -> bool:
    """True for `x` and `-x`: whoever wrote `-x > -1` has solved it but for the sign."""
    if side.head == "multiply" and len(side.parts) == 2 and side.first == number(-1):
        side = side.parts[1]
    return name_of(side) is not None


def _unknowns(node: Node) -> set[str]:
    """Variables of a tree, without the name that a relation gives its values; `x = y` gives x one that holds y."""
    if node.head != "relation":
        return symbols_of(node).union(*map(_unknowns, _parts(node)))
    named = next((item for item in node.first if name_of(item) is not None), None)
    return set().union(*(symbols_of(item) for item in node.first if item is not named))


def _nodes(shape) -> Iterator[Node]:
    if isinstance(shape, Named):
        yield from _nodes(shape.answer)
    elif isinstance(shape, Several | Relation):
        for item in shape.items:
            yield from _nodes(item)
    elif isinstance(shape, Numbers):
        for piece in shape.pieces:
            yield from (piece.low, piece.high)
    else:
        yield shape


def _leaves_work(node: Node, is_number: bool) -> bool:
    if node.head == "operator" or (node.head == "call" and _is_operation(node)):
        return True
    if is_number and node.head == "add" and sum(map(_is_rational, node.parts)) > 1:
        return True
    if is_number and node.head == "multiply" and not _is_scientific(node):
        factors = [part for part in node.parts if part != number(-1) and not _is_reciprocal(part)]
        if sum(map(_is_rational, factors)) > 1:
            return True
    return any(_leaves_work(part, is_number) for part in _parts(node))


def _parts(node: Node) -> list[Node]:
    flat = [part for entry in node.parts for part in (entry if isinstance(entry, tuple) else (entry,))]
    return [part for part in flat if isinstance(part, Node)]


def _is_operation(node: Node) -> bool:
    name = node.first
    if name in _OPERATIONS or name == "abs":
        return all(map(_is_rational, node.parts[1:]))
    return name.startswith(("sum over", "prod over"))


def _is_rational(node: Node) -> bool:
    """True for a number written with digits, fractions, whole powers, factorials and binomials alone."""
    if node.head == "number":
        return True
    if node.head in ("add", "multiply", "percent", "degree"):
        return all(map(_is_rational, node.parts))
    if node.head == "power":
        return _is_rational(node.first) and is_whole(node.parts[1])
    return node.head == "call" and node.first in _NOTATIONS and all(map(_is_rational, node.parts[1:]))


def _is_reciprocal(node: Node) -> bool:
    return node.head == "power" and node.parts[1] == number(-1)


def _is_scientific(node: Node) -> bool:
    """True for 3 times a power of ten."""
    if len(node.parts) != 2 or node.first.head != "number" or node.parts[1].head != "power":
        return False
    return node.parts[1].first == number(10)
