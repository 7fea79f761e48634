r"""Reads a whole answer into a tree: lists, relations, unions and ratios; then expressions; then commands.

The grammar is a recursive descent, from the loosest binding to the tightest: `_listing`, `_relation`,
`_set_expression`, `ExpressionReader.sum`, `product`, `factor`, `base`, `read_command`. Time and memory are bounded for
any text: every call takes a token, there are at most `MAX_TOKENS`, and levels are counted. Unknown notation is an
UnreadableError, never a guess.

Readings, where notation is ambiguous:
- `(a, b)` stays a sequence with its brackets: the answer it is compared with makes it a tuple or an interval.
- `{a, b}` without backslashes is a list.
- `2\frac{1}{2}` and `2 1/2` are mixed numbers. `10^35` is the power with exponent 35, `2^63^2` is `2^6 3^2`.
- `x(y+1)` is a product, but `f(x)`, for f, g, h, F, G, H, is a call that nothing is known about.
- `\sin 2x \cos y` is the product of sin(2x) and cos(y); `\sin^2 x` is a square, `\sin^{-1} x` the inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from stages.algorithms.answers.latex import (
    FUNCTIONS,
    NAME_SIGNS,
    Node,
    Token,
    TokenStream,
    UnreadableError,
    is_whole,
    mixed,
    number,
    proper_fraction,
    reciprocal,
    signed,
    tokenise,
)

# \equiv may be an identity; a congruence is rejected below, where its modulus is seen.
_RELATIONS = {"=": "eq", "equiv": "eq", "simeq": "approx", "sim": "approx"}
_RELATIONS |= {name: name for name in ("le", "ge", "lt", "gt", "ne", "approx", "in")}
_SET_OPERATIONS = {"cup": "union", "cap": "intersection", "setminus": "minus", "backslash": "minus"}
_SEPARATORS = frozenset(["and", "or"])


def parse_answer(answer: str) -> Node:
    """Returns the tree of a whole answer; UnreadableError when it is not in a notation known here."""
    tokens = TokenStream(tokenise(answer))
    node = _listing(ExpressionReader(tokens, _listing), 0, False)
    # Tokens that are left over make the whole answer unreadable: `5 \text{ if } x > 0` is not 5.
    tokens.expect_end()
    return node


def _listing(reader: ExpressionReader, depth: int, is_inside: bool) -> Node:
    """Reads one relation, or a list of several with commas, semicolons or `and` between them.

    At the top level semicolons separate groups of comma-separated items: `p=5, q=2; p=7, q=2` is a list of lists.
    """
    if depth > MAX_DEPTH:
        raise UnreadableError("too deep")
    groups: list[list[Node]] = [[_relation(reader, depth)]]
    while separator := _separator(reader.tokens):
        # Inside brackets a semicolon is a comma: `(1; 2)` is a point in countries with decimal commas.
        if separator == ";" and not is_inside:
            groups.append([])
        node = _relation(reader, depth)
        # `x = 1, y = 2 or x = 3, y = 4`: a name that returns begins another solution.
        names = [item.first[0] for item in [*groups[-1], node] if item.head == "relation"]
        if len(names) > 2 and names[-1] == names[0] != names[1]:
            groups.append([])
        # `x < 1 or x > 2` is a union; `x = 1 or x = 2` lists two values.
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
    separator = ""
    while tokens.at("symbol", ",", ";") or (tokens.at("text") and tokens.peek().value in _SEPARATORS):
        # `1, and 2`, `x<0, or x>1`: several separators in a row are one, and `or` decides which.
        value = tokens.next().value
        separator = value if value == "or" else separator or value
    return separator


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
    # `{x : x > 2}` without its backslashes, or a ratio in an inequality: the text does not say which.
    if any(sign not in ("eq", "approx") for sign in signs) and any(item.head == "ratio" for item in items):
        raise UnreadableError("a colon in an inequality")
    return items[0] if not signs else Node("relation", (tuple(items), tuple(signs)))


def _set_expression(reader: ExpressionReader, depth: int) -> Node:
    tokens = reader.tokens
    node = reader.sum(depth)
    if tokens.take("command", "bmod", "mod"):
        node = Node("call", ("mod", node, reader.sum(depth)))
    # From left to right, as for signs of one rank.
    while tokens.at("command", *_SET_OPERATIONS):
        node = Node(_SET_OPERATIONS[tokens.next().value], (node, reader.sum(depth)))
    if not tokens.at("symbol", ":"):
        return node
    items = [node]
    while tokens.take("symbol", ":"):
        items.append(reader.sum(depth))
    # `Total : 5`: the colon belongs to the word.
    if any(item.head == "text" for item in items):
        raise UnreadableError("a colon after words")
    return Node("ratio", tuple(items))


# A nested fraction or bracket takes two or three levels. Python's stack ends far later, at 1,000 calls.
MAX_DEPTH = 24
# The exact rules on texts have already compared longer integers (`equivalence`).
_MAX_NUMBER_CHARACTERS = 400
_MATRICES = frozenset(["pmatrix", "bmatrix", "matrix", "array", "smallmatrix", "vmatrix"])
# The usual names of functions in problems; x(y+1) stays a product.
_CALLED = frozenset("fghFGH")
_TRANSPOSED = frozenset(["T", "top", "intercal"])


class ExpressionReader:
    """Reads expressions from the position of `tokens`; `read_listing` reads the content of brackets."""

    def __init__(self, tokens: TokenStream, read_listing: Callable[[ExpressionReader, int, bool], Node]) -> None:
        self.tokens = tokens
        self._read_listing = read_listing
        # Inside bars the next bar closes them: otherwise |x|y| would open a second pair.
        self._open_bars = 0

    def sum(self, depth: int) -> Node:
        """Reads terms with signs before them."""
        terms = []
        sign = self._sign() or "+"
        while True:
            terms.append(signed(sign, self.product(depth)))
            following = self._sign()
            if following is None:
                return terms[0] if len(terms) == 1 else Node("add", tuple(terms))
            sign = following

    def _sign(self) -> str | None:
        """Reads the sign before a term; several signs are multiplied; None where there is none."""
        sign = None
        while self.tokens.at("symbol", "+", "-") or self.tokens.at("command", "pm", "mp"):
            value = self.tokens.next().value
            # `+\pm 3` and `\pm 3` are read, `-\pm 3` and `\pm\mp 3` are not.
            if "pm" in (sign, value) or "mp" in (sign, value):
                if sign not in (None, "+"):
                    raise UnreadableError("signs")
                sign = value
            # --42 may mean 42 or be a typing error.
            elif sign == value == "-":
                raise UnreadableError("two minus signs")
            else:
                sign = "-" if "-" in (sign, value) else "+"
        return sign

    def product(self, depth: int) -> Node:
        factors = [self.factor(depth)]
        while True:
            if self.tokens.take("symbol", "*") or self.tokens.take("command", "cdot", "times", "ast"):
                factors.append(self.signed_factor(depth))
            elif self.tokens.take("symbol", "/") or self.tokens.take("command", "div"):
                # 1/2x is (1/2)x: the sign of division takes one factor, as calculators do.
                factors.append(reciprocal(self.signed_factor(depth)))
            elif self.starts_factor():
                self._adjoin(factors, depth)
            else:
                return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))

    def signed_factor(self, depth: int) -> Node:
        sign = "-" if self.tokens.take("symbol", "-") else "+"
        return signed(sign, self.factor(depth))

    def _adjoin(self, factors: list[Node], depth: int) -> None:
        """Reads the next factor without a sign before it: part of a product, or the fraction of a mixed number."""
        # 2\frac12 is 5/2, x\frac12 and 2 \cdot 3\frac12 are products.
        may_be_mixed = len(factors) == 1 and is_whole(factors[0])
        # `2^6 3^2` and `5!4!`: a number after a power or factorial is a factor only if it has one too.
        if self.tokens.at("number") and _is_count(factors[-1]) and self.tokens.peek(1).value in ("^", "!"):
            factors.append(self.factor(depth))
            return
        if self.tokens.at("number"):
            if not may_be_mixed or not self._is_plain_fraction():
                # `9 9` may be 99, 81 or a list.
                raise UnreadableError("numbers side by side")
            top, _, bottom = self.tokens.next(), self.tokens.next(), self.tokens.next()
            factors[0] = mixed(factors[0], Fraction(int(top.value), int(bottom.value)))
            return
        is_fraction = self.tokens.at("command", "frac")
        factor = self.factor(depth)
        # 12\frac12\%: the percent sign was read with the fraction and belongs to the mixed number.
        inner = factor.first if factor.head in ("percent", "degree") else factor
        fraction = proper_fraction(inner) if is_fraction and may_be_mixed else None
        if fraction is not None:
            whole = mixed(factors[0], fraction)
            factors[0] = whole if inner is factor else Node(factor.head, (whole,))
        else:
            factors.append(factor)

    def _is_plain_fraction(self) -> bool:
        """True before `1/2` of a mixed number such as `2 1/2`."""
        top, slash, bottom = self.tokens.peek(), self.tokens.peek(1), self.tokens.peek(2)
        if not (top.follows_space and slash.value == "/" and bottom.kind == "number"):
            return False
        # `2 3/2` is not a mixed number: its fraction is above 1.
        return all(side.value.isdigit() and len(side.value) < 10 for side in (top, bottom)) and (
            int(top.value) < int(bottom.value)
        )

    def starts_factor(self) -> bool:
        token = self.tokens.peek()
        if token.kind == "symbol":
            # Inside bars another bar closes, so it begins no factor.
            return token.value in ("(", "{", "[") or (token.value == "|" and not self._open_bars)
        if token.kind == "command":
            return token.value in OPENING_COMMANDS
        return token.kind in ("number", "letter", "begin")

    def factor(self, depth: int) -> Node:
        node = self.base(depth + 1)
        while True:
            # First: the T of (1,2)^T is not an exponent.
            if node.head in ("sequence", "matrix") and self._takes_transposition():
                node = _transposed(node)
            elif self.tokens.take("symbol", "^"):
                node = self._raised(node, depth + 1)
                # x^2^3 has two readings, and LaTeX itself rejects it.
                if node.head == "power" and self.tokens.at("symbol", "^"):
                    raise UnreadableError("a power of a power without brackets")
            elif node.head == "power" and node.first.head == "symbol" and self.tokens.take("symbol", "_"):
                # v^2_0: the subscript belongs to the base, though it comes after the exponent.
                name = f"{node.first.first}_{self.subscript()}"
                node = Node("power", (Node("symbol", (name,)), node.parts[1]))
            elif is_whole(node) and self.tokens.take("symbol", "_"):
                # {204}_5: a numeral in braces. `_number` reads 204_5 itself.
                node = Node("based", (str(node.first), self.subscript()))
            elif self.tokens.take("symbol", "!"):
                node = Node("call", ("factorial", node))
            elif self.tokens.take("symbol", "%") or self.tokens.take("command", "%"):
                node = Node("percent", (node,))
            else:
                return node

    def _takes_transposition(self) -> bool:
        """Takes the mark of a transposed row: `^T`, `^{\\top}`."""
        has_brace = self.tokens.peek(1).value == "{"
        if not self.tokens.at("symbol", "^") or self.tokens.peek(1 + has_brace).value not in _TRANSPOSED:
            return False
        self.tokens.skip(2 + has_brace)
        if has_brace:
            self.tokens.close("}")
        return True

    def _raised(self, node: Node, depth: int) -> Node:
        # 90^\circ; with braces below.
        if self.tokens.take("command", "circ"):
            return Node("degree", (node,))
        if not self.tokens.take("symbol", "{"):
            sign = "-" if self.tokens.take("symbol", "-") else "+"
            # v^2_0 is v_0^2, not a numeral in base 0
            is_digit = self.tokens.at("number") and self.tokens.peek(1).value == "_"
            token = self.tokens.peek()
            if token.value.isdigit() and len(token.value) == 2 and self.tokens.peek(1).value == "^":
                # 2^63^2 is 2^6 3^2: without braces an exponent is one digit, where a second exponent follows
                self.tokens.skip(1)
                self.tokens.put_back(Token("number", token.value[1], False))
                return Node("power", (node, signed(sign, number(int(token.value[0])))))
            exponent = number(Fraction(self.tokens.next().value)) if is_digit else self.base(depth)
            return Node("power", (node, signed(sign, exponent)))
        if self.tokens.take("command", "circ"):
            node = Node("degree", (node,))
        else:
            node = Node("power", (node, self.sum(depth)))
        self.tokens.close("}")
        return node

    def base(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise UnreadableError("too deep")
        token = self.tokens.next()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "letter":
            return self._letter(token.value, depth)
        if token.kind == "command":
            return read_command(self, token.value, depth)
        if token.kind == "text":
            return Node("text", (token.value,))
        if token.kind == "begin" and token.value in _MATRICES:
            return self._matrix(token.value, depth)
        if token.kind == "symbol":
            node = self.bracket(token.value, depth)
            # {g}_{k} is g_k: braces around a name do not end it.
            return self.symbol(node.first) if node.head == "symbol" and token.value == "{" else node
        raise UnreadableError(f"unexpected {token.value[:40]!r}")

    def _number(self, token: Token) -> Node:
        text = token.value.replace(",", "")
        # Before Fraction() converts it.
        if len(text) > _MAX_NUMBER_CHARACTERS:
            raise UnreadableError("long number")
        if self.tokens.take("symbol", "_"):
            return Node("based", (text, self.subscript()))
        _, point, decimals = text.partition(".")
        return number(Fraction(text), len(decimals) if point else -1)

    def _letter(self, letter: str, depth: int) -> Node:
        if letter in _CALLED and self.tokens.take("symbol", "("):
            argument = self._read_listing(self, depth, True)
            self.tokens.close(")")
            return Node("call", ("unknown " + letter, argument))
        return self.symbol(letter)

    def symbol(self, name: str) -> Node:
        """A name with its primes and subscript."""
        while True:
            if self.tokens.take("symbol", "'"):
                name += "'"
            elif self.tokens.take("symbol", "_"):
                name += "_" + self.subscript()
            elif self.tokens.at("symbol", "^") and self._prime_length():
                self.tokens.skip(self._prime_length())
                name += "'"
            else:
                return Node("symbol", (name,))

    def _prime_length(self) -> int:
        following = [self.tokens.peek(ahead).value for ahead in (1, 2, 3)]
        # f^\prime and f^{\prime}.
        return 2 if following[0] == "prime" else 4 if following == ["{", "prime", "}"] else 0

    def subscript(self) -> str:
        if not self.tokens.take("symbol", "{"):
            return self.tokens.next().value
        name, level = [], 1
        while level:
            token = self.tokens.next()
            if token.kind == "end_of_text":
                raise UnreadableError("unclosed subscript")
            # A subscript is a name; its content is not read as mathematics.
            level += {"{": 1, "}": -1}.get(token.value, 0)
            name.append(token.value)
        return "".join(value for value in name if value not in "{}")

    def argument(self, depth: int) -> Node:
        r"""Reads `{...}`, or one token: of `\frac13` the digits are two arguments."""
        if self.tokens.take("symbol", "{"):
            node = self.sum(depth + 1)
            self.tokens.close("}")
            return node
        token = self.tokens.peek()
        # \frac13 and \sqrt23: LaTeX takes one digit as an argument.
        if token.kind == "number" and len(token.value) > 1 and token.value.isdigit():
            self.tokens.skip(1)
            self.tokens.put_back(Token("number", token.value[1:], False))
            return number(int(token.value[0]))
        return self.base(depth + 1)

    def bracket(self, opening: str, depth: int) -> Node:
        r"""Reads the content between `opening` and its partner; half-open intervals may mix `(` and `[`."""
        if opening == "|":
            self._open_bars += 1
            inner = self.sum(depth + 1)
            self._open_bars -= 1
            self.tokens.close("|")
            return Node("call", ("abs", inner))
        if opening in (r"\{", r"\langle"):
            # `\}` is the command `}` in tokens.
            closing = {r"\{": "}", r"\langle": "rangle"}[opening]
            if opening == r"\{" and self.tokens.take("command", "}"):
                return Node("set", ())
            inner = self._read_listing(self, depth + 1, True)
            self.tokens.close(closing)
            items = inner.parts if inner.head == "list" else (inner,)
            return Node("set", items) if opening == r"\{" else Node("sequence", ("(", ")", items))
        if opening not in ("(", "[", "{"):
            raise UnreadableError(f"unexpected {opening[:40]!r}")
        # (20,100): the tokeniser saw one number in groups of three; in brackets it is a point.
        if opening != "{" and self.tokens.peek(1).value in (")", "]") and _are_groups(self.tokens.peek()):
            items = tuple(number(int(group)) for group in self.tokens.next().value.split(","))
            return Node("sequence", (opening, self.tokens.next().value, items))
        # Inside brackets bars begin anew: |(|x|)|.
        bars, self._open_bars = self._open_bars, 0
        inner = self._read_listing(self, depth + 1, True)
        self._open_bars = bars
        closing = self.tokens.close("}") if opening == "{" else self.tokens.close(")", "]")
        if inner.head == "list" and opening != "{":
            return Node("sequence", (opening, closing, inner.parts))
        # A half-open interval may mix its brackets, a single value may not.
        if {"(": ")", "[": "]", "{": "}"}[opening] != closing:
            raise UnreadableError("brackets")
        return inner

    def _matrix(self, environment: str, depth: int) -> Node:
        rows: list[list[Node]] = [[]]
        while not self.tokens.take("end", environment):
            rows[-1].append(self.sum(depth + 1))
            if self.tokens.take("newline"):
                rows.append([])
            elif not self.tokens.take("symbol", "&") and not self.tokens.at("end", environment):
                raise UnreadableError("matrix")
        # A line break after the last row does not start a new row.
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) != 1:
            raise UnreadableError("matrix")
        entries = tuple(tuple(row) for row in rows)
        matrix = Node("matrix", entries)
        # A vmatrix is its determinant, which is work as an integral is.
        return Node("operator", ("det", matrix)) if environment == "vmatrix" else matrix


def _transposed(node: Node) -> Node:
    """Transposes a row or a bracketed list into a column; UnreadableError for larger matrices.

    A problem may ask for the transpose of a larger matrix, so it is not worked out here.
    """
    row = node.parts[2] if node.head == "sequence" else node.first
    if node.head == "matrix" and len(node.parts) > 1:
        raise UnreadableError("a transposed matrix")
    return Node("matrix", tuple((entry,) for entry in row))


def _are_groups(token: Token) -> bool:
    """True for digits that are several numbers when in brackets: (20,100) is a point, (1,000) a number."""
    return token.kind == "number" and "," in token.value and "." not in token.value and ",0" not in token.value


def _is_count(node: Node) -> bool:
    """True for a power and a factorial: next to them, a number with an exponent or a factorial can be a factor."""
    return node.head == "power" or (node.head == "call" and node.first == "factorial")


_SYMBOL_NAMES = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho "
    "varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega "
    "hbar ell zzz odot imath partial nabla aleph angle triangle"
)
_SYMBOLS = frozenset(_SYMBOL_NAMES.split())
_CONSTANTS = {"pi": "pi", "infty": "infinity"}
_FROM_BOTH_ENDS = {"angle": 3, "overline": 2, "widehat": 2, "overleftrightarrow": 2}
"""Figures with this many letters that are the same when read backwards: an angle with its vertex in the middle, a
segment, an arc, a line. Not a ray, and not a triangle, since its vertices may correspond to those of another one."""
_SAME_SIGNS = {"measuredangle": "angle"}
_CHOICES_OF_NUMBERS = frozenset(["max", "min", "gcd", "lcm"])
_UNKNOWN_FUNCTIONS = frozenset(["det", "dim", "deg", "arg", "Pr"])
_STRUCTURES = frozenset(["frac", "sqrt", "binom", "boxed", "sum", "prod", "int", "lim", "lfloor", "lceil"])
OPENING_COMMANDS = FUNCTIONS.union(
    _UNKNOWN_FUNCTIONS, _SYMBOLS, _CONSTANTS, _STRUCTURES, _CHOICES_OF_NUMBERS, NAME_SIGNS
)
"""The tokens that a factor may begin with."""


def read_command(reader, name: str, depth: int) -> Node:
    """Reads the arguments of the command just taken; UnreadableError for an unknown command."""
    if name in _CONSTANTS:
        return Node(_CONSTANTS[name], ())
    if name in FUNCTIONS:
        return _function(reader, name, depth)
    # \angle alone is a symbol; before letters it is the sign of a figure.
    if name in NAME_SIGNS and (_starts_name(reader) or name not in _SYMBOLS):
        return _figure(reader, name)
    if name in _SYMBOLS:
        return reader.symbol(name)
    if name in _UNKNOWN_FUNCTIONS:
        return Node("call", (f"unknown {name}", reader.factor(depth + 1)))
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
    # \sqrt[3]{x} is x^{1/3}, so that roots and powers meet in one form.
    degree = number(2)
    if reader.tokens.take("symbol", "["):
        degree = reader.sum(depth + 1)
        reader.tokens.close("]")
    return Node("power", (reader.argument(depth), reciprocal(degree)))


def _series(reader, name: str, depth: int) -> Node:
    r"""Reads `\sum_{k=0}^{n} ...` as a function of its bounds and terms; only its notation is known."""
    tokens = reader.tokens
    # \sum a_i and \sum_{i} a_i are names of a quantity.
    if not tokens.take("symbol", "_"):
        return Node("call", (f"unknown {name}", reader.product(depth + 1)))
    tokens.take("symbol", "{")
    index = tokens.next().value
    if not tokens.take("symbol", "="):
        tokens.take("symbol", "}")
        return Node("call", (f"unknown {name}", reader.product(depth + 1)))
    low = reader.sum(depth + 1)
    tokens.close("}")
    if not tokens.take("symbol", "^"):
        raise UnreadableError("a series without an end")
    return Node("call", (f"{name} over {index}", low, reader.argument(depth), reader.product(depth + 1)))


def _starts_name(reader) -> bool:
    """True before letters, or before a brace and letters."""
    return reader.tokens.peek(reader.tokens.at("symbol", "{")).kind in ("text", "letter")


def _figure(reader, sign: str) -> Node:
    r"""Reads `\angle ABC`, `\overline{AB}` as a name. Order counts, unless both ends are alike."""
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
    # \angle CBA is \angle ABC: the alphabetically first of the two readings represents both.
    if len(name) == _FROM_BOTH_ENDS.get(sign) and name.isalpha():
        name = min(name, name[::-1])
    return Node("text", (f"{sign} {name}",))


def _operator(reader, name: str, depth: int) -> Node:
    """Reads an integral or limit as a function of its bounds and the following terms; only its notation is known."""
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
    # \sin^{-1} x is arcsin; \sin^2 x the square of sin x.
    if exponent == number(-1) and name in ("sin", "cos", "tan"):
        name, exponent = "arc" + name, None
    if base is not None and name != "log":
        raise UnreadableError(f"a subscript of {name}")
    # \log_2 8 is \ln 8 / \ln 2: one kind of logarithm.
    node = Node("call", (name if base is None else "ln", _function_argument(reader, depth)))
    if base is not None:
        node = Node("multiply", (node, reciprocal(Node("call", ("ln", base)))))
    return node if exponent is None else Node("power", (node, exponent))


def _function_argument(reader, depth: int) -> Node:
    if reader.tokens.at("symbol", "(", "{", "|"):
        return reader.base(depth + 1)
    factors = [reader.signed_factor(depth + 1)]
    # \sin 2x \cos y ends before \cos; \sin x(y+1) before the bracket; \sin 2\pi x continues to x.
    while reader.starts_factor() and not (
        reader.tokens.at("symbol") or reader.tokens.at("number") or reader.tokens.at("command", *FUNCTIONS)
    ):
        factors.append(reader.factor(depth + 1))
    return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))
