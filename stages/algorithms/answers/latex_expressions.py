r"""Reads expressions out of tokens: sums, products, powers, roots, functions, brackets, matrices.

Time and memory are bounded whatever the text: every call takes a token, there are at most `MAX_TOKENS` of them, and
levels are counted. What is not in the subset known here is an UnreadableError, never a guess.

Readings, where notation is ambiguous:
- `2\frac{1}{2}` and `2 1/2` are mixed numbers. `10^35` is the power with exponent 35, `2^63^2` is `2^6 3^2`.
- `x(y+1)` is a product, but `f(x)`, for f, g, h, F, G, H, is a call that nothing is known about.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from stages.algorithms.answers.latex_commands import OPENING_COMMANDS, read_command
from stages.algorithms.answers.latex_tokens import Token, TokenStream, UnreadableError
from stages.algorithms.answers.latex_tree import (
    Node,
    is_whole,
    mixed,
    number,
    proper_fraction,
    reciprocal,
    signed,
)
from stages.algorithms.answers.matrices import determinant, transposed

MAX_DEPTH = 24
_MAX_NUMBER_CHARACTERS = 400
_MATRICES = frozenset(["pmatrix", "bmatrix", "matrix", "array", "smallmatrix", "vmatrix"])
_CALLED = frozenset("fghFGH")
_TRANSPOSED = frozenset(["T", "top", "intercal"])


class ExpressionReader:
    """Reads expressions from where `tokens` stands; `read_listing` reads what brackets hold, which may be several."""

    def __init__(
        self, tokens: TokenStream, read_listing: Callable[[ExpressionReader, int, bool], Node]
    ) -> None:
        self.tokens = tokens
        self._read_listing = read_listing
        self._open_bars = 0

    def sum(self, depth: int) -> Node:
        """Terms with signs before them."""
        terms = []
        sign = self._sign() or "+"
        while True:
            terms.append(signed(sign, self.product(depth)))
            following = self._sign()
            if following is None:
                return terms[0] if len(terms) == 1 else Node("add", tuple(terms))
            sign = following

    def _sign(self) -> str | None:
        """The sign before a term, several multiplied; None where there is none."""
        found = None
        while self.tokens.at("symbol", "+", "-") or self.tokens.at("command", "pm", "mp"):
            value = self.tokens.next().value
            if "pm" in (found, value) or "mp" in (found, value):
                if found not in (None, "+"):
                    raise UnreadableError("signs")
                found = value
            elif found == value == "-":
                raise UnreadableError("two minus signs")
            else:
                found = "-" if "-" in (found, value) else "+"
        return found

    def product(self, depth: int) -> Node:
        factors = [self.factor(depth)]
        while True:
            if self.tokens.take("symbol", "*") or self.tokens.take("command", "cdot", "times", "ast"):
                factors.append(self.signed_factor(depth))
            elif self.tokens.take("symbol", "/") or self.tokens.take("command", "div"):
                factors.append(reciprocal(self.signed_factor(depth)))
            elif self.starts_factor():
                self._adjoin(factors, depth)
            else:
                return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))

    def signed_factor(self, depth: int) -> Node:
        sign = "-" if self.tokens.take("symbol", "-") else "+"
        return signed(sign, self.factor(depth))

    def _adjoin(self, factors: list[Node], depth: int) -> None:
        """The next factor where no sign stands between: a product, or the fraction of a mixed number."""
        may_be_mixed = len(factors) == 1 and is_whole(factors[0])
        if self.tokens.at("number") and _is_count(factors[-1]) and self.tokens.peek(1).value in ("^", "!"):
            factors.append(self.factor(depth))
            return
        if self.tokens.at("number"):
            if not may_be_mixed or not self._is_plain_fraction():
                raise UnreadableError("numbers side by side")
            top, _, bottom = self.tokens.next(), self.tokens.next(), self.tokens.next()
            factors[0] = mixed(factors[0], Fraction(int(top.value), int(bottom.value)))
            return
        is_fraction = self.tokens.at("command", "frac")
        factor = self.factor(depth)
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
        return all(side.value.isdigit() and len(side.value) < 10 for side in (top, bottom)) and (
            int(top.value) < int(bottom.value)
        )

    def starts_factor(self) -> bool:
        token = self.tokens.peek()
        if token.kind == "symbol":
            return token.value in ("(", "{", "[") or (token.value == "|" and not self._open_bars)
        if token.kind == "command":
            return token.value in OPENING_COMMANDS
        return token.kind in ("number", "letter", "begin")

    def factor(self, depth: int) -> Node:
        node = self.base(depth + 1)
        while True:
            if node.head in ("sequence", "matrix") and self._takes_transposition():
                node = transposed(node)
            elif self.tokens.take("symbol", "^"):
                node = self._raised(node, depth + 1)
                if node.head == "power" and self.tokens.at("symbol", "^"):
                    raise UnreadableError("a power of a power without brackets")
            elif node.head == "power" and node.first.head == "symbol" and self.tokens.take("symbol", "_"):
                name = f"{node.first.first}_{self.subscript()}"
                node = Node("power", (Node("symbol", (name,)), node.parts[1]))
            elif is_whole(node) and self.tokens.take("symbol", "_"):
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
        if self.tokens.take("command", "circ"):
            return Node("degree", (node,))
        if not self.tokens.take("symbol", "{"):
            sign = "-" if self.tokens.take("symbol", "-") else "+"
            # v^2_0 is v_0^2, no numeral in base 0
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
            return self.symbol(node.first) if node.head == "symbol" and token.value == "{" else node
        raise UnreadableError(f"unexpected {token.value[:40]!r}")

    def _number(self, token: Token) -> Node:
        text = token.value.replace(",", "")
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
        return 2 if following[0] == "prime" else 4 if following == ["{", "prime", "}"] else 0

    def subscript(self) -> str:
        if not self.tokens.take("symbol", "{"):
            return self.tokens.next().value
        name, level = [], 1
        while level:
            token = self.tokens.next()
            if token.kind == "end_of_text":
                raise UnreadableError("unclosed subscript")
            level += {"{": 1, "}": -1}.get(token.value, 0)
            name.append(token.value)
        return "".join(value for value in name if value not in "{}")

    def argument(self, depth: int) -> Node:
        r"""`{...}`, or one token: of `\frac13` the digits are two arguments."""
        if self.tokens.take("symbol", "{"):
            node = self.sum(depth + 1)
            self.tokens.close("}")
            return node
        token = self.tokens.peek()
        if token.kind == "number" and len(token.value) > 1 and token.value.isdigit():
            self.tokens.skip(1)
            self.tokens.put_back(Token("number", token.value[1:], False))
            return number(int(token.value[0]))
        return self.base(depth + 1)

    def bracket(self, opening: str, depth: int) -> Node:
        r"""What stands between `opening` and its partner; half-open intervals may mix `(` and `[`."""
        if opening == "|":
            self._open_bars += 1
            inner = self.sum(depth + 1)
            self._open_bars -= 1
            self.tokens.close("|")
            return Node("call", ("abs", inner))
        if opening in (r"\{", r"\langle"):
            closing = {r"\{": "}", r"\langle": "rangle"}[opening]
            if opening == r"\{" and self.tokens.take("command", "}"):
                return Node("set", ())
            inner = self._read_listing(self, depth + 1, True)
            self.tokens.close(closing)
            items = inner.parts if inner.head == "list" else (inner,)
            return Node("set", items) if opening == r"\{" else Node("sequence", ("(", ")", items))
        if opening not in ("(", "[", "{"):
            raise UnreadableError(f"unexpected {opening[:40]!r}")
        if opening != "{" and self.tokens.peek(1).value in (")", "]") and _are_groups(self.tokens.peek()):
            items = tuple(number(int(group)) for group in self.tokens.next().value.split(","))
            return Node("sequence", (opening, self.tokens.next().value, items))
        bars, self._open_bars = self._open_bars, 0
        inner = self._read_listing(self, depth + 1, True)
        self._open_bars = bars
        closing = self.tokens.close("}") if opening == "{" else self.tokens.close(")", "]")
        if inner.head == "list" and opening != "{":
            return Node("sequence", (opening, closing, inner.parts))
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
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) != 1:
            raise UnreadableError("matrix")
        entries = tuple(tuple(row) for row in rows)
        return determinant(entries) if environment == "vmatrix" else Node("matrix", entries)


def _are_groups(token: Token) -> bool:
    """True for digits that brackets make several numbers: (20,100) is a point, (1,000) a number."""
    return (
        token.kind == "number" and "," in token.value and "." not in token.value and ",0" not in token.value
    )


def _is_count(node: Node) -> bool:
    """True for a power and a factorial: a number with an exponent or a factorial may stand beside it, as a factor."""
    return node.head == "power" or (node.head == "call" and node.first == "factorial")
