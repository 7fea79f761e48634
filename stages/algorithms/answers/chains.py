r"""Whether the parts of an answer agree with each other: `x = 41 = 42` contradicts itself."""

from __future__ import annotations

from stages.algorithms.answers.comparison import agree
from stages.algorithms.answers.evaluation import symbols_of
from stages.algorithms.answers.latex_tree import Node
from stages.algorithms.answers.shapes import name_of, shape_of
from stages.algorithms.answers.solution_sets import endpoint_value


def holds(node: Node) -> bool:
    r"""False where parts of an equation in a row, `x = 41 = 42`, are not shown to agree; names come first.

    What follows `\approx` agrees when it is no farther from its neighbour than a unit of its last place.
    """
    if node.head in ("list", "set"):
        return all(map(holds, node.parts))
    if node.head != "relation":
        return True
    items, signs = node.parts
    if any(sign not in ("eq", "approx") for sign in signs):
        return True
    named = 0
    while named < len(signs) and name_of(items[named]) is not None:
        named += 1
    if not named and len(items) == 2 and any(map(symbols_of, items)):
        return True  # an equation
    return all(
        _is_near(items[at], items[at + 1])
        if signs[at] == "approx"
        else agree(shape_of(items[at]), shape_of(items[at + 1])) is True
        for at in range(named, len(signs))
    )


def _is_near(node: Node, rounded: Node) -> bool:
    values = endpoint_value(node), endpoint_value(rounded)
    if None in values:
        return False
    places = rounded.parts[1] if rounded.head == "number" else 0
    return abs(values[0] - values[1]) < 10.0 ** -max(places, 0)  # type: ignore[operator]
