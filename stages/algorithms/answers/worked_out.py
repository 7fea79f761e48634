r"""Decides whether an answer leaves work to the reader: `2+2`, `\cos 60^\circ`, an integral.

Without this a policy could copy the formula of the problem: 759 of 13,649 problems have one
(docs/evidence/verifier.md).

The gold answer decides what counts as an answer:
- Beside a rational number: digits, a fraction of two numbers, scientific notation, or one notation of such numbers: a
  root, a logarithm, a power, a factorial, a binomial. Products and quotients of powers, factorials and binomials are
  one notation too, if they need no more digits than the number itself: 7!/(2!2!) for 1260, not 9!/8! for 9.
- Beside another constant: a sum whose terms have been collected, of products of numbers, pi, e, i, roots and
  logarithms. A gold answer with other functions allows all of them, as often as it contains one. Remaining work is:
  letters that cancel, fractions in fractions, and i in an exponent or a denominator.
- Beside an expression with variables: anything except integrals, limits, sums, remainders and arithmetic among numbers
  that are written as `floor`, `max` and the like.
An equation or an inequality is still to be solved unless its unknown is alone on one side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import prod

from stages.algorithms.answers.evaluation import is_written_with_i, rational, symbols_of
from stages.algorithms.answers.latex import Node, holds_matrix, is_reciprocal, number
from stages.algorithms.answers.same_function import hold_like_terms, rational_value
from stages.algorithms.answers.shapes import Named, Numbers, Relation, Several, name_of

_MOST_TERMS = 30
_OPERATIONS = frozenset(["floor", "ceil", "mod", "max", "min", "gcd", "lcm"])
_COUNTS = frozenset(["factorial", "binom"])
_LOGARITHMS = frozenset(["ln", "log", "lg"])
_NOTATIONS = _COUNTS | _LOGARITHMS | {"exp"}
"""Functions that are notation for a number."""


def is_unevaluated(prediction, gold) -> bool:
    """True for a shape (see `shapes.shape_of`) with operations, or beside a number with arithmetic, still to be done.

    A gold answer that leaves work itself requires none.
    """
    # The gold answer decides how strict to be: x+x alone does not show whether to collect terms.
    golds = [cell for node in _nodes(gold) for cell in _cells(node)]
    if any(map(_holds_letters, golds)):
        is_left = _has_operation
    elif all(rational_value(node) is not None for node in golds):
        is_left = _is_no_written_number
        # A decimal gold answer may round another constant: \pi may stand beside 3.1416.
        if any(node.head == "number" and node.parts[1] >= 0 for node in golds):
            is_left = _is_no_written_rounding
    else:
        is_left = partial(
            _is_no_written_constant,
            # \cos 20^\circ lets \sin 70^\circ stand, but not a product of two cosines.
            functions=max(map(_count_functions, golds), default=0),
            # A gold answer r e^{i\theta} allows exponents with i.
            is_polar=any(map(_has_imaginary_exponent, golds)),
        )
    answers = list(_nodes(prediction))
    if isinstance(prediction, Relation):  # in `3 = x` the name is not a remaining letter
        answers = [node for node in answers if name_of(node) is None]
    cells = [cell for node in answers for cell in _cells(node)]
    # A gold answer that itself leaves work requires none: it may be the problem's text.
    return (any(map(_joins_matrices, answers)) or any(map(is_left, cells))) and not any(map(is_left, golds))


def _cells(node: Node) -> Iterator[Node]:
    """Returns the separate parts: the entries of a matrix, the parts of a ratio, the answer itself."""
    if node.head in ("matrix", "ratio"):
        for part in node.all_children:
            yield from _cells(part)
    else:
        yield node


def _joins_matrices(node: Node) -> bool:
    """True for a sum or a product of matrices, and for a determinant."""
    if node.head == "operator" and node.first == "det":
        return True
    # A product needs two matrices to be work: \frac15 A is a notation.
    if node.head in ("add", "multiply") and sum(map(holds_matrix, node.parts)) > (node.head == "multiply"):
        return True
    return any(map(_joins_matrices, node.all_children))


def _holds_letters(node: Node) -> bool:
    return bool(symbols_of(node)) or node.head == "text" or any(map(_holds_letters, node.all_children))


def leaves_unsolved(prediction: Node, gold: Node) -> bool:
    """True for a relation such as `2x = 10` without its unknown alone on a side, beside a gold answer without unknowns.

    A gold answer `y = 2x + 1` has one: `agree_relations` handles the many ways to write a line.
    """
    return _is_unsolved(prediction) and not _is_unsolved(gold) and not _unknowns(gold)


def _is_unsolved(node: Node) -> bool:
    # `x = 5` is solved, `2x = 10` and `x^2 = 4` are not.
    return node.head == "relation" and bool(_unknowns(node)) and not any(map(_stands_alone, node.first))


def _stands_alone(side: Node) -> bool:
    """True for `x` and `-x`: an author of `-x > -1` has solved it except for the sign."""
    if side.head == "multiply" and len(side.parts) == 2 and side.first == number(-1):
        side = side.parts[1]
    return name_of(side) is not None


def _unknowns(node: Node) -> set[str]:
    """Variables of a tree, without the name that a relation gives to its values; `x = y` leaves y."""
    if node.head != "relation":
        return symbols_of(node).union(*map(_unknowns, node.all_children))
    # Only one side is the name: in `x = y` the y is unknown.
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


# ---------------------------------------------------------------------------------------------- operations
def _has_operation(node: Node) -> bool:
    if node.head == "operator" or (node.head == "call" and _is_operation(node)):
        return True
    return any(map(_has_operation, node.all_children))


def _is_operation(node: Node) -> bool:
    name = node.first
    if name in _OPERATIONS or name == "abs":
        # \max(2, 3) is work, \max(x, 3) a function.
        return all(map(_is_rational, node.parts[1:]))
    return name.startswith(("sum over", "prod over"))


def _is_rational(node: Node) -> bool:
    """True for a number written only with digits, fractions, whole powers, factorials and binomials."""
    if node.head == "number":
        return True
    if node.head in ("add", "multiply", "percent", "degree"):
        return all(map(_is_rational, node.parts))
    if node.head == "power":
        exponent = rational(node.parts[1])
        return _is_rational(node.first) and exponent is not None and exponent.denominator == 1
    return node.head == "call" and node.first in _COUNTS and all(map(_is_rational, node.parts[1:]))


# ---------------------------------------------------------------------------------------------- rational numbers
def _is_no_written_number(node: Node) -> bool:
    if node.head in ("percent", "degree"):
        return _is_no_written_number(node.first)
    # Kinds that have no arithmetic.
    if node.head in ("text", "based", "set", "number_set", "infinity"):
        return False
    if holds_matrix(node):  # a multiple of a matrix
        return any(map(_is_no_written_number, [cell for part in node.all_children for cell in _cells(part)]))
    # \sin^2x + \cos^2x for 1, i^{16} for 1: letters and i must be gone.
    if symbols_of(node) or is_written_with_i(node):
        return True
    node = _without_sign(node)
    tops, bottoms = _factors(node)
    if any(part.head == "infinity" for part in tops):
        return False
    # \log_2 64 and 3 \times 10^5 have two factors, and are one notation each.
    if _is_logarithm_in_a_base(tops, bottoms) or _is_scientific(tops, bottoms):
        return False
    # One number or one notation: 2^{10}, \sqrt{9}, 5!.
    if len(tops) == 1 and not bottoms:
        return not (_is_digits(tops[0]) or _is_notation(tops[0]))
    # \frac{1}{2^3}: the numerator 1 is not a factor. A fraction of two numbers is an answer too.
    parts = [*(part for part in tops if part != number(1)), *bottoms]
    if len(parts) == 1 or (len(tops) == len(bottoms) == 1 and all(map(_is_digits, parts))):
        return not all(_is_digits(part) or _is_notation(part) for part in parts)
    # Several factors must be powers, factorials and binomials, or have one among them: 3 \cdot 9 is work.
    if not all(_is_digits(part) or _is_count(part) for part in parts) or not any(map(_is_count, parts)):
        return True
    value = rational_value(node)
    # 2^5 3^2, a factorisation, may have one digit more than 288.
    is_factorised = not bottoms and all(part.head == "power" for part in parts)
    # \frac{7!}{2!2!} has three digits and 1260 four: a notation. \frac{9!}{8!} has two and 9 one: work.
    return value is None or sum(map(_digits, parts)) > _digits(number(value)) + is_factorised


def _without_sign(node: Node) -> Node:
    if node.head == "multiply" and node.first == number(-1) and len(node.parts) > 1:
        return node.parts[1] if len(node.parts) == 2 else Node("multiply", node.parts[1:])
    return node


def _factors(node: Node) -> tuple[list[Node], list[Node]]:
    """Returns factors of numerator and denominator; a fraction that is itself a factor stays one."""
    if node.head != "multiply":
        return [node], []
    tops: list[Node] = []
    bottoms: list[Node] = []
    for part in node.parts:
        if is_reciprocal(part):
            below = part.first
            bottoms += below.parts if below.head == "multiply" else [below]
        # -2 \cdot 3 is read as -1 times a product: its factors count as factors of the whole.
        elif part.head == "multiply" and part is node.first and not any(map(is_reciprocal, part.parts)):
            tops += part.parts
        else:
            tops.append(part)
    tops = [part for part in tops if part != number(-1)]
    return tops or [number(1)], bottoms


def _is_digits(node: Node) -> bool:
    node = _without_sign(node)
    return node.head == "number"


def _is_plain(node: Node) -> bool:
    """True for digits and for a fraction of two numbers."""
    node = _without_sign(node)
    if node.head == "multiply":
        tops, bottoms = _factors(node)
        return len(tops) == len(bottoms) == 1 and all(map(_is_digits, (*tops, *bottoms)))
    return _is_digits(node)


def _is_notation(node: Node) -> bool:
    """True for one root, power, logarithm, factorial or binomial of numbers."""
    if node.head == "power":
        return _is_plain(node.first) and rational(node.parts[1]) is not None
    return node.head == "call" and node.first in _NOTATIONS and all(map(_is_plain, node.parts[1:]))


def _is_count(node: Node) -> bool:
    """True for a whole power, a factorial or a binomial of numbers."""
    if node.head == "power":
        exponent = rational(node.parts[1])
        return _is_digits(node.first) and exponent is not None and exponent.denominator == 1
    return node.head == "call" and node.first in _COUNTS and all(map(_is_digits, node.parts[1:]))


def _is_logarithm_in_a_base(tops: list[Node], bottoms: list[Node]) -> bool:
    """True for `\\log_2 64`, which is read as a quotient of logarithms."""
    if len(tops) != 1 or len(bottoms) != 1:
        return False
    return all(
        part.head == "call" and part.first in _LOGARITHMS and _is_plain(part.parts[1]) for part in (*tops, *bottoms)
    )


def _is_scientific(tops: list[Node], bottoms: list[Node]) -> bool:
    """True for 3 times a power of ten."""
    if bottoms or len(tops) != 2 or tops[0].head != "number" or tops[1].head != "power":
        return False
    return tops[1].first == number(10) and tops[1].parts[1].head == "number"


def _digits(node: Node) -> int:
    """Number of written digits."""
    if node.head == "number":
        value = abs(node.first)
        below = 0 if value.denominator == 1 else _length(value.denominator)
        return _length(value.numerator) + below
    return sum(map(_digits, node.all_children))


def _length(value: int) -> int:
    """Number of decimal digits of a whole number, or one fewer; a long number is not written out."""
    # 0.30103 is log10(2), digits per bit; str() of 20,000 bits would be slow, and is rejected above 4,300 digits.
    return len(str(value)) if value.bit_length() < 1_000 else int(value.bit_length() * 0.30103)


# ---------------------------------------------------------------------------------------------- other constants
def _is_no_written_rounding(node: Node) -> bool:
    """Applies the rule for rational numbers to one; another constant may stand beside a decimal that may round it."""
    # Beside 0.2 a formula with a rational value must be evaluated; \pi beside 3.14 need not be.
    if rational_value(node) is None:
        return _is_no_written_constant(node, 0, False)
    return _is_no_written_number(node)


def _is_no_written_constant(node: Node, functions: int, is_polar: bool) -> bool:
    if symbols_of(node) or _count_functions(node) > functions:
        return True
    return _is_no_written_part(node, is_polar)


def _is_no_written_part(node: Node, is_polar: bool) -> bool:
    if node.head == "operator":
        return True
    # 1 + \sqrt2 + 2 has two numbers to add; `_has_like_terms` sees \sqrt8 + \sqrt2.
    if node.head == "add" and (sum(map(_is_rational, node.parts)) > 1 or _has_like_terms(node)):
        return True
    if node.head == "multiply" and _has_like_factors(node):
        return True
    if node.head == "power":
        # (1+i)^8, \frac{1}{1+2i}: powers and quotients of complex numbers are work.
        if is_written_with_i(node.first) or (is_written_with_i(node.parts[1]) and not is_polar):
            return True
        # \frac{1}{1+\frac{1}{1+\sqrt2}}: a fraction in a fraction.
        if is_reciprocal(node) and _holds(node.first, lambda part: is_reciprocal(part) and _has_sum(part)):
            return True
    return any(_is_no_written_part(part, is_polar) for part in node.all_children)


def _holds(node: Node, is_wanted: Callable[[Node], bool]) -> bool:
    return is_wanted(node) or any(_holds(part, is_wanted) for part in node.all_children)


def _has_sum(node: Node) -> bool:
    return _holds(node, lambda part: part.head == "add")


def _has_imaginary_exponent(node: Node) -> bool:
    return _holds(node, lambda part: part.head == "power" and is_written_with_i(part.parts[1]))


def _count_functions(node: Node) -> int:
    """Counts the calls of functions that are not notation for a number."""
    is_function = node.head == "call" and node.first not in _NOTATIONS
    return is_function + sum(map(_count_functions, node.all_children))


def _has_like_terms(node: Node) -> bool:
    r"""True for a sum whose terms can be combined: `\sqrt{8} + \sqrt{2}`. Roots of sums are such terms."""
    # \sqrt{5+\sqrt{21}} + \sqrt{5-\sqrt{21}} is \sqrt{14}: two such roots count as like terms.
    if sum(_holds(part, lambda inner: _is_root(inner) and _has_sum(inner)) for part in node.parts) > 1:
        return True
    return hold_like_terms(list(map(_multiplied_out, node.parts)))


def _multiplied_out(node: Node) -> list[Node]:
    """Returns the terms of a constant: three of `\\sqrt2(1+\\sqrt3)+5`. Longer products stay one term."""
    if node.head == "add":
        return [term for part in node.parts for term in _multiplied_out(part)]
    if node.head == "power" and rational(node.parts[1]) in (2, 3):
        node = Node("multiply", (node.first,) * int(rational(node.parts[1]) or 1))
    if node.head != "multiply":
        return [node]
    factors = list(map(_multiplied_out, node.parts))
    if prod(map(len, factors)) > _MOST_TERMS:
        return [node]
    return [Node("multiply", factors) for factors in product(*factors)]


def _has_like_factors(node: Node) -> bool:
    """True for a product in which numbers, roots, fractions, sums or terms with i can be multiplied out."""
    tops, _ = _factors(node)
    if _is_scientific(tops, []):
        return False
    kinds = [
        # Two of one kind can be multiplied out: 2 \cdot 3\pi, \sqrt2\sqrt3, \frac12\frac13, (1+\sqrt2)(1-\sqrt2), i
        # \cdot i.
        sum(map(_is_rational, tops)),
        sum(map(_is_root, tops)),
        sum(part.head == "multiply" and any(map(is_reciprocal, part.parts)) for part in tops),
        sum(part.head == "add" for part in tops),
        sum(map(is_written_with_i, tops)),
    ]
    return max(kinds) > 1


def _is_root(node: Node) -> bool:
    exponent = rational(node.parts[1]) if node.head == "power" else None
    return exponent is not None and exponent.denominator > 1
