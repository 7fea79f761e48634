r"""Whether two answers of any kind agree. True and False are certain or, for False, rest on values that differ; None
means that the rules here cannot tell.

Conventions, where readings differ:
- Order counts in brackets, `(1, 2)`; it does not in a list without them, nor in braces. A list agrees with a set.
- One value does not agree with several: who enumerates candidates has not answered.
- `(1, 2)` is an interval beside an interval or an inequality, and a tuple beside a tuple; it is no set.
- `x = 5` agrees with 5; `a = 1, b = 2` agrees with `b = 2, a = 1`, with (1, 2), and in this order with the list 1, 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from stages.algorithms.answers.evaluation import symbols_of
from stages.algorithms.answers.latex_tree import Node
from stages.algorithms.answers.leniency import STRICT, Leniency
from stages.algorithms.answers.relations import agree_relations
from stages.algorithms.answers.shapes import Named, Numbers, Relation, Several, as_numbers
from stages.algorithms.answers.single_values import EXPRESSIONS, agree_values, all_agree
from stages.algorithms.answers.solution_sets import Interval, endpoint_value
from stages.algorithms.answers.values import same_value

_MAX_ITEMS = 40


def agree(gold, prediction, allowed: Leniency = STRICT) -> bool | None:
    """Whether two shapes (see `shapes.shape_of`) agree."""
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
    if isinstance(gold, Relation) or isinstance(prediction, Relation):
        return False
    return agree_values(gold, prediction, allowed)


# ---------------------------------------------------------------------------------------------- names
def _without_names(gold, prediction):
    """Without `x =` before a whole answer: where both name the same, or one names none and is no relation."""
    if isinstance(gold, Named) and isinstance(prediction, Named):
        if gold.name == prediction.name:
            return _without_names(gold.answer, prediction.answer)
    elif isinstance(gold, Named) and not isinstance(prediction, Relation):
        return _without_names(gold.answer, prediction)
    elif isinstance(prediction, Named) and not isinstance(gold, Relation):
        return _without_names(gold, prediction.answer)
    return gold, prediction


def _agree_named(gold, prediction, allowed) -> bool | None:
    """At least one side still has a name: two different ones, or a relation beside it.

    Two names are left open where they may have one value: `y = x+1` is `x = y-1`.
    """
    if isinstance(gold, Named) and isinstance(prediction, Named):
        are_constants = all(
            isinstance(side.answer, Node) and not symbols_of(side.answer) for side in (gold, prediction)
        )
        return False if are_constants and agree(gold.answer, prediction.answer, allowed) is False else None
    relation, named = (gold, prediction) if isinstance(gold, Relation) else (prediction, gold)
    if not isinstance(named.answer, Node) or named.name.startswith(
        ("unknown", "sequence", "multiply", "ratio", "|")
    ):
        return None
    return agree_relations(relation, Relation((Node("symbol", (named.name,)), named.answer), ("eq",)))


def _records(shape) -> dict | None:
    """Values by name, for a list in which each has a name of its own."""
    if not isinstance(shape, Several) or not all(isinstance(item, Named) for item in shape.items):
        return None
    by_name = {item.name: item.answer for item in shape.items}
    return by_name if len(by_name) == len(shape.items) > 1 else None


def _agree_records(gold, prediction, records, allowed) -> bool | None:
    if records[0] and records[1]:
        if records[0].keys() == records[1].keys():
            return all_agree(agree(value, records[1][name], allowed) for name, value in records[0].items())
        is_one_unknown = all(len({name.partition("_")[0] for name in record}) == 1 for record in records)
        if is_one_unknown:
            return _agree_unordered(list(records[0].values()), list(records[1].values()), allowed)
        return None
    record, other = (records[0], prediction) if records[0] else (records[1], gold)
    values = list(record.values())
    if not isinstance(other, Several):
        return False
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
            return _agree_one_and_several(gold, prediction)
        return agree(gold, prediction, allowed)
    if max(len(gold.items), len(prediction.items)) > _MAX_ITEMS:
        return None
    kinds = {gold.kind, prediction.kind}
    if kinds == {"sequence"}:
        return _agree_sequences(gold, prediction, allowed)
    if "sequence" not in kinds:
        return _agree_unordered(_plain(gold.items), _plain(prediction.items), allowed)
    if not allowed.ordered and "set" not in kinds:
        return _agree_unordered(gold.items, prediction.items, allowed)
    if "set" in kinds or len(gold.items) != len(prediction.items):
        return False
    return _agree_ordered(gold.items, prediction.items, allowed)


def _unwrap(shape):
    """A list or set of one is that one."""
    is_one = isinstance(shape, Several) and shape.kind != "sequence" and len(shape.items) == 1
    if not is_one:
        return shape
    return shape.items[0].answer if isinstance(shape.items[0], Named) else shape.items[0]


def _agree_one_and_several(gold, prediction) -> bool | None:
    """Matrices and what is no plain expression may be written otherwise; one value is never several."""
    one = prediction if isinstance(gold, Several) else gold
    return False if isinstance(one, Relation) or one.head in EXPRESSIONS else None


def _plain(items: Sequence) -> list:
    """Without names where all that have one share it, or only the first has one: `x = 1, x = 2`; `n = 1, 2, 3`."""
    names = {item.name for item in items if isinstance(item, Named)}
    if len(names) > 1:
        return list(items)
    return [item.answer if isinstance(item, Named) else item for item in items]


def _agree_sequences(gold: Several, prediction: Several, allowed) -> bool | None:
    if len(gold.items) != len(prediction.items):
        return False
    if len(gold.items) == 2 and gold.brackets != prediction.brackets:
        return False
    if not allowed.ordered:
        return _agree_unordered(gold.items, prediction.items, allowed)
    return _agree_ordered(gold.items, prediction.items, allowed)


def _agree_ordered(gold: Sequence, prediction: Sequence, allowed) -> bool | None:
    return all_agree(agree(one, other, allowed) for one, other in zip(gold, prediction, strict=True))


def _agree_unordered(gold: Sequence, prediction: Sequence, allowed) -> bool | None:
    """Each of one side has a partner on the other; repetitions do not count."""
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
        is_else = isinstance(other, Several) and len(other.items) != 2
        return (
            False
            if is_else or (isinstance(other, Node) and other.head in (*EXPRESSIONS, "number_set"))
            else None
        )
    if len(sides[0].pieces) != len(sides[1].pieces):
        return False
    pairs = zip(sides[0].pieces, sides[1].pieces, strict=True)
    return all_agree(_agree_intervals(one, other, allowed) for one, other in pairs)


def _agree_intervals(gold: Interval, prediction: Interval, allowed) -> bool | None:
    if (gold.is_low_closed, gold.is_high_closed) != (prediction.is_low_closed, prediction.is_high_closed):
        return False
    return all_agree(
        [_agree_ends(gold.low, prediction.low, allowed), _agree_ends(gold.high, prediction.high, allowed)]
    )


def _agree_ends(gold: Node, prediction: Node, allowed) -> bool | None:
    values = endpoint_value(gold), endpoint_value(prediction)
    if any(value in (float("inf"), float("-inf")) for value in values):
        return values[0] == values[1]
    return same_value(gold, prediction, allowed)
