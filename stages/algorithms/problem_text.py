"""Reads a problem as words, independent of typesetting, and as quantities, independent of notation.

Equal problems have equal `problem_words`. `renamed_words` also ignores the names of letters in formulas:
`$x+y$` and `$a+b$` are equal.

`half an hour`, `30 minutes` and `0.5 hours` are one quantity. A rewording that keeps the problem keeps its quantities,
and with them the counted or measured things. `quantities` reads digits, number words, fractions in words and signs,
dozens and the like, `twice` and percents. It also reads a few units that are written in two ways: cents and dollars,
hours and minutes, feet and inches. Deviation from arithmetic: a 1 is left out, because `a`, `one` and no word at all
are used alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "≤": "<=", "≥": ">=", "’": "'", "~": " "}
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
"""The same for small letters that also occur in formulas: only in words that are otherwise Latin."""
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
"""Outside formulas: points such as ABC, and single letters except for the words `a`, `A` and `I`."""
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau phi "
    "varphi chi psi omega"
)
_GREEK = frozenset(_GREEK_NAMES.split())
# Ordinary text has none of these characters, and the word pattern below keeps each as a word.
_FIRST_LETTER = 0xE000
"""First character of Unicode's private use area that renamed letters are written in."""
MOST_LETTERS = 256
"""Number of letters that are distinguished."""
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*|(?<=[\d)])!|[-+*/=<>^_%|()\[\]√]|[\ue000-\ue0ff]")


def normalise_problem(text: str) -> str:
    """Returns the text's words, numbers and operators in lower case, joined by single blanks: equal for equal problems.

    Punctuation, LaTeX layout and delimiters, typographic accents and thousands separators are removed; operators and
    brackets stay (`3+4-2` is not `3-4+2`). "" for a text without any word.
    """
    return " ".join(problem_words(text))


@lru_cache(maxsize=16384)  # each rule calls this with the same text
def problem_words(text: str) -> tuple[str, ...]:
    """Returns the words that `normalise_problem` joins; a number or an operator is a word."""
    return _words(text)


@lru_cache(maxsize=16384)
def renamed_words(text: str) -> tuple[str, ...]:
    """As `problem_words`, with each letter of a formula as a separate word: the first is U+E000, the next one U+E001.

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
    """Writes letters, digits and dashes that look like Latin ones as those; drops characters of no width."""
    if text.isascii():
        return text
    text = _NOT_ASCII.sub(lambda match: _folded(match[0]), text)
    return _MIXED_WORD.sub(lambda match: match[0].translate(_SMALL_GREEK), text)


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    category = unicodedata.category(character)
    # Zero-width and formatting characters, variation selectors and the grapheme joiner: a copy may be disguised by
    # them.
    if category == "Cf" or "\ufe00" <= character <= "\ufe0f" or character == "\u034f":
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category == "Pd":
        return "-"
    name = unicodedata.name(character, "")
    # Small capitals have no entry in the table of confusables.
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
    """Names the letters of a run of `renamed_words` by their order in the run; joined by blanks."""
    names: dict[str, str] = {}
    return " ".join(
        names.setdefault(word, chr(_FIRST_LETTER + len(names))) if is_letter(word) else word for word in words
    )


def word_runs(words: Sequence[str], length: int) -> set[str]:
    """Returns every run of `length` neighbouring words, joined by blanks; none for a shorter text."""
    return {" ".join(words[start : start + length]) for start in range(len(words) - length + 1)}


# -------------------------------------------------------------------------------------------------- quantities
_UP_TO_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
)
_TENS = "thirty forty fifty sixty seventy eighty ninety"
CARDINALS = {word: value for value, word in enumerate(_UP_TO_TWENTY.split())} | {
    word: 10 * tens for tens, word in enumerate(_TENS.split(), start=3)
}
_UP_TO_TENTH = "first second third fourth fifth sixth seventh eighth ninth tenth"
_ORDINALS = {word: value for value, word in enumerate(_UP_TO_TENTH.split(), start=1)}
# fmt: off
_PARTS = {
    "half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourth": 4, "fourths": 4,
    "fifth": 5, "fifths": 5, "sixth": 6, "sixths": 6, "seventh": 7, "eighth": 8, "eighths": 8, "ninth": 9,
    "tenth": 10, "tenths": 10,
}
# fmt: on
_GROUPS = {"hundred": 100, "thousand": 1000, "million": 10**6, "dozen": 12, "dozens": 12, "decade": 10, "decades": 10}
_MULTIPLES = {"twice": 2, "double": 2, "doubled": 2, "thrice": 3, "triple": 3}
# Factor into the smaller unit, for pairs that problems use side by side. Minutes, inches, metres and grams are 1 and
# not listed; cents become dollars, because amounts are written in dollars.
_UNITS = {
    **dict.fromkeys(("%", "percent", "cent", "cents"), 0.01),
    **dict.fromkeys(("hour", "hours"), 60),
    **dict.fromkeys(("foot", "feet"), 12),
    **dict.fromkeys(("yard", "yards"), 36),
    **dict.fromkeys(("km", "kilometer", "kilometers", "kg", "kilogram", "kilograms"), 1000),
}
_ORDINAL_ENDING = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b", re.IGNORECASE)
# `half of an hour`, `3-inch`: skipped between a number and its unit.
_INSIDE_QUANTITY = frozenset(["-", "a", "an", "of", "the"])
WORDS_TO_NOUN = 4
"""Words after a quantity that are searched for the one that says what it counts."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a text."""

    value: float
    """In the smaller unit where two are common: minutes, inches, dollars; a percentage as a fraction."""
    following: tuple[str, ...]
    """The words after it, up to the next number."""


