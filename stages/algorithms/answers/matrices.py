"""Matrix arithmetic on trees: sums, multiples, products and determinants become matrices or expressions of entries."""

from __future__ import annotations

from stages.algorithms.answers.latex_tokens import UnreadableError
from stages.algorithms.answers.latex_tree import Node, signed

_MAX_ENTRIES = 36
_LARGEST_DETERMINANT = 3
_MAX_PARTS = 400
"""Parts of one entry: products of products, and determinants of determinants, would double it each time."""

Rows = tuple[tuple[Node, ...], ...]


def holds_matrix(node: Node) -> bool:
    """True where a matrix stands in it."""
    return node.head == "matrix" or any(holds_matrix(part) for part in node.parts if isinstance(part, Node))


def computed(node: Node) -> Node:
    """The matrix that sums and products of matrices and scalars are; other trees as they are.

    UnreadableError where sizes do not fit, or a matrix is where no rule is known (an exponent, a function).
    """
    if node.head == "matrix" or not holds_matrix(node):
        return node
    parts = [computed(part) for part in node.parts if isinstance(part, Node)]
    if node.head not in ("add", "multiply"):
        raise UnreadableError("a matrix in an expression")
    join = _sum if node.head == "add" else _product
    total = parts[0]
    for part in parts[1:]:
        total = join(total, part)
    return total


def determinant(rows: Rows) -> Node:
    """The determinant of up to three rows as an expression; UnreadableError for others."""
    size = len(rows)
    if size > _LARGEST_DETERMINANT or any(len(row) != size for row in rows):
        raise UnreadableError("a determinant")
    if size == 1:
        return rows[0][0]
    terms = []
    for column, entry in enumerate(rows[0]):
        rest = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
        terms.append(signed("-" if column % 2 else "+", Node("multiply", (entry, determinant(rest)))))
    return _bounded(Node("add", tuple(terms)))


def transposed(node: Node) -> Node:
    """The column that a row or what stands in brackets is when transposed; UnreadableError for larger matrices.

    To transpose those is work that a problem may ask for.
    """
    row = node.parts[2] if node.head == "sequence" else node.first
    if node.head == "matrix" and len(node.parts) > 1:
        raise UnreadableError("a transposed matrix")
    return Node("matrix", tuple((entry,) for entry in row))


def _sum(left: Node, right: Node) -> Node:
    if left.head != "matrix" or right.head != "matrix":
        raise UnreadableError("a matrix and a number added")
    if len(left.parts) != len(right.parts) or len(left.first) != len(right.first):
        raise UnreadableError("matrices of different sizes")
    pairs = (zip(one, other, strict=True) for one, other in zip(left.parts, right.parts, strict=True))
    return Node("matrix", tuple(tuple(Node("add", pair) for pair in row) for row in pairs))


def _product(left: Node, right: Node) -> Node:
    if left.head != "matrix" and right.head != "matrix":
        return Node("multiply", (left, right))
    if left.head != "matrix" or right.head != "matrix":
        scalar, matrix = (right, left) if left.head == "matrix" else (left, right)
        return Node(
            "matrix", tuple(tuple(Node("multiply", (scalar, entry)) for entry in row) for row in matrix.parts)
        )
    columns = tuple(zip(*right.parts, strict=True))
    if len(left.first) != len(right.parts) or len(left.parts) * len(columns) * len(left.first) > _MAX_ENTRIES:
        raise UnreadableError("matrices that cannot be multiplied")
    return Node("matrix", tuple(tuple(_dot(row, column) for column in columns) for row in left.parts))


def _dot(row: tuple[Node, ...], column: tuple[Node, ...]) -> Node:
    return _bounded(Node("add", tuple(Node("multiply", pair) for pair in zip(row, column, strict=True))))


def _bounded(node: Node) -> Node:
    waiting, count = [node], 0
    while waiting:
        count += 1
        if count > _MAX_PARTS:
            raise UnreadableError("large entries")
        waiting += [part for part in waiting.pop().parts if isinstance(part, Node)]
    return node
