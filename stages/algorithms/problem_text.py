"""A problem as words that do not depend on how it was typeset: equal words for equal problems.

`renamed_words` does not depend on the names of letters in formulas either: `$x+y$` and `$a+b$` are one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

_SIGNS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "—": "-",
        "×": "*",
        "·": "*",
        "⋅": "*",
        "÷": "/",
        "≤": "<=",
        "≥": ">=",
        "’": "'",
        "~": " ",
    }
    | {"π": " pi ", "∞": " infty ", "≠": " ne ", "√": " sqrt ", "°": " circ ", "…": " ... "}
    | {sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
    | {"∗": "*", "∕": "/", "∣": "|", "‘": "'", "ʼ": "'"}
)
_LOOKALIKES = str.maketrans(
    "АВЕЅІЈКМНОРСТУХҮԌԚԜаеѕіјорсухүһԁԛԝӏԍ"  # Cyrillic
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧοϲϳ"  # Greek, without the small letters that mean something in formulas
    "ՕՍՏօոսհցզ"  # Armenian
    "ᎪᏴᏟᎠᎬᏀᎻᎥᎫᏦᏞᎷΝᏢᏒᏚᎢᏙᎳᏃ"  # Cherokee
    "ıȷɑɡɩ",
    "ABESIJKMHOPCTYXYGQWaesijopcyxyhdqwlgABEZHIKMNOPTYXocjOUSonuhgqABCDEGHiJKLMNPRSTVWZijagi",
)
"""Letters that look like Latin ones: confusables.txt of Unicode Technical Standard 39."""
_SMALL_GREEK = str.maketrans("αγικνρσυ", "ayikvpou")
"""The same for small letters that stand in formulas too: only in words that are otherwise Latin."""
_MIXED_WORD = re.compile(r"\b(?=\w*[a-zA-Z]{2})(?=\w*[αγικνρσυ])[^\W\d_]{3,}\b")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LATEX_LAYOUT = re.compile(
    r"\\(?:begin|end)\{(?:align|aligned|equation|gather|gathered|multline|split|center)\*?\}"
    r"|[_^]\{\s*\}"
    r"|\\[hv]space\*?\{[^{}]*\}"
    r"|\\(?:left|right|displaystyle|textstyle|limits|q?quad|text|textbf|textit|textrm|mbox|mathrm|mathbf|operatorname"
    r"|[bB]igg?[lr]?|thinspace|ensuremath|[lr]vert(?=\W))(?![a-zA-Z])"
    r"|\\[][(),;:!> $]"
)
_LATEX_SIGNS = (
    (re.compile(r"\\[dtc]?frac(?![a-zA-Z])\s*([0-9])\s*([0-9])"), r"\\frac \1 \2"),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:times|cdot)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\(?:leq|leqslant|le)(?![a-zA-Z])"), "<="),
    (re.compile(r"\\(?:geq|geqslant|ge)(?![a-zA-Z])"), ">="),
    (re.compile(r"\\neq(?![a-zA-Z])"), r"\\ne"),
    (re.compile(r"\\[lr]vert(?![a-zA-Z])|\\\|"), "|"),
    (re.compile(r"\\degree(?![a-zA-Z])"), r"^\\circ"),
    (re.compile(r"\\[lcd]?dots(?![a-zA-Z])"), " "),
    (re.compile(r"\^(\{[^{}]+\}|\w)_(\{[^{}]+\}|\w)"), r"_\2^\1"),  # of a sum: the order of its bounds
)
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,(?:\\!)?)(?=\d{3}(?!\d))")
_CIRC = re.compile(r"\^\s*(?:\{\s*)?\\?circ")
_FORMULA = re.compile(
    r"(?<!\\)\$\$(?P<display>(?:[^$\\]|\\.)+)\$\$"
    r"|(?<![\\$])\$(?![\s$])(?P<dollars>(?:[^$\\]|\\.)+)(?<!\s)\$(?!\d)"  # `$5 and $3` is money
    r"|\\\((?P<round>(?:[^\\]|\\[^()])*)\\\)"
    r"|\\\[(?P<square>(?:[^\\]|\\[^\][])*)\\\]"
)
_IN_FORMULA = re.compile(
    r"\\(?:text|mbox|textbf|textit|textrm|mathrm|operatorname|begin|end)\*?\s*\{[^{}]*\}|\\(?P<greek>[A-Za-z]+)|(?P<letter>[A-Za-z])"
)
_BETWEEN = re.compile(r"(?<![\w'\\])(?:(?P<labels>[A-Z]{2,4})|(?P<letter>[b-zB-HJ-Z]))(?![\w'])")
"""Outside formulas: points such as ABC, and single letters but for the words `a`, `A` and `I`."""
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi "
    "varphi chi psi omega"
)
_GREEK = frozenset(_GREEK_NAMES.split())
_FIRST_LETTER = 0xE000
"""Of Unicode's private use area: what a renamed letter is written as."""
MOST_LETTERS = 256
"""Different letters that are told apart."""
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*|(?<=[\d)])!|[-+*/=<>^_%|()\[\]√]|[\ue000-\ue0ff]")


