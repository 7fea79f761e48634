"""Compares two answers of any kind. True is certain; False is certain or rests on values that differ. None means
that the rules here cannot decide. Read `agree` first: it sends each kind of answer to its section below.

Conventions, where readings differ:
- Order counts in brackets, `(1, 2)`. It does not count in a list without brackets or in braces. A list agrees with a
  set.
- One value does not agree with several: a list of candidates is no answer.
- `(1, 2)` is an interval beside an interval or an inequality, and a tuple beside a tuple; it is never a set.
- `x = 5` agrees with 5; `a = 1, b = 2` agrees with `b = 2, a = 1`, with (1, 2), and in this order with the list 1, 2.
- `2:3` agrees with 4:6 and with 2/3.
- An answer whose parts do not agree, `x = 41 = 42`, contradicts itself.

Expressions are compared by their values (`evaluation`). Numbers of which one is a decimal follow the precision rule of
`normalisation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from stages.algorithms.answers.evaluation import constant_value, exact_rational, symbols_of
from stages.algorithms.answers.latex import Node, holds_matrix, is_whole, number, reciprocal, signed
from stages.algorithms.answers.normalisation import UNTIL_TWENTY, WrittenNumber, agree_by_precision
from stages.algorithms.answers.same_function import degree, proportion, rational_value, same_function
from stages.algorithms.answers.shapes import (
    Interval,
    Named,
    Numbers,
    Relation,
    Several,
    as_numbers,
    endpoint_value,
    name_of,
    shape_of,
)
from stages.algorithms.answers.verdicts import STRICT, Leniency

# Unordered lists compare each item with each: 1,600 comparisons at most.
_MAX_ITEMS = 40


def agree(gold, prediction, allowed: Leniency = STRICT) -> bool | None:
    """Whether two shapes (see `shapes.shape_of`) agree."""
    # The order of the cases matters. A name around the whole answer goes first. A record is a list, so it comes before
    # lists. Sets of numbers come before sequences, since `(1, 2)` may be either.
    gold, prediction = _without_names(gold, prediction)
    records = _records(gold), _records(prediction)
    if records[0] or records[1]:
        return _agree_records(gold, prediction, records, allowed)
    if isinstance(gold, Named) or isinstance(prediction, Named):
        return _agree_named(gold, prediction, allowed)
    if isinstance(gold, Numbers) or isinstance(prediction, Numbers):
        return _agree_numbers(gold, prediction, allowed)
    if isinstance(gold, Several) or isinstance(prediction, Several):
        return _agree_several(gold, prediction, allowed)
    if isinstance(gold, Relation) and isinstance(prediction, Relation):
        return agree_relations(gold, prediction)
    # An unsolved equation beside a value. `leaves_unsolved` then gives the reason.
    if isinstance(gold, Relation) or isinstance(prediction, Relation):
        return False
    return agree_values(gold, prediction, allowed)


# ---------------------------------------------------------------------------------------------- names
def _without_names(gold, prediction):
    """Drops `x =` before a whole answer where both sides have one name, or one side has none and is no relation."""
    if isinstance(gold, Named) and isinstance(prediction, Named):
        if gold.name == prediction.name:
            return _without_names(gold.answer, prediction.answer)
    elif isinstance(gold, Named) and not isinstance(prediction, Relation):
        return _without_names(gold.answer, prediction)
    elif isinstance(prediction, Named) and not isinstance(gold, Relation):
        return _without_names(gold, prediction.answer)
    return gold, prediction


def _agree_named(gold, prediction, allowed) -> bool | None:
    """Compares answers where at least one side still has a name: two different ones, or one beside a relation.

    Two names are left open where they may have one value: `y = x+1` is `x = y-1`.
    """
    if isinstance(gold, Named) and isinstance(prediction, Named):
        # `f(x) = 2x+1` is `y = 2x+1`.
        names = sorted((gold.name, prediction.name), key=len)
        if names[0] == "y" and names[1] in ("unknown f", "unknown g", "unknown h"):
            return agree(gold.answer, prediction.answer, allowed)
        # `x = 5` beside `y = 6` is wrong; `x = 5` beside `y = 5` may be a slip in the name, and is left open.
        are_constants = all(
            isinstance(side.answer, Node) and not symbols_of(side.answer) for side in (gold, prediction)
        )
        return False if are_constants and agree(gold.answer, prediction.answer, allowed) is False else None
    relation, named = (gold, prediction) if isinstance(gold, Relation) else (prediction, gold)
    # Names that are not variables, such as f(x), (x, y) or a quotient of segments, cannot be put into an equation.
    if not isinstance(named.answer, Node) or named.name.startswith(("unknown", "sequence", "multiply", "ratio", "|")):
        return None
    return agree_relations(relation, Relation((Node("symbol", (named.name,)), named.answer), ("eq",)))


def _records(shape) -> dict | None:
    """Returns values by name, for a list in which each value has a different name."""
    if not isinstance(shape, Several) or not all(isinstance(item, Named) for item in shape.items):
        return None
    by_name = {item.name: item.answer for item in shape.items}
    # `x = 1, x = 2` names one unknown twice: two solutions, not a record.
    return by_name if len(by_name) == len(shape.items) > 1 else None


def _agree_records(gold, prediction, records, allowed) -> bool | None:
    if records[0] and records[1]:
        if records[0].keys() == records[1].keys():
            return all_agree(agree(value, records[1][name], allowed) for name, value in records[0].items())
        return None
    record, other = (records[0], prediction) if records[0] else (records[1], gold)
    values = list(record.values())
    if not isinstance(other, Several):
        return False
    # A repeated name on the other side lists solutions of one unknown, and the record has several.
    names = [item.name for item in other.items if isinstance(item, Named)]
    if len(set(names)) < len(names) and len({name.partition("_")[0] for name in record}) > 1:
        return False
    if len({name.partition("_")[0] for name in record}) == 1 and other.kind != "sequence":
        return _agree_unordered(values, other.items, allowed)
    if len(values) != len(other.items):
        return False
    items = [item.answer if isinstance(item, Named) else item for item in other.items]
    return all_agree(agree(value, item, allowed) for value, item in zip(values, items, strict=True))


# ---------------------------------------------------------------------------------------------- several values
def _agree_several(gold, prediction, allowed) -> bool | None:
    gold, prediction = _unwrap(gold), _unwrap(prediction)
    if not isinstance(gold, Several) or not isinstance(prediction, Several):
        if isinstance(gold, Several) or isinstance(prediction, Several):
            # One value is never several; matrices and other answers than expressions may be written differently.
            one = prediction if isinstance(gold, Several) else gold
            return False if isinstance(one, Relation) or one.head in EXPRESSIONS else None
        return agree(gold, prediction, allowed)
    if max(len(gold.items), len(prediction.items)) > _MAX_ITEMS:
        return None
    kinds = {gold.kind, prediction.kind}
    is_same_length = len(gold.items) == len(prediction.items)
    # With two items `(1, 2]` and `[1, 2]` may be intervals whose ends are not constants; brackets around three items
    # say nothing.
    is_other_interval = len(gold.items) == 2 and gold.brackets != prediction.brackets
    if kinds == {"sequence"} and (not is_same_length or is_other_interval):
        return False
    # A list and a set agree: braces are often left out.
    if "sequence" not in kinds:
        return _agree_unordered(_plain(gold.items), _plain(prediction.items), allowed)
    if not allowed.ordered and "set" not in kinds:
        return _agree_unordered(gold.items, prediction.items, allowed)
    # A tuple is not a set. A bare list beside a tuple may lack its brackets: then order counts.
    if "set" in kinds or not is_same_length:
        return False
    return all_agree(agree(one, other, allowed) for one, other in zip(gold.items, prediction.items, strict=True))


def _unwrap(shape):
    """Returns the single item of a list or set of one."""
    is_one = isinstance(shape, Several) and shape.kind != "sequence" and len(shape.items) == 1
    if not is_one:
        return shape
    return shape.items[0].answer if isinstance(shape.items[0], Named) else shape.items[0]


def _plain(items: Sequence) -> list:
    """Drops the names where all named items share one, or only the first has one: `x = 1, x = 2`; `n = 1, 2, 3`."""
    names = {item.name for item in items if isinstance(item, Named)}
    if len(names) > 1:
        return list(items)
    return [item.answer if isinstance(item, Named) else item for item in items]


def _agree_unordered(gold: Sequence, prediction: Sequence, allowed) -> bool | None:
    """True where each item has a partner on the other side; repetitions do not count."""
    # Checked in both directions; so {1, 1, 2} agrees with {1, 2}.
    table = [[agree(one, other, allowed) for other in prediction] for one in gold]
    partners = [_any(row) for row in table] + [_any(column) for column in zip(*table, strict=True)]
    return all_agree(partners) if gold and prediction else not gold and not prediction


def _any(decisions: Sequence[bool | None]) -> bool | None:
    if True in decisions:
        return True
    return None if None in decisions else False


# ---------------------------------------------------------------------------------------------- sets of numbers
def _agree_numbers(gold, prediction, allowed) -> bool | None:
    sides = as_numbers(gold), as_numbers(prediction)
    if sides[0] is None or sides[1] is None:
        other = prediction if sides[1] is None else gold
        # Two items in brackets may be an interval with letters for ends: no opinion.
        is_else = isinstance(other, Several) and len(other.items) != 2
        return False if is_else or (isinstance(other, Node) and other.head in (*EXPRESSIONS, "number_set")) else None
    if len(sides[0].pieces) != len(sides[1].pieces):
        return False
    pairs = zip(sides[0].pieces, sides[1].pieces, strict=True)
    return all_agree(_agree_intervals(one, other, allowed) for one, other in pairs)


def _agree_intervals(gold: Interval, prediction: Interval, allowed) -> bool | None:
    if (gold.is_low_closed, gold.is_high_closed) != (prediction.is_low_closed, prediction.is_high_closed):
        return False
    ends = ((gold.low, prediction.low), (gold.high, prediction.high))
    return all_agree(agree_values(one, other, allowed) for one, other in ends)


# --------------------------------------------------------------------------------------------------- relations
def agree_relations(gold: Relation, prediction: Relation) -> bool | None:
    """Equations agree when one is a multiple of the other; so do inequalities that point the same way."""
    # 3 > x becomes x < 3, so that signs can be compared.
    sides = [_rising(relation) for relation in (gold, prediction)]
    if sides[0].signs == sides[1].signs and len(sides[0].items) == len(sides[1].items):
        pairs = zip(sides[0].items, sides[1].items, strict=True)
        if all_agree(agree_values(one, other) for one, other in pairs):
            return True
    # A chain `a < b < c` has no difference of sides.
    if len(gold.items) != 2 or len(prediction.items) != 2:
        return None
    # y = 2x+1 is y - 2x - 1 = 0, and 2x - y + 1 = 0 is -1 times that.
    differences = [Node("add", (relation.items[0], signed("-", relation.items[1]))) for relation in sides]
    degrees = list(map(degree, differences))
    # With a denominator or a function in it, an equation may have the same solutions without being a multiple.
    is_certain = None not in degrees
    if sides[0].signs != sides[1].signs:
        return False if is_certain else None
    factor = proportion(*differences)
    if factor:
        # An inequality may be multiplied by a positive number only.
        return True if sides[0].signs in (("eq",), ("ne",)) else factor > 0
    # x^2 = 1 and x^4 = 1 have the same real solutions: other degrees prove nothing.
    return False if factor == 0 and is_certain and degrees[0] == degrees[1] else None


def _rising(relation: Relation) -> Relation:
    """Returns the relation with `<` for every `>`."""
    if relation.signs[0] not in ("gt", "ge"):
        return relation
    turned = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
    signs = tuple(turned.get(sign, sign) for sign in reversed(relation.signs))
    return Relation(relation.items[::-1], signs)


# ----------------------------------------------------------------------------------------------- single values
# `204_{\text{five}}` is 204_5; ten is the base of a numeral without one.
_BASES = {"ten": "", "10": ""} | {name: value for value, name in enumerate(UNTIL_TWENTY) if value != 10}
EXPRESSIONS = frozenset(["number", "symbol", "pi", "add", "multiply", "power", "call", "percent", "degree", "infinity"])


def all_agree(decisions: Iterable[bool | None]) -> bool | None:
    """Returns False where one is False, else None where one is None."""
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
    # Equal texts of a call do not prove equality: the f of f(x) is unknown, so there is no opinion.
    if gold == prediction and "call" not in heads:
        return True
    if holds_matrix(gold) or holds_matrix(prediction):
        return _agree_matrices(_scaled(gold), _scaled(prediction), allowed)
    if "ratio" in heads:
        return _agree_ratios(gold, prediction, allowed)
    if heads == ("text", "text"):
        return _agree_texts(gold.first, prediction.first, allowed)
    # A word beside an expression: `ab` may be a product (`b \cdot a`).
    if "text" in heads:
        gold, prediction = _as_product(gold), _as_product(prediction)
        heads = gold.head, prediction.head
    if "based" in heads:
        return _agree_numerals(gold, prediction)
    if not (heads[0] in EXPRESSIONS and heads[1] in EXPRESSIONS):
        return False if heads == ("number_set", "number_set") else None
    # Before values: the arithmetic here has no infinity.
    infinities = [endpoint_value(node) if _is_infinite(node) else None for node in (gold, prediction)]
    if infinities != [None, None]:
        return infinities[0] == infinities[1]
    # One side has a sign that the other side omits: 12.5\% agrees with 12.5, 40^\circ with 40.
    if ("percent" in heads or "degree" in heads) and heads[0] != heads[1] and not _is_share(gold, prediction):
        faces = [node.first if node.head in ("percent", "degree") else node for node in (gold, prediction)]
        if same_value(*faces, allowed):
            return True
    is_same = same_value(gold, prediction, allowed)
    # \log is the natural or the decimal logarithm, depending on the author; either may be meant, but the same on both
    # sides.
    if is_same or (decimal := (_with_decimal_logs(gold), _with_decimal_logs(prediction))) == (gold, prediction):
        return is_same
    return same_value(*decimal, allowed) or is_same


def _is_share(gold: Node, prediction: Node) -> bool:
    """True for a percentage beside a number below 1: 0.5 is not half a percent, but 12.5 may be 12.5%."""
    bare = prediction if gold.head == "percent" else gold
    value = endpoint_value(bare) if "percent" in (gold.head, prediction.head) else None
    return value is not None and abs(value) < 1


def _with_decimal_logs(node: Node) -> Node:
    node = node.map_children(_with_decimal_logs)
    return Node("call", ("lg", *node.parts[1:])) if node.head == "call" and node.first == "log" else node


def _agree_texts(gold: str, prediction: str, allowed: Leniency) -> bool:
    """Compares words in either case, names of one to three letters exactly: a segment AB is not a product ab."""
    if not allowed.ordered:
        gold, prediction = "".join(sorted(gold)), "".join(sorted(prediction))
    # `East` and `east`; AB and ab are a segment and a product.
    return gold == prediction or (len(gold) > 3 and gold.lower() == prediction.lower())


def _as_product(node: Node) -> Node:
    """True for separate small letters beside an expression: there `ab` can only be a product."""
    if node.head != "text" or not (1 < len(node.first) <= 3 and node.first.isascii() and node.first.islower()):
        return node
    return Node("multiply", tuple(Node("symbol", (letter,)) for letter in node.first))


def _agree_numerals(gold: Node, prediction: Node) -> bool | None:
    """Numerals in a base agree with the same digits in the same base; base ten may be omitted."""
    if not all(node.head == "based" or is_whole(node) for node in (gold, prediction)):
        return False if gold.head in EXPRESSIONS or prediction.head in EXPRESSIONS else None
    sides = [node.parts if node.head == "based" else (str(node.first), "") for node in (gold, prediction)]
    digits, bases = zip(*sides, strict=True)
    bases = [str(_BASES.get(base, base)) for base in (base.strip("() ") for base in bases)]
    # Digits, not values: 13_4 and 7 are one number, but the problem asks for a numeral.
    return digits[0].lstrip("0") == digits[1].lstrip("0") and bases[0] == bases[1]


def _is_infinite(node: Node) -> bool:
    return node.head == "infinity" or (node.head == "multiply" and node.parts[-1].head == "infinity")


def _scaled(node: Node) -> Node | None:
    r"""Returns the matrix that a matrix beside numbers is, such as `\frac15 A`; other trees without a matrix unchanged.

    None for sums and products of matrices: math-verify works them out, and `worked_out` calls them work that is left.
    """
    if node.head == "matrix" or not holds_matrix(node):
        return node
    factors = [part for part in node.children if not holds_matrix(part)]
    matrices = [_scaled(part) for part in node.children if holds_matrix(part)]
    if node.head != "multiply" or len(matrices) > 1 or matrices[0] is None:
        return None
    rows = matrices[0].parts
    return Node("matrix", tuple(tuple(Node("multiply", (*factors, entry)) for entry in row) for row in rows))


def _agree_matrices(gold: Node | None, prediction: Node | None, allowed) -> bool | None:
    if gold is None or prediction is None:
        return None
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
    # 2:3:5 is not a quotient, so it cannot agree with 2:3.
    if len(sides[0]) != len(sides[1]):
        return False if gold.head == prediction.head else None
    # 2:3 agrees with 4:6: each part is divided by the last one.
    quotients = [[Node("multiply", (part, reciprocal(side[-1]))) for part in side[:-1]] for side in sides]
    return all_agree(same_value(one, other, allowed) for one, other in zip(*quotients, strict=True))


# ------------------------------------------------------------------------------------------------- expressions
_SAME = 1e-9
"""Imaginary part of a float, as a share of its size, below which it counts as rounding."""


def same_value(gold: Node, prediction: Node, allowed: Leniency = STRICT) -> bool | None:
    """True and False rest on exact values or on values at many points; None where it is open."""
    if symbols_of(gold) | symbols_of(prediction):
        return same_function(gold, prediction)
    values = exact_rational(gold), exact_rational(prediction)
    is_same = same_function(gold, prediction) if None in values else values[0] == values[1]
    if is_same or (allowed.tolerance is None and not any(map(_is_decimal, (gold, prediction)))):
        return is_same
    sides = [_notated(node) for node in (gold, prediction)]
    return True if None not in sides and agree_by_precision(*sides, allowed) else is_same


def _is_decimal(node: Node) -> bool:
    number = node.first if node.head == "percent" else node
    return number.head == "number" and number.parts[1] >= 0


def _notated(node: Node) -> WrittenNumber | None:
    """Returns a real constant with its notation; None for others."""
    if node.head == "percent" and _is_decimal(node):
        # 33.33% has the decimals of 0.3333.
        value, places = node.first.parts
        return WrittenNumber(value / 100, True, places=places + 2)
    rational = rational_value(node)
    if rational is not None:
        return WrittenNumber(rational, _is_decimal(node), places=max(node.parts[1], 0) if node.head == "number" else 0)
    value = constant_value(node)
    # Above 1e15 a float holds no decimals, so no rounding can be seen.
    if value is None or abs(value.imag) > _SAME * abs(value) or abs(value) > 1e15:
        return None
    return WrittenNumber(Fraction(value.real))


# ----------------------------------------------------------------------------------------- parts of one answer
def holds(node: Node) -> bool:
    r"""Returns False where parts of a chain of equations, `x = 41 = 42`, are not shown to agree; names come first.

    A value after `\approx` agrees when it differs from its neighbour by at most one unit of its last place.
    """
    if node.head in ("list", "set"):
        return all(map(holds, node.parts))
    if node.head != "relation":
        return True
    items, signs = node.parts
    if any(sign not in ("eq", "approx") for sign in signs):
        return True
    # `m + n = x = 5`: names at the head of a chain get their value from the parts after them.
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
