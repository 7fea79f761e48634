"""Works out matrices of expressions, entry by entry: sums, products with numbers and matrices, determinants."""

from __future__ import annotations

from stages.algorithms.answers.latex import Node, UnreadableError, signed

# Products of two entries in one matrix product: 3 x 3 by 3 x 4 is allowed.
_MAX_ENTRIES = 36
# A determinant of four rows has 24 products of four entries.
_LARGEST_DETERMINANT = 3
_MAX_PARTS = 400
"""Terms in one entry: each product of products, or determinant of determinants, would double them."""
Rows = tuple[tuple[Node, ...], ...]


def holds_matrix(node: Node) -> bool:
    """True where the tree contains a matrix."""
    return node.head == "matrix" or any(map(holds_matrix, node.children))


def computed(node: Node) -> Node:
    """Computes the matrix of sums and products of matrices and scalars; returns other trees unchanged.

    UnreadableError where sizes do not match, or where no rule is known for a matrix (an exponent, a function).
    """
    if node.head == "matrix" or not holds_matrix(node):
        return node
    parts = list(map(computed, node.children))
    if node.head not in ("add", "multiply"):
        raise UnreadableError("a matrix in an expression")
    join = _matrix_sum if node.head == "add" else _matrix_product
    total = parts[0]
    for part in parts[1:]:
        total = join(total, part)
    return total


def determinant(rows: Rows) -> Node:
    """Returns the determinant of up to three rows as an expression; UnreadableError for larger ones."""
    size = len(rows)
    if size > _LARGEST_DETERMINANT or any(len(row) != size for row in rows):
        raise UnreadableError("a determinant")
    if size == 1:
        return rows[0][0]
    terms = []
    for column, entry in enumerate(rows[0]):
        rest = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
        terms.append(signed("-" if column % 2 else "+", Node("multiply", (entry, determinant(rest)))))
    return _bounded_entries(Node("add", tuple(terms)))


def transposed(node: Node) -> Node:
    """Transposes a row or a bracketed list into a column; UnreadableError for larger matrices.

    A problem may ask for the transpose of a larger matrix, so it is not worked out here.
    """
    row = node.parts[2] if node.head == "sequence" else node.first
    if node.head == "matrix" and len(node.parts) > 1:
        raise UnreadableError("a transposed matrix")
    return Node("matrix", tuple((entry,) for entry in row))


def _matrix_sum(left: Node, right: Node) -> Node:
    if left.head != "matrix" or right.head != "matrix":
        raise UnreadableError("a matrix and a number added")
    if len(left.parts) != len(right.parts) or len(left.first) != len(right.first):
        raise UnreadableError("matrices of different sizes")
    pairs = (zip(one, other, strict=True) for one, other in zip(left.parts, right.parts, strict=True))
    return Node("matrix", tuple(tuple(Node("add", pair) for pair in row) for row in pairs))


def _matrix_product(left: Node, right: Node) -> Node:
    if left.head != "matrix" and right.head != "matrix":
        return Node("multiply", (left, right))
    if left.head != "matrix" or right.head != "matrix":
        # A matrix may stand on either side of its factor: \frac15 A and A \cdot 5 are both read.
        scalar, matrix = (right, left) if left.head == "matrix" else (left, right)
        return Node("matrix", tuple(tuple(Node("multiply", (scalar, entry)) for entry in row) for row in matrix.parts))
    columns = tuple(zip(*right.parts, strict=True))
    if len(left.first) != len(right.parts) or len(left.parts) * len(columns) * len(left.first) > _MAX_ENTRIES:
        raise UnreadableError("matrices that cannot be multiplied")
    return Node("matrix", tuple(tuple(_dot(row, column) for column in columns) for row in left.parts))


def _dot(row: tuple[Node, ...], column: tuple[Node, ...]) -> Node:
    return _bounded_entries(Node("add", tuple(Node("multiply", pair) for pair in zip(row, column, strict=True))))


def _bounded_entries(node: Node) -> Node:
    # A loop with an explicit stack: recursion would be as deep as the hostile product.
    waiting, count = [node], 0
    while waiting:
        count += 1
        if count > _MAX_PARTS:
            raise UnreadableError("large entries")
        waiting += waiting.pop().children
    return node
