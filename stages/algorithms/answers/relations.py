"""Whether two equations or inequalities agree."""

from __future__ import annotations

from stages.algorithms.answers import algebra
from stages.algorithms.answers.latex_tokens import UnreadableError
from stages.algorithms.answers.latex_tree import Node, signed
from stages.algorithms.answers.shapes import Relation
from stages.algorithms.answers.single_values import agree_values, all_agree


def agree_relations(gold: Relation, prediction: Relation) -> bool | None:
    """Equations agree when they are multiples of each other; inequalities too, turned the same way."""
    sides = [_rising(relation) for relation in (gold, prediction)]
    if sides[0].signs == sides[1].signs and len(sides[0].items) == len(sides[1].items):
        pairs = zip(sides[0].items, sides[1].items, strict=True)
        if all_agree(agree_values(one, other) for one, other in pairs):
            return True
    if len(gold.items) != 2 or len(prediction.items) != 2:
        return None
    try:
        forms = [
            algebra.canonical_form(Node("add", (relation.items[0], signed("-", relation.items[1]))))
            for relation in sides
        ]
    except UnreadableError:
        return None
    factor = algebra.are_proportional(*forms)
    is_certain = all(form.is_transparent and len(form.bottom) == 1 for form in forms)
    if sides[0].signs != sides[1].signs:
        return False if is_certain else None
    if factor is not None:
        return True if sides[0].signs in (("eq",), ("ne",)) else factor > 0
    is_same_degree = algebra.degree(forms[0].top) == algebra.degree(forms[1].top)
    return False if is_certain and is_same_degree else None


def _rising(relation: Relation) -> Relation:
    """The same with `<` for every `>`."""
    if relation.signs[0] not in ("gt", "ge"):
        return relation
    turned = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
    signs = tuple(turned.get(sign, sign) for sign in reversed(relation.signs))
    return Relation(relation.items[::-1], signs)
