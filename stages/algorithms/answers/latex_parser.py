r"""Reads a whole answer into a tree: lists, relations, unions, ratios of expressions.

`(a, b)` stays a sequence with its brackets: whether it is a tuple or an open interval, what it is compared with
decides. `{a, b}` without backslashes is a list.
"""

from __future__ import annotations

from stages.algorithms.answers.latex_expressions import MAX_DEPTH, ExpressionReader
from stages.algorithms.answers.latex_tokens import TokenStream, UnreadableError, tokenise
from stages.algorithms.answers.latex_tree import Node

_RELATIONS = {
    "=": "eq",
    "le": "le",
    "ge": "ge",
    "lt": "lt",
    "gt": "gt",
    "ne": "ne",
    "approx": "approx",
    "in": "in",
    "equiv": "eq",
    "simeq": "approx",
    "sim": "approx",
}
_SET_OPERATIONS = {"cup": "union", "cap": "intersection", "setminus": "minus", "backslash": "minus"}
_SEPARATORS = frozenset(["and", "or"])


def parse_answer(answer: str) -> Node:
    """The tree of a whole answer; UnreadableError when it is not in the notation known here."""
    tokens = TokenStream(tokenise(answer))
    node = _listing(ExpressionReader(tokens, _listing), 0, False)
    tokens.expect_end()
    return node


def _listing(reader: ExpressionReader, depth: int, is_inside: bool) -> Node:
    """One relation, or a list of several with commas, semicolons or `and` between them.

    At the top level semicolons separate groups of what commas separate: `p=5, q=2; p=7, q=2` is a list of lists.
    """
    if depth > MAX_DEPTH:
        raise UnreadableError("too deep")
    groups: list[list[Node]] = [[_relation(reader, depth)]]
    while separator := _separator(reader.tokens):
        if separator == ";" and not is_inside:
            groups.append([])
        node = _relation(reader, depth)
        if separator == "or" and groups[-1] and _is_inequality(groups[-1][-1]) and _is_inequality(node):
            groups[-1][-1] = Node("union", (groups[-1][-1], node))
        else:
            groups[-1].append(node)
    if len(groups) == 1:
        return groups[0][0] if len(groups[0]) == 1 else Node("list", tuple(groups[0]))
    if all(len(group) == 1 for group in groups):
        return Node("list", tuple(group[0] for group in groups))
    return Node("list", tuple(Node("list", tuple(group)) for group in groups))


def _separator(tokens: TokenStream) -> str:
    found = ""
    while tokens.at("symbol", ",", ";") or (tokens.at("text") and tokens.peek().value in _SEPARATORS):
        value = tokens.next().value
        found = value if value == "or" else found or value
    return found


def _is_inequality(node: Node) -> bool:
    """True for an inequality and for several with `or` between."""
    return node.head == "union" or (node.head == "relation" and not {"eq", "approx", "in"} & {*node.parts[1]})


def _relation(reader: ExpressionReader, depth: int) -> Node:
    items, signs = [_set_expression(reader, depth)], []
    while True:
        token = reader.tokens.peek()
        sign = _RELATIONS.get(token.value) if token.kind in ("symbol", "command") else None
        if sign is None:
            break
        reader.tokens.skip(1)
        signs.append(sign)
        items.append(_set_expression(reader, depth))
        if token.value == "equiv" and items[-1].head == "call" and items[-1].first == "mod":
            raise UnreadableError("a congruence")  # 3 modulo 7 is not 3 modulo 5
    if any(sign not in ("eq", "approx") for sign in signs) and any(item.head == "ratio" for item in items):
        raise UnreadableError("a colon in an inequality")
    return items[0] if not signs else Node("relation", (tuple(items), tuple(signs)))


def _set_expression(reader: ExpressionReader, depth: int) -> Node:
    tokens = reader.tokens
    node = reader.sum(depth)
    if tokens.take("command", "bmod", "mod"):
        node = Node("call", ("mod", node, reader.sum(depth)))
    while tokens.at("command", *_SET_OPERATIONS):
        node = Node(_SET_OPERATIONS[tokens.next().value], (node, reader.sum(depth)))
    if not tokens.at("symbol", ":"):
        return node
    items = [node]
    while tokens.take("symbol", ":"):
        items.append(reader.sum(depth))
    if any(item.head == "text" for item in items):
        raise UnreadableError("a colon after words")
    return Node("ratio", tuple(items))
