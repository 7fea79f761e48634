"""Brings expressions into a canonical form, and works out matrices of expressions entry by entry.

The form is a quotient of polynomials with rational coefficients, in atoms. Atoms are variables, pi, e, i, roots of
primes, and opaque atoms: terms without a rule here (`sin` of a form, a root of a sum). Two expressions with equal forms
are equal. Two different forms without opaque atoms are different expressions, because roots of primes are linearly
independent over the rationals (Besicovitch 1940) and variables are free. For pi and e this is assumed.

Terms, exponents and bits of a coefficient are bounded: beyond a bound there is an UnreadableError, and `evaluation`
compares values instead. Roots are taken only where the sign is certain: of positive numbers, and of a single variable
(x^{1/2}), but never sqrt(x^2) = x.

Read `canonical_form` and `are_equal` first. Below them: arithmetic of forms (`_add`, `_multiply`, `_power`), its
bounds (`_bounded*`), prime factors, matrices.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, factorial, floor, gcd, lcm

from stages.algorithms.answers.latex import Node, UnreadableError, signed

# The bounds below are chosen, not derived. With them a hostile formula is rejected within a second:
# tests/algorithms/answers/test_answers.py tries many.
MAX_BITS = 4_000
# (x+y+z)^15 has 136 terms and is worked out, (x+y+z)^16 is not; the square of a sum of 60 letters would have 1,830.
_MAX_TERMS = 150
_MAX_COST = 5_000
"""Products of two terms that building one form may take: about 0.2 s with the longest coefficients."""
# Exponent of a sum, which is multiplied out. A single term may have its square as exponent: x^{2020} stays one term.
_MAX_EXPONENT = 60
# 500! has 3,768 bits, so it still fits `MAX_BITS`.
_MAX_FACTORIAL = 500
# The name of an opaque atom contains the form inside it, so nested roots make the name longer at each level. A longer
# name is replaced by its hash.
_MAX_KEY_CHARACTERS = 200
Monomial = tuple[tuple[str, Fraction], ...]
Polynomial = dict[Monomial, Fraction]
_ONE: Polynomial = {(): Fraction(1)}
_OF_RATIONALS = {
    "floor": floor,
    "ceil": ceil,
    "mod": lambda value, divisor: value % divisor,
    "max": max,
    "min": min,
    "gcd": lambda *values: gcd(*map(int, values)),
    "lcm": lambda *values: lcm(*map(int, values)),
}


@dataclass(frozen=True, slots=True)
class Form:
    """A quotient of two polynomials; the denominator is 1 or has several terms."""

    top: Polynomial
    bottom: Polynomial
    is_transparent: bool
    """False if the form has an opaque atom: then different forms prove nothing."""
    cost: int = 0
    """Products of terms that were needed to build the form."""


def canonical_form(node: Node) -> Form:
    """Returns the form of an expression; UnreadableError where it has none or would be too large."""
    # Heads that are missing here (`text`, `based`, `sequence`, `operator` ...) are not numbers: a word times two has
    # no form.
    head = node.head
    if head == "number":
        return _constant(node.first)
    if head == "symbol":
        return _atom(node.first)
    if head == "pi":
        return _atom("pi")
    if head == "add":
        total = canonical_form(node.first)
        for part in node.parts[1:]:
            total = _add(total, canonical_form(part))
        return total
    if head == "multiply":
        product = canonical_form(node.first)
        for part in node.parts[1:]:
            product = _multiply(product, canonical_form(part))
        return product
    if head == "power":
        return _power(canonical_form(node.first), node.parts[1])
    if head == "call":
        return _call(node)
    if head == "percent":
        return _multiply(canonical_form(node.first), _constant(Fraction(1, 100)))
    if head == "degree":
        # An angle in degrees is a number of radians, so that 90^\circ equals \frac{\pi}{2}.
        return _multiply(canonical_form(node.first), _multiply(_atom("pi"), _constant(Fraction(1, 180))))
    raise UnreadableError(f"no algebra of {head}")


def known_form(node: Node) -> Form | None:
    """`canonical_form`, or None where there is none."""
    try:
        return canonical_form(node)
    except UnreadableError:
        return None


def are_equal(first: Form, second: Form) -> bool | None:
    """Returns True or False where that is proven; None where an opaque atom leaves it open."""
    # a/b = c/d is checked as ad - cb = 0: forms are not reduced, so that (x^2-1)/(x-1) and x+1 differ as written.
    difference = _combine(_times(first.top, second.bottom), _times(second.top, first.bottom), -1)
    if not difference:
        return True
    # sin(2x) and 2 sin x cos x differ as forms though they are equal: an opaque atom may hide an identity.
    return False if first.is_transparent and second.is_transparent else None


def are_proportional(first: Form, second: Form) -> Fraction | None:
    """Returns the number c with top of `first` = c times top of `second`; None where there is none, or both are 0.

    Only numerators matter: a fraction is zero where its numerator is zero.
    """
    if not first.top or first.top.keys() != second.top.keys():
        return None
    ratios = {value / second.top[monomial] for monomial, value in first.top.items()}
    return ratios.pop() if len(ratios) == 1 else None


def rational_value(form: Form) -> Fraction | None:
    """Returns the number that a form represents; None when it is not rational."""
    # A denominator of several terms is not divided out, although (1+\sqrt2)/(1+\sqrt2) is 1.
    if form.bottom != _ONE or any(monomial for monomial in form.top):
        return None
    return form.top.get((), Fraction(0))


def degree(polynomial: Polynomial) -> Fraction:
    """Total degree, including roots and pi."""
    return max((sum((power for _, power in monomial), Fraction(0)) for monomial in polynomial), default=Fraction(0))


def variables(polynomial: Polynomial) -> set[str]:
    """Names of the atoms that are not numbers."""
    return {atom for monomial in polynomial for atom, _ in monomial if not _is_number(atom)}


def _is_number(atom: str) -> bool:
    return atom in ("pi", "e", "i") or atom.startswith("prime ")


def _constant(value: Fraction) -> Form:
    return Form({(): value} if value else {}, _ONE, True)


def _atom(name: str, exponent: Fraction = Fraction(1), is_transparent: bool = True) -> Form:
    return Form({((name, exponent),): Fraction(1)}, _ONE, is_transparent)


def _opaque(*parts: str) -> Form:
    name = " ".join(("opaque", *parts))
    # Equal names must mean equal atoms: a cryptographic hash guarantees that, a truncated name would not.
    if len(name) > _MAX_KEY_CHARACTERS:
        name = "opaque " + hashlib.blake2b(name.encode()).hexdigest()
    return _atom(name, is_transparent=False)


def _key(form: Form) -> str:
    """Returns a text that equal forms share."""
    sides = (sorted(form.top.items()), sorted(form.bottom.items()))
    return "/".join(
        "+".join(f"{value}{''.join(f'*({atom})^{power}' for atom, power in monomial)}" for monomial, value in side)
        for side in sides
    )


def _add(first: Form, second: Form) -> Form:
    if first.bottom == second.bottom:
        return _form(_combine(first.top, second.top, 1), first.bottom, first, second)
    top = _combine(_times(first.top, second.bottom), _times(second.top, first.bottom), 1)
    return _form(top, _times(first.bottom, second.bottom), first, second)


def _multiply(first: Form, second: Form) -> Form:
    return _form(_times(first.top, second.top), _times(first.bottom, second.bottom), first, second)


def _form(top: Polynomial, bottom: Polynomial, first: Form, second: Form) -> Form:
    """Returns the form built from two others; a denominator of one term moves into the numerator."""
    is_transparent = first.is_transparent and second.is_transparent
    terms = (len(first.top) + len(first.bottom)) * (len(second.top) + len(second.bottom))
    cost = first.cost + second.cost + terms
    if cost > _MAX_COST:
        raise UnreadableError("too much work")
    # 1/(2x) becomes x^{-1}/2: then most forms have the denominator 1 and compare term by term.
    if len(bottom) == 1 and bottom is not _ONE:
        [(monomial, value)] = bottom.items()
        inverse = {tuple((atom, -power) for atom, power in monomial): 1 / value}
        return Form(_times(top, inverse), _ONE, is_transparent, cost)
    return Form(top, bottom, is_transparent, cost)


def _combine(first: Polynomial, second: Polynomial, sign: int) -> Polynomial:
    total = dict(first)
    for monomial, value in second.items():
        summed = total.get(monomial, Fraction(0)) + sign * value
        if summed:
            total[monomial] = _bounded(summed)
        else:
            total.pop(monomial, None)
    return _bounded_terms(total)


def _times(first: Polynomial, second: Polynomial) -> Polynomial:
    if first is _ONE or second is _ONE:
        return second if first is _ONE else first
    # Checked before the product is computed: `_form` would see the cost only afterwards.
    if len(first) * len(second) > _MAX_COST:
        raise UnreadableError("large product")
    product: Polynomial = {}
    for one, value in first.items():
        for other, other_value in second.items():
            monomial, factor = _merge(one, other)
            summed = product.get(monomial, Fraction(0)) + value * other_value * factor
            if summed:
                product[monomial] = _bounded(summed)
            else:
                product.pop(monomial, None)
    return _bounded_terms(product)


def _merge(one: Monomial, other: Monomial) -> tuple[Monomial, Fraction]:
    """Returns the product of two monomials, and the number that roots and powers of i contribute."""
    if not one or not other:
        return _reduce(dict(one or other))
    powers = dict(one)
    for atom, power in other:
        powers[atom] = powers.get(atom, Fraction(0)) + power
    return _reduce(powers)


def _reduce(powers: dict[str, Fraction]) -> tuple[Monomial, Fraction]:
    factor = Fraction(1)
    for atom, power in list(powers.items()):
        if atom.startswith("prime "):
            # Powers of a prime stay in [0, 1): 8^{1/2} is 2 times 2^{1/2}, and 2^{-1/2} is 2^{1/2} / 2, the form in
            # which \frac{1}{\sqrt2} equals \frac{\sqrt2}{2}.
            whole = power.numerator // power.denominator
            factor *= _bounded_power(Fraction(int(atom[6:])), whole)
            powers[atom] = power - whole
        elif atom == "i" and power.denominator == 1:
            # i^0, i^1, i^2, i^3; an odd power leaves one i.
            factor *= (1, 1, -1, -1)[power.numerator % 4]
            powers[atom] = Fraction(power.numerator % 2)
        elif abs(power) > _MAX_EXPONENT * _MAX_EXPONENT:
            raise UnreadableError("large exponent")
    return tuple(sorted((atom, power) for atom, power in powers.items() if power)), factor


def _power(base: Form, exponent_node: Node) -> Form:
    exponent_form = canonical_form(exponent_node)
    exponent = rational_value(exponent_form)
    if exponent is None:
        return _opaque("power", _key(base), _key(exponent_form))
    if not base.top:
        # 0^0 is left undefined, too.
        if exponent <= 0:
            raise UnreadableError("a power of zero")
        return base
    if exponent.denominator == 1:
        return _integer_power(base, exponent.numerator)
    # A root of a quotient with a sum in the denominator would need the sign of that sum.
    if base.bottom != _ONE:
        return _opaque("power", _key(base), str(exponent))
    return _root_power(base, exponent)


def _integer_power(base: Form, exponent: int) -> Form:
    if exponent < 0:
        base, exponent = _form(base.bottom, base.top, base, base), -exponent
    # One term is raised in one step, so that 2^{1000} and x^{2020} cost nothing.
    if len(base.top) == 1 and base.bottom is _ONE:
        [(monomial, value)] = base.top.items()
        merged, factor = _reduce({atom: power * exponent for atom, power in monomial})
        coefficient = _bounded(_bounded_power(value, exponent) * factor)
        return Form({merged: coefficient}, _ONE, base.is_transparent, base.cost)
    if exponent > _MAX_EXPONENT:
        raise UnreadableError("large exponent")
    power = _constant(Fraction(1))
    for _ in range(exponent):
        power = _multiply(power, base)
    return power


def _root_power(base: Form, exponent: Fraction) -> Form:
    """Raises `base` to a fraction: roots of the number in front, times a root of the rest."""
    # \sqrt{8+4\sqrt3} is 2\sqrt{2+\sqrt3}: the common factor comes out first, so that both have one opaque root.
    content = _content(base.top)
    if len(base.top) == 1:
        [(monomial, value)] = base.top.items()
        if value < 0:
            return _negative_root(base, exponent)
        content = value
    rest = {monomial: value / content for monomial, value in base.top.items()}
    outside = _number_root(content, exponent)
    if rest == _ONE:
        return outside
    if len(rest) == 1:
        [monomial] = rest
        # \sqrt{x} keeps its atom as x^{1/2}. \sqrt{x^2} does not become x, which is false for negative x.
        is_simple = len(monomial) == 1 and (monomial[0][1] == 1 or _is_number(monomial[0][0]))
        if all(_is_number(atom) and atom != "i" for atom, _ in monomial) or (is_simple and monomial[0][0] != "i"):
            merged, factor = _reduce({atom: power * exponent for atom, power in monomial})
            return _multiply(outside, Form({merged: factor}, _ONE, base.is_transparent))
    return _multiply(outside, _opaque("power", _key(Form(rest, _ONE, base.is_transparent)), str(exponent)))


def _negative_root(base: Form, exponent: Fraction) -> Form:
    """The square root of a negative number is imaginary, an odd root real (school, not the principal value)."""
    # \sqrt[4]{-1} has several values, and school teaches none of them. Whether \sqrt{-x} is real depends on x.
    if variables(base.top) or (exponent.denominator % 2 == 0 and exponent.denominator != 2):
        raise UnreadableError("a root of a negative term")
    positive = _root_power(_multiply(base, _constant(Fraction(-1))), exponent)
    if exponent.denominator % 2:
        return positive if exponent.numerator % 2 == 0 else _multiply(positive, _constant(Fraction(-1)))
    return _multiply(positive, _integer_power(_atom("i"), exponent.numerator))


def _content(polynomial: Polynomial) -> Fraction:
    """Returns the positive rational number by which the coefficients become coprime integers."""
    top = bottom = 0
    for value in polynomial.values():
        top = gcd(top, value.numerator)
        bottom = value.denominator if not bottom else bottom * value.denominator // gcd(bottom, value.denominator)
    return _bounded(Fraction(top, bottom))


def _number_root(value: Fraction, exponent: Fraction) -> Form:
    powers: dict[str, Fraction] = {}
    for side, sign in ((value.numerator, 1), (value.denominator, -1)):
        for prime, count in prime_factors(side).items():
            powers[f"prime {prime}"] = count * sign * exponent
    monomial, factor = _reduce(powers)
    return Form({monomial: factor}, _ONE, True)


def _call(node: Node) -> Form:
    name, *arguments = node.parts
    # f is unknown, and so is where it is defined: f(x) beside f(x) is left to the comparison of texts.
    if name.startswith("unknown"):
        raise UnreadableError("a function that nothing is known about")
    forms = [canonical_form(argument) for argument in arguments]
    values = [rational_value(form) for form in forms]
    if name == "abs" and values[0] is not None:
        return _constant(abs(values[0]))
    if name in _OF_RATIONALS and None not in values:
        if name in ("gcd", "lcm") and any(value.denominator != 1 for value in values):  # type: ignore[union-attr]
            raise UnreadableError(f"{name} of fractions")
        if name == "mod" and not values[1]:
            raise UnreadableError("a remainder of a division by zero")
        return _constant(Fraction(_OF_RATIONALS[name](*values)))  # type: ignore[arg-type]
    if name in ("factorial", "binom") and all(value is not None and value.denominator == 1 for value in values):
        integers = [value.numerator for value in values if value is not None]
        # 500!! is a factorial of a factorial: the inner one is beyond this bound.
        if not all(0 <= integer <= _MAX_FACTORIAL for integer in integers):
            raise UnreadableError("large factorial")
        return _constant(Fraction(factorial(*integers) if name == "factorial" else comb(*integers)))
    return _opaque("log" if name == "ln" else name, *map(_key, forms))


def _bounded_power(value: Fraction, exponent: int) -> Fraction:
    # Checked before the power is computed: otherwise 9^{99999} would be computed only to be rejected as too long.
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    if value not in (1, -1) and bits * abs(exponent) > MAX_BITS:
        raise UnreadableError("large power")
    return value ** (exponent % 2 if value in (1, -1) else exponent)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > 2 * MAX_BITS:
        raise UnreadableError("large number")
    return value


def _bounded_terms(polynomial: Polynomial) -> Polynomial:
    if len(polynomial) > _MAX_TERMS:
        raise UnreadableError("many terms")
    return polynomial


# Trial division by at most 500 numbers: a remainder below 1,000^2 is then a prime. \sqrt{1000003} is therefore opaque
# to the algebra and compared by its value.
_LARGEST_DIVISOR = 1_000


def prime_factors(value: int) -> dict[int, int]:
    """Returns how often each prime divides `value`; UnreadableError where two factors above 1,000 may remain."""
    counts: dict[int, int] = {}
    divisor = 2
    while divisor * divisor <= value and divisor < _LARGEST_DIVISOR:
        while value % divisor == 0:
            counts[divisor] = counts.get(divisor, 0) + 1
            value //= divisor
        divisor += 1 if divisor == 2 else 2
    if value >= _LARGEST_DIVISOR**2:
        raise UnreadableError("a root of a large number")
    if value > 1:
        counts[value] = counts.get(value, 0) + 1
    return counts


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
