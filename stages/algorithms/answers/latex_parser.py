r"""Reads a whole answer into a tree: lists, relations, unions, ratios of expressions.

`(a, b)` stays a sequence with its brackets: whether it is a tuple or an open interval, what it is compared with
decides. `{a, b}` without backslashes is a list.
"""

from __future__ import annotations

from stages.algorithms.answers.latex_expressions import MAX_DEPTH, ExpressionReader
from stages.algorithms.answers.latex_tokens import UnreadableError, tokenise
from stages.algorithms.answers.latex_tree import Node

_RELATIONS = {
    "=": "eq", "le": "le", "ge": "ge", "lt": "lt", "gt": "gt", "ne": "ne", "approx": "approx", "in": "in",
    "equiv": "eq", "simeq": "approx", "sim": "approx",
}  # fmt: skip
_SET_OPERATIONS = {"cup": "union", "cap": "intersection", "setminus": "minus", "backslash": "minus"}
_SEPARATORS = frozenset(["and", "or", ", and", ", or"])


def parse_answer(answer: str) -> Node:
    """The tree of a whole answer; UnreadableError when it is not in the notation known here."""
    reader = _AnswerReader(tokenise(answer))
    node = reader.listing(0, is_inside=False)
    reader.expect_end()
    return node


class _AnswerReader(ExpressionReader):
    def listing(self, depth: int, is_inside: bool) -> Node:
        """One relation, or a list of several with commas, semicolons or `and` between them.

        At the top level semicolons separate groups of what commas separate: `p=5, q=2; p=7, q=2` is a list of lists.
        """
        if depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        groups: list[list[Node]] = [[self._relation(depth)]]
        while separator := self._separator():
            if separator == ";" and not is_inside:
                groups.append([])
            groups[-1].append(self._relation(depth))
        if len(groups) == 1:
            return groups[0][0] if len(groups[0]) == 1 else Node("list", tuple(groups[0]))
        if all(len(group) == 1 for group in groups):
            return Node("list", tuple(group[0] for group in groups))
        return Node("list", tuple(Node("list", tuple(group)) for group in groups))

    def _separator(self) -> str:
        found = ""
        while self.at("symbol", ",", ";") or (self.at("text") and self.peek().value in _SEPARATORS):
            token = self.next()
            found = found or (token.value if token.kind == "symbol" else "and")
        return found

    def _relation(self, depth: int) -> Node:
        items, signs = [self._set_expression(depth)], []
        while True:
            token = self.peek()
            sign = _RELATIONS.get(token.value) if token.kind in ("symbol", "command") else None
            if sign is None:
                break
            self.skip(1)
            signs.append(sign)
            items.append(self._set_expression(depth))
        return items[0] if not signs else Node("relation", (tuple(items), tuple(signs)))

    def _set_expression(self, depth: int) -> Node:
        node = self.sum(depth)
        while self.at("command", *_SET_OPERATIONS):
            node = Node(_SET_OPERATIONS[self.next().value], (node, self.sum(depth)))
        if not self.at("symbol", ":"):
            return node
        items = [node]
        while self.take("symbol", ":"):
            items.append(self.sum(depth))
        if any(item.head == "text" for item in items):
            raise UnreadableError("a colon after words")
        return Node("ratio", tuple(items))
