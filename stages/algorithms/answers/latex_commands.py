r"""Reads what begins with a command: constants, functions, roots, fractions, series, integrals, figures.

`reader` is the `ExpressionReader` that met the command: both read what the other may hold.

`\sin 2x \cos y` is the product of sin(2x) and cos(y); `\sin^2 x` is a square, `\sin^{-1} x` the inverse.
"""

from __future__ import annotations

from stages.algorithms.answers.latex_tokens import FUNCTIONS, NAME_SIGNS, UnreadableError
from stages.algorithms.answers.latex_tree import Node, number, reciprocal

_SYMBOL_NAMES = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho "
    "varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega "
    "hbar ell zzz odot imath partial nabla aleph angle triangle"
)
_SYMBOLS = frozenset(_SYMBOL_NAMES.split())
_CONSTANTS = {"pi": "pi", "infty": "infinity"}
_FROM_BOTH_ENDS = {"angle": 3, "overline": 2, "widehat": 2, "overleftrightarrow": 2}
"""Figures that are the same when read from the other end, with so many letters: an angle with its vertex in the middle,
a segment, an arc, a line. Not a ray, not a triangle, whose vertices correspond to another one's."""
_SAME_SIGNS = {"measuredangle": "angle"}
_CHOICES_OF_NUMBERS = frozenset(["max", "min", "gcd", "lcm"])
_STRUCTURES = frozenset(["frac", "sqrt", "binom", "boxed", "sum", "prod", "int", "lim", "lfloor", "lceil"])
OPENING_COMMANDS = FUNCTIONS.union(_SYMBOLS, _CONSTANTS, _STRUCTURES, _CHOICES_OF_NUMBERS, NAME_SIGNS)
"""What a factor may begin with."""


def read_command(reader, name: str, depth: int) -> Node:
    """What the command that was taken opens; UnreadableError for one that is not known here."""
    if name in _CONSTANTS:
        return Node(_CONSTANTS[name], ())
    if name in FUNCTIONS:
        return _function(reader, name, depth)
    if name in NAME_SIGNS and (_starts_name(reader) or name not in _SYMBOLS):
        return _figure(reader, name)
    if name in _SYMBOLS:
        return reader.symbol(name)
    return _structure(reader, name, depth)


def _structure(reader, name: str, depth: int) -> Node:
    if name in _CHOICES_OF_NUMBERS:
        return _choice_of_numbers(reader, name, depth)
    if name in ("int", "lim"):
        return _operator(reader, name, depth)
    if name in ("lfloor", "lceil"):
        inner = reader.sum(depth + 1)
        reader.tokens.close(f"r{name[1:]}")
        return Node("call", (name[1:], inner))
    if name == "frac":
        return Node("multiply", (reader.argument(depth), reciprocal(reader.argument(depth))))
    if name == "binom":
        return Node("call", ("binom", reader.argument(depth), reader.argument(depth)))
    if name == "sqrt":
        return _root(reader, depth)
    if name == "boxed":
        return reader.argument(depth)
    if name in ("sum", "prod"):
        return _series(reader, name, depth)
    if name in ("{", "langle"):
        return reader.bracket("\\" + name, depth)
    if name in ("emptyset", "varnothing"):
        return Node("set", ())
    if name == "mathbb":
        return Node("number_set", (reader.subscript(),))
    raise UnreadableError(f"unknown command {name[:40]!r}")


def _root(reader, depth: int) -> Node:
    degree = number(2)
    if reader.tokens.take("symbol", "["):
        degree = reader.sum(depth + 1)
        reader.tokens.close("]")
    return Node("power", (reader.argument(depth), reciprocal(degree)))


def _series(reader, name: str, depth: int) -> Node:
    r"""`\sum_{k=0}^{n} ...`: a function of its bounds and terms of which only its own notation is known."""
    tokens = reader.tokens
    if not (tokens.take("symbol", "_") and tokens.take("symbol", "{") and tokens.at("letter")):
        raise UnreadableError("a series without bounds")
    index = tokens.next().value
    if not tokens.take("symbol", "="):
        raise UnreadableError("a series without a start")
    low = reader.sum(depth + 1)
    tokens.close("}")
    if not tokens.take("symbol", "^"):
        raise UnreadableError("a series without an end")
    return Node("call", (f"{name} over {index}", low, reader.argument(depth), reader.product(depth + 1)))


def _starts_name(reader) -> bool:
    """True before letters, or before a brace and letters."""
    return reader.tokens.peek(reader.tokens.at("symbol", "{")).kind in ("text", "letter")


def _figure(reader, sign: str) -> Node:
    r"""`\angle ABC`, `\overline{AB}`: a name, in which order counts, but for what is the same from both ends."""
    if not reader.tokens.take("symbol", "{"):
        if not _starts_name(reader):
            raise UnreadableError("a figure without a name")
        name = reader.symbol(reader.tokens.next().value).first
    else:
        name = ""
        while reader.tokens.at("letter") or reader.tokens.at("text"):
            name += reader.tokens.next().value
        reader.tokens.close("}")
    sign = _SAME_SIGNS.get(sign, sign)
    if len(name) == _FROM_BOTH_ENDS.get(sign) and name.isalpha():
        name = min(name, name[::-1])
    return Node("text", (f"{sign} {name}",))


def _operator(reader, name: str, depth: int) -> Node:
    """An integral or limit: a function of its bounds and of what follows, of which only the notation is known."""
    bounds = []
    for _ in range(2):
        if reader.tokens.take("symbol", "_"):
            bounds.append(Node("text", (f"from {reader.subscript()}",)))
        elif reader.tokens.take("symbol", "^"):
            bounds.append(Node("text", (f"to {reader.subscript()}",)))
    return Node("operator", (name, *bounds, reader.sum(depth + 1)))


def _choice_of_numbers(reader, name: str, depth: int) -> Node:
    bracket = reader.base(depth + 1)
    if bracket.head not in ("sequence", "set"):
        raise UnreadableError(f"{name} of no list")
    return Node("call", (name, *(bracket.parts if bracket.head == "set" else bracket.parts[2])))


def _function(reader, name: str, depth: int) -> Node:
    exponent = base = None
    for _ in range(2):
        if reader.tokens.take("symbol", "^"):
            exponent = reader.argument(depth)
        elif reader.tokens.take("symbol", "_"):
            base = reader.argument(depth)
    if exponent == number(-1) and name in ("sin", "cos", "tan"):
        name, exponent = "arc" + name, None
    if base is not None and name != "log":
        raise UnreadableError(f"a subscript of {name}")
    node = Node("call", (name if base is None else "ln", _function_argument(reader, depth)))
    if base is not None:
        node = Node("multiply", (node, reciprocal(Node("call", ("ln", base)))))
    return node if exponent is None else Node("power", (node, exponent))


def _function_argument(reader, depth: int) -> Node:
    if reader.tokens.at("symbol", "(", "{", "|"):
        return reader.base(depth + 1)
    factors = [reader.signed_factor(depth + 1)]
    while reader.starts_factor() and not (
        reader.tokens.at("symbol") or reader.tokens.at("number") or reader.tokens.at("command", *FUNCTIONS)
    ):
        factors.append(reader.factor(depth + 1))
    return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))
