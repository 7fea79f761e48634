"""Splits an answer, LaTeX or plain, into tokens, and defines the nodes of the tree that `latex_parser` builds from
them.

Splitting is linear in the length of the text. Nothing is executed or expanded. Read `tokenise`, then `Node`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from stages.algorithms.answers.normalisation import TEXT_COMMANDS, one_spelling

MAX_TOKENS = 800
"""Longer answers are not expressions that a rule could read; this bounds all later work."""
_FUNCTION_NAMES = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp"
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
# Words that plain text uses for a command: `sqrt(2)`, `2*pi`.
_WORD_COMMANDS = frozenset(["sqrt", "pi", "infty", "alpha", "beta", "theta", "lambda", "bmod"])
_WORD_SPELLINGS = {"inf": "infty", "infinity": "infty", "mod": "bmod"}
_MAX_VARIABLE_LETTERS = 3
"""A longer run of letters is a word. Not capitals: LC under a root is a product, elsewhere a name."""
_SIGN_NAMES = "angle triangle measuredangle square odot overline widehat overleftrightarrow overrightarrow"
NAME_SIGNS = frozenset(_SIGN_NAMES.split())
"""Commands after which capitals name a figure."""


class UnreadableError(ValueError):
    """The text is not an answer that the rules here can read; another verifier may read it."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `kind` is number, letter, command, text, begin, end, newline or symbol."""

    kind: str
    value: str
    follows_space: bool


_SIGNS = str.maketrans({"±": r"\pm ", "∠": r"\angle ", "△": r"\triangle "})
# JSON that was escaped twice: `\\frac`. Not where a matrix has real line breaks.
_ESCAPED_TWICE = re.compile(r"\\\\(?=[a-zA-Z({\[\])}])")
# `and` and `or`, in text commands, bare, or as logical signs. Bare ones must not follow a letter, so that `for` stays
# whole.
_CONJUNCTION = re.compile(
    r"\\(?:text|mbox|textrm|mathrm)\s?\{[\s,]{0,9}(and|or)[\s,]{0,9}\}|(?<![A-Za-z\\])(and|or)(?=[^a-z])"
    r"|\\(?:land|wedge|(lor|vee))(?![a-zA-Z])"
)
_QUAD = re.compile(r"\\q?quad")
"""No other command starts with these; a letter right after them belongs to the next formula."""
# 0.1\overline{6}, 0.(39), 0.\dot3\dot9; lengths are bounded, since they become integers.
_REPEATING = re.compile(
    r"([0-9]{0,30})\.([0-9]{0,30})(?:\\(?:overline|bar|dot)\s?\{([0-9]{1,30})\}|\(([0-9]{1,30})\)"
    r"|((?:\\dot ?[0-9]){1,9}))"
)
_ENDLESS = re.compile(r"([0-9]{0,30})\.([0-9]{1,60})…")
# Up to six letters in an upright command: `\mathrm{d}` is d, `\mathrm{arcsin}` the function.
_ROMAN = re.compile(r"\\(?:mathrm|text|mathbf|operatorname|textbf|textit|mathit)\s?\{\s*([A-Za-z]{1,6})\s*\}")
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    rf"|\\(?:{TEXT_COMMANDS}|operatorname)\s?\{{(?P<text>[^{{}}]*)\}}"
    r"|\\begin\s?\{(?P<begin>[a-z]+)\*?\}(?:\{[lcr|]*\})?"
    r"|\\end\s?\{(?P<end>[a-z]+)\*?\}"
    r"|(?P<newline>\\\\)"
    r"|\\(?P<command>[a-zA-Z]+|[{}%$|&#_])"
    # A comma joins only groups of three digits: 1,000 is a number, in `1,2` the comma separates.
    r"|(?P<number>(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<word>[A-Za-z]+)"
    # Longer signs first; then any character, so that every text can be split.
    r"|(?P<symbol><=|>=|!=|\*\*|[^\s])"
)
_SYMBOL_COMMANDS = {"<=": "le", ">=": "ge", "!=": "ne", "<": "lt", ">": "gt", "≈": "approx", "∈": "in"}


