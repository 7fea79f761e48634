"""A problem as words that do not depend on how it was typeset: equal words for equal problems."""

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
)
_LATEX_LAYOUT = re.compile(
    r"\\[hv]space\*?\{[^{}]*\}"
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
)
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,(?:\\!)?)(?=\d{3}(?!\d))")
_CIRC = re.compile(r"\^\s*(?:\{\s*)?\\?circ")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*|(?<=[\d)])!|[-+*/=<>^_%|()\[\]√]")


def normalise_problem(text: str) -> str:
    """The text's words, numbers and operators, lower case, joined by single blanks: equal for equal problems.

    Punctuation, LaTeX layout and delimiters, accents of typography and thousands separators go; operators and
    brackets stay (`3+4-2` is not `3-4+2`). "" for a text without any word.
    """
    return " ".join(problem_words(text))


@lru_cache(maxsize=16384)  # each rule asks for the same text again
def problem_words(text: str) -> tuple[str, ...]:
    """The words that `normalise_problem` joins; a number or an operator is a word."""
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).casefold().replace("\u2044", "/")
    text = _THOUSANDS.sub("", text)
    for pattern, sign in _LATEX_SIGNS:
        text = pattern.sub(sign, text)
    text = _LATEX_LAYOUT.sub(" ", _CIRC.sub(" circ ", text))
    return tuple(_WORD.findall(text))


def word_runs(words: Sequence[str], length: int) -> set[str]:
    """Every run of `length` neighbouring words, joined by blanks; none for a shorter text."""
    return {" ".join(words[start : start + length]) for start in range(len(words) - length + 1)}
