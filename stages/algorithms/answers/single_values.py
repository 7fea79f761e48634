r"""Whether two single answers agree: expressions, words and names, numerals in a base, matrices, ratios.

As in `comparison.py`, None means that the rules cannot tell. `2:3` agrees with 4:6 and with 2/3.
"""

from __future__ import annotations

from collections.abc import Iterable

from stages.algorithms.answers.latex_tree import Node, is_whole, number, reciprocal
from stages.algorithms.answers.leniency import STRICT, Leniency
from stages.algorithms.answers.matrices import computed, holds_matrix
from stages.algorithms.answers.numbers import UNTIL_TWENTY
from stages.algorithms.answers.solution_sets import endpoint_value
from stages.algorithms.answers.values import same_value

_BASES = {"ten": "", "10": ""} | {name: value for value, name in enumerate(UNTIL_TWENTY) if value != 10}
EXPRESSIONS = frozenset(
    ["number", "symbol", "pi", "add", "multiply", "power", "call", "percent", "degree", "infinity"]
)


def all_agree(decisions: Iterable[bool | None]) -> bool | None:
    """False where one is False, else None where one is None."""
    result: bool | None = True
    for decision in decisions:
        if decision is False:
            return False
        if decision is None:
            result = None
    return result


def agree_values(gold: Node, prediction: Node, allowed: Leniency = STRICT) -> bool | None:
    """Whether two single answers agree: expressions, words, numerals, matrices, ratios."""
    heads = gold.head, prediction.head
    if gold == prediction and "call" not in heads:
        return True
    if holds_matrix(gold) or holds_matrix(prediction):
        return _agree_matrices(computed(gold), computed(prediction), allowed)
    if "ratio" in heads:
        return _agree_ratios(gold, prediction, allowed)
    if heads == ("text", "text"):
        return _agree_texts(gold.first, prediction.first, allowed)
    if "text" in heads:
        gold, prediction = _as_product(gold), _as_product(prediction)
        heads = gold.head, prediction.head
    if "based" in heads:
        return _agree_numerals(gold, prediction)
    if not (heads[0] in EXPRESSIONS and heads[1] in EXPRESSIONS):
        return False if heads == ("number_set", "number_set") else None
    infinities = [endpoint_value(node) if _is_infinite(node) else None for node in (gold, prediction)]
    if infinities != [None, None]:
        return infinities[0] == infinities[1]
    if ("percent" in heads or "degree" in heads) and heads[0] != heads[1] and not _is_share(gold, prediction):
        faces = [node.first if node.head in ("percent", "degree") else node for node in (gold, prediction)]
        if same_value(*faces, allowed):
            return True
    is_same = same_value(gold, prediction, allowed)
    if not is_same and (_calls_log(gold) or _calls_log(prediction)):
        return same_value(_with_decimal_logs(gold), _with_decimal_logs(prediction), allowed) or is_same
    return is_same


def _is_share(gold: Node, prediction: Node) -> bool:
    """True for a percentage beside a number below 1: a half is no half percent, but what percent may be 12.5."""
    bare = prediction if gold.head == "percent" else gold
    value = endpoint_value(bare) if "percent" in (gold.head, prediction.head) else None
    return value is not None and abs(value) < 1


def _calls_log(node: Node) -> bool:
    """True where a logarithm without its base is in it, which may be the natural or the decimal one."""
    if node.head == "call" and node.first == "log":
        return True
    return any(_calls_log(part) for part in node.parts if isinstance(part, Node))


def _with_decimal_logs(node: Node) -> Node:
    parts = tuple(_with_decimal_logs(part) if isinstance(part, Node) else part for part in node.parts)
    return (
        Node("call", ("lg", *parts[1:]))
        if node.head == "call" and node.first == "log"
        else Node(node.head, parts)
    )


def _agree_texts(gold: str, prediction: str, allowed: Leniency) -> bool:
    """Words in either case; names of one to three letters as they are: a segment AB is no product ab."""
    if not allowed.ordered:
        gold, prediction = "".join(sorted(gold)), "".join(sorted(prediction))
    return gold == prediction or (len(gold) > 3 and gold.lower() == prediction.lower())


def _as_product(node: Node) -> Node:
    """Small letters that stand alone, beside an expression: there `ab` can only be a product."""
    if node.head != "text" or not (
        1 < len(node.first) <= 3 and node.first.isascii() and node.first.islower()
    ):
        return node
    return Node("multiply", tuple(Node("symbol", (letter,)) for letter in node.first))


def _agree_numerals(gold: Node, prediction: Node) -> bool | None:
    """Numerals in a base agree with the same digits in the same base; ten need not be named."""
    if not all(node.head == "based" or is_whole(node) for node in (gold, prediction)):
        return False if gold.head in EXPRESSIONS or prediction.head in EXPRESSIONS else None
    sides = [node.parts if node.head == "based" else (str(node.first), "") for node in (gold, prediction)]
    digits, bases = zip(*sides, strict=True)
    bases = [str(_BASES.get(base, base)) for base in (base.strip("() ") for base in bases)]
    return digits[0].lstrip("0") == digits[1].lstrip("0") and bases[0] == bases[1]


def _is_infinite(node: Node) -> bool:
    return node.head == "infinity" or (node.head == "multiply" and node.parts[-1].head == "infinity")


def _agree_matrices(gold: Node, prediction: Node, allowed) -> bool | None:
    if gold.head != prediction.head:
        return False if gold.head in EXPRESSIONS or prediction.head in EXPRESSIONS else None
    if len(gold.parts) != len(prediction.parts) or len(gold.first) != len(prediction.first):
        return False
    pairs = (
        (one, other)
        for rows in zip(gold.parts, prediction.parts, strict=True)
        for one, other in zip(*rows, strict=True)
    )
    return all_agree(agree_values(one, other, allowed) for one, other in pairs)


def _agree_ratios(gold: Node, prediction: Node, allowed) -> bool | None:
    sides = [node.parts if node.head == "ratio" else (node, number(1)) for node in (gold, prediction)]
    if len(sides[0]) != len(sides[1]):
        return False if gold.head == prediction.head else None
    quotients = [[Node("multiply", (part, reciprocal(side[-1]))) for part in side[:-1]] for side in sides]
    return all_agree(same_value(one, other, allowed) for one, other in zip(*quotients, strict=True))