def tokenise(answer: str) -> list[Token]:
    """Returns the tokens of `answer`; UnreadableError for too many tokens or a control character."""
    # The steps depend on each other: dots before `one_spelling` rewrites them, \quad before spaces collapse, fractions
    # before digits become tokens.
    text = _ENDLESS.sub(_endless_as_fraction, answer) if "…" in answer else answer
    text = text.translate(_SIGNS)
    if "\\begin" not in text:
        text = _ESCAPED_TWICE.sub(lambda _: "\\", text)
    text = one_spelling(_QUAD.sub(" ", text)).replace("$", " ")
    text = _REPEATING.sub(_as_fraction, text)
    text = _CONJUNCTION.sub(lambda match: r"\text{or}" if "or" in match.groups() or match[3] else r"\text{and}", text)
    text = _ROMAN.sub(_unwrap_roman, text)
    # After the spelling, which removes pasted zero-width characters.
    if not text.isprintable():
        raise UnreadableError("control characters")
    tokens: list[Token] = []
    follows_space = False
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "symbol"
        if kind == "space":
            follows_space = True
            continue
        tokens += _tokens_of(kind, match.group(kind), follows_space)
        follows_space = False
        if len(tokens) > MAX_TOKENS:
            raise UnreadableError("too long")
    return _with_names(tokens)


def _tokens_of(kind: str, value: str, follows_space: bool) -> list[Token]:
    if kind == "word":
        return _split_word(value, follows_space)
    if kind == "symbol" and value in _SYMBOL_COMMANDS:
        return [Token("command", _SYMBOL_COMMANDS[value], follows_space)]
    if kind == "symbol" and value == "**":
        return [Token("symbol", "^", follows_space)]
    if kind == "text":
        return [Token("text", " ".join(value.split()), follows_space)]
    return [Token(kind, value, follows_space)]


def _split_word(word: str, follows_space: bool) -> list[Token]:
    if word in FUNCTIONS or word in _WORD_COMMANDS:
        return [Token("command", word, follows_space)]
    if word in _WORD_SPELLINGS:
        return [Token("command", _WORD_SPELLINGS[word], follows_space)]
    # `width` is a word and `abc` a product; `LC` and `ABCD` are products under a root and names alone (`_with_names`).
    if len(word) > _MAX_VARIABLE_LETTERS and not word.isupper():
        return [Token("text", word, follows_space)]
    # Only the first letter follows the space before the word: `ab` is one run, `a b` two.
    letters = [Token("letter", letter, False) for letter in word]
    return [Token("letter", word[0], follows_space), *letters[1:]]


def _with_names(tokens: list[Token]) -> list[Token]:
    """Marks letters as text, in which order counts: a whole answer, capitals as a value or one of several answers, and
    the name of a figure. Among numbers and signs letters are factors."""
    # The whole answer is letters: `ABCD` is a name, `x y` a product, `ray AB` words.
    if len(tokens) > 1 and all(token.kind == "letter" for token in tokens):
        words = _letter_runs(tokens)
        if len(words) == len(tokens):
            is_name = all(map(str.isupper, words))
            return [Token("text", "".join(words), False)] if is_name else tokens
        if len(words) > 1 and not any(map(str.isupper, "".join(words))):
            return tokens
        return [Token("text", " ".join(words), False)]
    named: list[Token] = []
    at = 0
    while at < len(tokens):
        end = at
        # A run of capitals ends at a space: `AB CD` are two names.
        while end < len(tokens) and tokens[end].kind == "letter" and tokens[end].value.isupper():
            end += 1
            if end < len(tokens) and tokens[end].follows_space:
                break
        # A name stands between borders (`AB = 5`, `AB, CD`) or after the sign of a figure (`\angle ABC`). `2LC` has
        # neither.
        before, after = named[-1:], tokens[end : end + 1]
        is_called = bool(before) and before[0].kind == "command" and before[0].value in NAME_SIGNS
        if end - at > 1 and (is_called or (_is_border(before) and _is_border(after))):
            named.append(Token("text", "".join(token.value for token in tokens[at:end]), False))
            at = end
        else:
            named += tokens[at : max(end, at + 1)]
            at = max(end, at + 1)
    return named