def without_ordinal_endings(text: str) -> str:
    """Writes `3rd` as `3`, so that it becomes one word."""
    return _ORDINAL_ENDING.sub("", text)


def quantities(words: Sequence[str]) -> list[Quantity]:
    """Returns the quantities of a normalised text in order; 1 is left out."""
    result: list[Quantity] = []
    place = 0
    while place < len(words):
        value, after = _value(words, place)
        if value is None:
            place += 1
            continue
        unit = after
        while unit < len(words) and words[unit] in _INSIDE_QUANTITY:
            unit += 1
        if unit < len(words):
            value *= _UNITS.get(words[unit], 1)
        # 1/3 as a fraction and as 0.3333 are one quantity.
        value = round(value, 4)
        # See the deviation above: `a`, `one` and no word at all are used alike.
        if value != 1:
            result.append(Quantity(value, tuple(_up_to_number(words[unit : unit + WORDS_TO_NOUN]))))
        # After the number: the words after it are read again.
        place = after
    return result


def _up_to_number(words: Sequence[str]) -> list[str]:
    end = next((i for i, word in enumerate(words) if _cardinal(word) is not None), len(words))
    return list(words[:end])


def _cardinal(word: str) -> float | None:
    if word[0].isdigit():
        return float(word)
    return float(CARDINALS[word]) if word in CARDINALS else None


def _value(words: Sequence[str], place: int) -> tuple[float | None, int]:
    """Returns the number that begins at `place`, None where none does, and the place after it."""
    word, after = words[place], place + 1
    number = _cardinal(word)
    if number is not None:
        return _counted(words, number, after)
    following = words[after] if after < len(words) else ""
    # `a third of`; without the article `third` is an ordinal.
    if word in ("a", "an") and following in _PARTS:
        return 1 / _PARTS[following], after + 1
    if word == "half":
        after += following in ("a", "an", "of")
        group = _GROUPS.get(words[after], 0) if after < len(words) else 0
        return (0.5 * group, after + 1) if group else (0.5, after)
    if word in ("quarter", "quarters"):
        return 0.25, after
    known = _MULTIPLES.get(word) or _ORDINALS.get(word) or _GROUPS.get(word)
    return (float(known), after) if known else (None, after)


def _counted(words: Sequence[str], number: float, after: int) -> tuple[float, int]:
    """Reads a cardinal with its continuation: `/ 4`, `quarters`, `and a half`, `dozen`."""
    following = [*words[after : after + 3], "", "", ""]
    divisor = _cardinal(following[1]) if following[0] == "/" and following[1] else None
    if divisor:
        number, after = number / divisor, after + 2
    # `two thirds`, `one half`; but `3 third graders` are three.
    elif following[0] in _PARTS and (following[0].endswith("s") or following[0] == "half" or number == 1):
        number, after = number / _PARTS[following[0]], after + 1
    elif following[:2] == ["and", "a"] and following[2] in _PARTS:
        number, after = number + 1 / _PARTS[following[2]], after + 3
    # `two hundred thousand` multiplies twice.
    while after < len(words) and words[after] in _GROUPS:
        number, after = number * _GROUPS[words[after]], after + 1
    return number, after