def normalise_problem(text: str) -> str:
    """The text's words, numbers and operators, lower case, joined by single blanks: equal for equal problems.

    Punctuation, LaTeX layout and delimiters, accents of typography and thousands separators go; operators and
    brackets stay (`3+4-2` is not `3-4+2`). "" for a text without any word.
    """
    return " ".join(problem_words(text))


@lru_cache(maxsize=16384)  # each rule asks for the same text again
def problem_words(text: str) -> tuple[str, ...]:
    """The words that `normalise_problem` joins; a number or an operator is a word."""
    return _words(text)


@lru_cache(maxsize=16384)
def renamed_words(text: str) -> tuple[str, ...]:
    """As `problem_words`, each letter of a formula as a word of its own: the first is U+E000, the next one U+E001.

    Names of points in the text (`triangle ABC`) and single letters count as formulas.
    """
    names: dict[str, str] = {}

    def rename(name: str) -> str:
        number = names.setdefault(name, chr(_FIRST_LETTER + min(len(names), MOST_LETTERS - 1)))
        return f" {number} "

    def in_formula(match: re.Match[str]) -> str:
        if match["letter"]:
            return rename(match["letter"])
        return rename(match["greek"]) if match["greek"] in _GREEK else match[0]

    def between(match: re.Match[str]) -> str:
        return "".join(map(rename, match["labels"] or match["letter"]))

    text, parts, end = fold_lookalikes(text), [], 0
    for formula in _FORMULA.finditer(text):
        parts.append(_BETWEEN.sub(between, text[end : formula.start()]))
        content = formula[formula.lastgroup or 0]
        parts.append(f" {_IN_FORMULA.sub(in_formula, content)} ")
        end = formula.end()
    return _words("".join([*parts, _BETWEEN.sub(between, text[end:])]))


def is_letter(word: str) -> bool:
    """True for a letter of a formula as `renamed_words` writes it."""
    return _FIRST_LETTER <= ord(word[0]) < _FIRST_LETTER + MOST_LETTERS


def fold_lookalikes(text: str) -> str:
    """Letters, digits and dashes that look like Latin ones as those; without characters that take no room."""
    if text.isascii():
        return text
    text = _NOT_ASCII.sub(lambda match: _folded(match[0]), text)
    return _MIXED_WORD.sub(lambda match: match[0].translate(_SMALL_GREEK), text)


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Cf" or "\ufe00" <= character <= "\ufe0f" or character == "\u034f":
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Pd":
        return "-"
    name = unicodedata.name(character, "")
    if name.startswith("LATIN LETTER SMALL CAPITAL ") and len(letter := name.rpartition(" ")[2]) == 1:
        return letter.lower()
    return character.translate(_LOOKALIKES)


def _words(text: str) -> tuple[str, ...]:
    text = fold_lookalikes(text).translate(_SIGNS)
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2044", "/")
    text = _THOUSANDS.sub("", text)
    for pattern, sign in _LATEX_SIGNS:
        text = pattern.sub(sign, text)
    text = _LATEX_LAYOUT.sub(" ", _CIRC.sub(" circ ", text))
    return tuple(_WORD.findall(text))


def renamed_again(words: Sequence[str]) -> str:
    """A run of `renamed_words` with its letters named by their order in the run, joined by blanks."""
    names: dict[str, str] = {}
    return " ".join(
        names.setdefault(word, chr(_FIRST_LETTER + len(names))) if is_letter(word) else word for word in words
    )


def word_runs(words: Sequence[str], length: int) -> set[str]:
    """Every run of `length` neighbouring words, joined by blanks; none for a shorter text."""
    return {" ".join(words[start : start + length]) for start in range(len(words) - length + 1)}