def _letter_runs(tokens: list[Token]) -> list[str]:
    """Returns the runs of adjacent letters: `ray AB` is two runs, `x y` two of one letter."""
    runs: list[str] = []
    for token in tokens:
        if runs and not token.follows_space:
            runs[-1] += token.value
        else:
            runs.append(token.value)
    return runs


def _is_border(beside: list[Token]) -> bool:
    """True for tokens that separate answers or join a name to a value, and for the ends of the text."""
    if not beside:
        return True
    return beside[0].kind == "text" or (beside[0].kind == "symbol" and beside[0].value in (",", ";", "="))


def _endless_as_fraction(match: re.Match[str]) -> str:
    """Reads `0.333…` as 1/3, by the shortest period at the end of its digits; UnreadableError without one."""
    whole, digits = match.groups()
    # The shortest period that occurs twice at the end: 0.1666 is 0.1 and 6 repeated. 0.12… repeats nothing.
    for length in range(1, len(digits) // 2 + 1):
        period = digits[-length:]
        start = len(digits) - length
        while start >= length and digits[start - length : start] == period:
            start -= length
        if len(digits) - start > length:
            return _fraction_text(whole, digits[:start], period)
    raise UnreadableError("digits that go on, but not how")


def _as_fraction(match: re.Match[str]) -> str:
    r"""Reads a repeating decimal as a fraction: 0.1\overline{6} is 16 - 1 over 90."""
    whole, first, *period = match.groups()
    return _fraction_text(whole, first, "".join(filter(str.isdigit, next(filter(None, period)))))


def _fraction_text(whole: str, first: str, period: str) -> str:
    # 0.1666... is (16 - 1)/90: all digits up to the end of the first period, minus those before it, over nines and
    # zeros.
    top = int(whole + first + period or 0) - int(whole + first or 0)
    return rf"\frac{{{top}}}{{{'9' * len(period) + '0' * len(first)}}}"


def _unwrap_roman(match: re.Match[str]) -> str:
    """Reads an upright letter as that letter, and an upright function name as the function; other words stay text."""
    word = match.group(1)
    if len(word) == 1:
        return f" {word} "
    # `\mathrm{kg}` stays text, which may be a unit or a name.
    return rf"\{word} " if word in FUNCTIONS else match.group()


class TokenStream:
    """Tokens and a position among them."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0

    def peek(self, ahead: int = 0) -> Token:
        """Returns the token `ahead` places from here; its kind is `end_of_text` after the last token."""
        position = self._position + ahead
        return self._tokens[position] if position < len(self._tokens) else _END

    def next(self) -> Token:
        """Returns the token here and moves on."""
        token = self.peek()
        self._position += 1
        return token

    def skip(self, count: int) -> None:
        """Moves on by `count` tokens."""
        self._position += count

    def put_back(self, token: Token) -> None:
        """Puts `token` back as the next one: the rest of a token that was taken in part."""
        # The digits of \frac12 are one number: its 1 is taken, and the 2 is put back.
        self._position -= 1
        self._tokens[self._position] = token

    def at(self, kind: str, *values: str) -> bool:
        """True when the next token is of `kind` and, where given, has one of `values`."""
        token = self.peek()
        return token.kind == kind and (not values or token.value in values)

    def take(self, kind: str, *values: str) -> bool:
        """As `at`; moves on if it is true."""
        is_there = self.at(kind, *values)
        self._position += is_there
        return is_there

    def close(self, *values: str) -> str:
        """Takes one of the closing delimiters `values`; UnreadableError when none is there."""
        if self.peek().kind in ("symbol", "command") and self.peek().value in values:
            return self.next().value
        raise UnreadableError(f"no {' or '.join(values)}")

    def expect_end(self) -> None:
        """UnreadableError when tokens are left over."""
        if self._position < len(self._tokens):
            raise UnreadableError(f"unexpected {self.peek().value[:40]!r}")


_END = Token("end_of_text", "", False)


# ---------------------------------------------------------------------------------------------------- the tree
@dataclass(frozen=True, slots=True)
class Node:
    """A part of an answer. `head` says what it is; `parts` are nodes, or for leaves numbers and names."""

    head: str
    parts: tuple

    @property
    def first(self):
        """The first part: the value of a number, the base of a power, the name of a call."""
        return self.parts[0]

    @property
    def children(self) -> list[Node]:
        """The parts that are nodes, without those inside a tuple."""
        return [part for part in self.parts if isinstance(part, Node)]

    @property
    def all_children(self) -> list[Node]:
        """The children and the nodes inside tuples: items of relations and sequences, entries of matrices."""
        parts = [part for entry in self.parts for part in (entry if isinstance(entry, tuple) else (entry,))]
        return [part for part in parts if isinstance(part, Node)]

    def map_children(self, change: Callable[[Node], Node]) -> Node:
        """Returns the node with each of its children changed."""
        return Node(self.head, tuple(change(part) if isinstance(part, Node) else part for part in self.parts))


def number(value: Fraction | int, places: int = -1) -> Node:
    """An exact number, or with `places` >= 0 a decimal written with that many decimal places."""
    return Node("number", (Fraction(value), places))


def reciprocal(node: Node) -> Node:
    """Returns one over `node`."""
    return Node("power", (node, number(-1)))


def is_reciprocal(node: Node) -> bool:
    """True for the result of `reciprocal`: a denominator."""
    return node.head == "power" and node.parts[1] == number(-1)


def substituted(node: Node, name: str, value: Node) -> Node:
    """Returns the tree with `value` for each symbol `name`."""
    if node.head == "symbol":
        return value if node.first == name else node
    return node.map_children(lambda part: substituted(part, name, value))


def holds_matrix(node: Node) -> bool:
    """True where the tree contains a matrix."""
    return node.head == "matrix" or any(map(holds_matrix, node.children))


def signed(sign: str, node: Node) -> Node:
    """Returns `node` after one of the signs `+`, `-`, `pm`, `mp`."""
    if sign == "+":
        return node
    if sign == "-":
        # A number takes the sign itself, so that -1 and the product of -1 and 1 are one tree.
        if node.head == "number":
            return Node("number", (-node.first, node.parts[1]))
        # The digits of a numeral are text.
        if node.head == "based":
            return Node("based", (f"-{node.first}", node.parts[1]))
        return Node("multiply", (number(-1), node))
    return Node("plusminus", (sign, node))


def is_whole(node: Node) -> bool:
    """True for a number written without a point."""
    return node.head == "number" and node.parts[1] < 0 and node.first.denominator == 1


def mixed(whole: Node, fraction: Fraction) -> Node:
    """Returns the mixed number of a whole number and a proper fraction; a sign applies to both."""
    value = whole.first + fraction if whole.first >= 0 else whole.first - fraction
    return number(value)


def proper_fraction(node: Node) -> Fraction | None:
    """Returns the value of a node that is a fraction of two whole numbers between 0 and 1."""
    if node.head != "multiply" or len(node.parts) != 2 or node.parts[1].head != "power":
        return None
    top, bottom = node.first, node.parts[1].first
    if is_whole(top) and is_whole(bottom) and 0 <= top.first < bottom.first:
        return top.first / bottom.first
    return None
