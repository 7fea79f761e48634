r"""Rewrites the text of an answer in one spelling, and reads the text as a number where it is one.

Every step keeps the meaning, so two answers with the same canonical form are the same answer. In particular
Unicode is not folded (NFKC would turn `5²` into `52`), and a space between two word characters stays.
`one_spelling` keeps text commands, `clean` drops them, `compact` also drops spaces. Numbers are the second half.

Source of the list of steps: the normaliser of Hendrycks et al., MATH (arXiv 2103.03874, math_equivalence.py), without
its lossy ones (dropping units, `0.5` into a fraction, a leading `k =`).

Numbers are read exactly, as people write answers: `-7`, `1,234.50`, `1 000`, `\$5`, `28\%`, `3/4`, `\frac{3}{4}`,
`7.8\times 10^2`, `90^\circ`, of any length. Anything else, including `3\frac{1}{2}` and `2,74`, is not a number here:
it is left to a verifier that can weigh readings.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from stages.algorithms.answers.verdicts import Leniency

# fmt: off
_CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "\u2010": "-", "\u2011": "-", "＋": "+", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
        "∞": r"\infty ", "π": r"\pi ", "×": r"\times ", "·": r"\cdot ", "°": r"^\circ", "º": r"^\circ",
        "˚": r"^\circ", "⁄": "/", "∕": "/", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "√": r"\sqrt ",
        "∛": r"\sqrt[3] ", "∜": r"\sqrt[4] ", "∅": r"\emptyset ", "’": "'", "\u200b": "", "\ufeff": "", "．": ".",
        "，": ",", "＝": "=", "（": "(", "）": ")", "′": "'", "″": "''",
    }
    # The fractions of Latin-1 and of the block Number Forms, by Unicode's own decomposition: `1⁄` of ⅟ has no bottom.
    | {
        sign: rf"\frac{{{top}}}{{{bottom}}}" if bottom else f"{top}/"
        for sign in map(chr, (*range(0xBC, 0xBF), *range(0x2150, 0x2190)))
        if unicodedata.decomposition(sign).startswith("<fraction>")
        for top, _, bottom in [unicodedata.normalize("NFKD", sign).partition("⁄")]
    }
    | {chr(first + digit): str(digit) for first in (0xFF10, 0x0660, 0x06F0, 0x0966) for digit in range(10)}
)
# fmt: on
"""Includes digits of Arabic, Persian and Hindi, and full-width digits."""
# Raised digits become an exponent: 10¹³ is 10^{13}, not 1013.
_RAISED = re.compile("[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_DIGITS = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", "+-01234567890123456789")
_STEPS: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (key, re.compile(pattern), replacement)
    for key, pattern, replacement in (
        # 11,\! 111: the space belongs to the digits. First, because `\!` alone goes below.
        (r"\!", r",\\!\s?", ","),
        # 10{,}000 is how LaTeX writes a comma without space.
        (",", r" ?\{ ?, ?\}", ","),
        (":", r" ?\{ ?: ?\}", ":"),
        # Before the steps for brackets: \left( and \bigl( are plain brackets.
        ("\\", r"\\(?:left|right|displaystyle|bigl?|bigr|Bigl?|Bigr|limits)(?![a-zA-Z])", ""),
        (r"quad", r"\\q?quad(?![a-zA-Z])", " "),
        # A thin space, unless the backslash is the second one of a line break.
        ("\\", r"(?<!\\)\\[,;: ]", " "),
        (r"\!", r"(?<!\\)\\!", ""),
        (r"\math", r"\\(math(?:rm|bf|it|sf)) ([a-zA-Z])(?![a-zA-Z])", r"\\\1{\2}"),
        # Sizes of fractions and binomials first: the steps for \frac and \binom below then see one name.
        ("frac", r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        ("binom", r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (
            # {}_{11}C_2 and ^{11}C_5, but not the C of `x^2C_1`: no letter or digit may stand before it.
            "C_",
            r"(?<![0-9A-Za-z)\]}])(?:\{ ?\})?[_^]\{? ?([0-9a-z]{1,9}) ?\}? ?C_\{? ?([0-9a-z]{1,9}) ?\}?",
            r"\\binom{\1}{\2}",
        ),
        (r"\leq", r"\\leq(?:slant)?(?![a-zA-Z])", r"\\le"),
        (r"\geq", r"\\geq(?:slant)?(?![a-zA-Z])", r"\\ge"),
        (r"\neq", r"\\neq(?![a-zA-Z])", r"\\ne"),
        ("dots", r"\\(?:[lc]?dots|dots[bc])(?![a-zA-Z])", r"\\ldots"),
        (r"\colon", r"\\colon(?![a-zA-Z])", ":"),
        (r"\circ", r"\^\{?\\circ(?![a-zA-Z])\}?", r"^\\circ"),
        # After \circ: both end as ^\circ.
        (r"\degree", r"(?:\^\{)?\\degree(?![a-zA-Z])\}?", r"^\\circ"),
        # {1 \over 2}; at most 200 characters on each side, as this runs on raw text.
        (r"\over", r"\{([^{}]{1,200}?)\\over(?![a-zA-Z])([^{}]{1,200})\}", r"\\frac{\1}{\2}"),
        # \frac12 and \frac1{2} get both braces; nested braces are left to the parser.
        (r"\frac", r"\\frac\s?(?:([0-9])|\{([^{}]*)\})\s?(?:([0-9])|\{([^{}]*)\})", r"\\frac{\1\2}{\3\4}"),
        ("binom", r"\\binom\s?(?:([0-9])|\{([^{}]*)\})\s?(?:([0-9])|\{([^{}]*)\})", r"\\binom{\1\2}{\3\4}"),
        # \sqrt3 and \sqrt x; two digits must follow a space, because \sqrt12 is \sqrt{1}2 in LaTeX and stays unchanged.
        (r"\sqrt", r"\\sqrt(\[[34]\])?\s?([0-9a-zA-Z])(?![0-9])", r"\\sqrt\1{\2}"),
        (r"\sqrt", r"\\sqrt(\[[34]\])? ([0-9]{2,40})", r"\\sqrt\1{\2}"),
        # 1 \text{ to } 11 is the ratio 1:11; without \text it may be a range.
        (" to", r"([0-9]) ?\\text ?\{ ?to ?\} ?([0-9])", r"\1:\2"),
        ("{base", r"_\{\\text ?\{ ?base ?(?:\} ?([0-9]{1,2})|([0-9]{1,2}) ?\}) ?\}", r"_{\1\2}"),
        ("(base", r"(?<=[0-9A-Z]) ?(?:\\text ?\{ ?)?\(base ([0-9]{1,2})\)(?: ?\})?", r"_{\1}"),
        (
            # \mod{7}, \bmod 7 and \pmod 7 in a congruence: compared only as texts (`latex_parser` reads none).
            r"\equiv",
            r" ?(?:\\p?mod(?![a-z]) ?(?:\{ ?([^{}]{1,40}) ?\}|([0-9]{1,9}|[a-z]))|\( ?\\b?mod ([^()]{1,40})\))",
            r" \\pmod{\1\2\3}",
        ),
        # Unit vectors: \hat{i} and \mathbf{i} are the same.
        ("\\hat", r"\\hat ?\{? ?\\?([ijk])(?:math)?(?![a-z]) ?\}?", r"\\mathbf{\1}"),
        (r"\SI{", r"\\SI\{([^{}]{1,60})\} ?\{([^{}]{1,60})\}", r"\1\\text{ \2}"),
        (r"\qty{", r"\\qty\{([^{}]{1,60})\} ?\{([^{}]{1,60})\}", r"\1\\text{ \2}"),
    )
)
"""A text that must occur before the pattern is searched, the pattern, and its replacement."""
# A printed float, 1e-05: digits before the e and after it. In `2e+3x` and `2e+3^2` the e is Euler's number.
_PRINTED_FLOAT = re.compile(
    r"(?<![\w.^\\])([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE]([+-]?)([0-9]{1,9})(?![\w.^!({]|\\(?!text|mathrm|mbox|times|cdot))"
)
# 30° 30′ 36″, from `one_spelling`.
_MINUTES = re.compile(
    r"([0-9]{1,4})\^\\circ ?([0-5]?[0-9]) ?(?:'|\^ ?\{? ?\\prime ?\}?)(?!')"
    r"(?: ?([0-5]?[0-9](?:\.[0-9]{1,9})?) ?(?:''|\"|\^ ?\{? ?\\prime ?\\prime ?\}?))?"
)
_DOLLARS = re.compile(r"\AUS(?:D ?\\?\$?|\\?\$) ?(?=[0-9])")
TEXT_COMMANDS = "text|textbf|textit|textrm|textnormal|mbox|mathrm|mathbf"
_TEXT_COMMAND = re.compile(rf"\\(?:{TEXT_COMMANDS}|operatorname|bold)\s?\{{([^{{}}]*)\}}")
_EXTRA_BRACES = re.compile(r"\{\{([^{}]*)\}\}")
_LAYOUT_SPACE = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")
_DELIMITERS = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"), ("**", "**"), ("`", "`"), ('"', '"'))


@lru_cache(maxsize=256)
def clean(answer: str) -> str:
    """Returns the answer without delimiters and layout commands, in one spelling, with single spaces."""
    text = one_spelling(answer)
    if "\\" in text or "{" in text:
        # Twice, for `\text{\textbf{B}}`.
        for _ in range(2):
            text = _EXTRA_BRACES.sub(r"{\1}", _TEXT_COMMAND.sub(r"\1", text))
        text = _without_delimiters(" ".join(text.split()))
    return text


@lru_cache(maxsize=256)
def one_spelling(answer: str) -> str:
    r"""As `clean`, but with its text commands: `2\text{ m}` differs from `2m`, where m is a variable."""
    if not answer.isascii():
        # Before the other characters: `1²` must not pass as 12.
        answer = _RAISED.sub(lambda match: f"^{{{match[0].translate(_DIGITS)}}}", answer)
        answer = _LOWERED.sub(lambda match: f"_{{{match[0].translate(_DIGITS)}}}", answer)
        answer = answer.translate(_CHARACTERS)
    text = _without_delimiters(" ".join(answer.replace("~", " ").split()))
    text = _DOLLARS.sub(r"\\$", text) if text[:2] == "US" else text
    if "e" in text or "E" in text:
        text = _PRINTED_FLOAT.sub(_written_out, text)
    if "\\" in text or "{" in text:
        for key, pattern, replacement in _STEPS:
            # Most answers contain none of the keys, and `in` is many times faster than a pattern.
            if key in text:
                text = pattern.sub(replacement, text)
        if "circ" in text:
            text = _MINUTES.sub(_as_degrees, text)
    return text


def _written_out(match: re.Match[str]) -> str:
    """Writes 1e-05 as 0.00001; beyond 999 digits as a power, which the size rules reject."""
    digits, sign, exponent = match.groups()
    if len(exponent) > 3:
        return rf"({digits} \times 10^{{{sign}{exponent}}})"
    return f"{Decimal(f'{digits}e{sign}{exponent}'):f}"


def _as_degrees(match: re.Match[str]) -> str:
    degrees, minutes, seconds = match.groups()
    value = int(degrees) + Fraction(int(minutes), 60) + Fraction(seconds or 0) / 3600
    return rf"(\frac{{{value.numerator}}}{{{value.denominator}}})^\circ"


def compact(cleaned: str) -> str:
    """Returns `clean` text without the spaces that carry no meaning: equal compact forms are equal answers."""
    return _LAYOUT_SPACE.sub("", cleaned) if " " in cleaned else cleaned


_STYLES = re.compile(
    r"\\(?:(?:textcolor|color|colorbox) ?\{[^{}]{1,30}\}|mathbf|mathit|mathsf|boldsymbol|bm|underline|boxed|fbox"
    r"|framebox|hbox|bbox(?: ?\[[^]]{0,40}\])?|bf|rm|it|bfseries|normalsize|[lL]arge|LARGE|[hH]uge|displaystyle)"
    r"(?![a-zA-Z]) ?"
)
# `\text{18 dollars}` is 18 dollars; without a digit, as in `\text{ab}`, the words are the answer.
_TEXT_AROUND = re.compile(rf"\\(?:{TEXT_COMMANDS})\s?\{{([^{{}}]*[0-9][^{{}}]*)\}}")
# {a \over b} needs its braces: they are not decoration.
_HELD_BY_BRACES = re.compile(r"\\(?:over|choose|atop)(?![a-zA-Z])")
# A line break or a tick at the end of an answer, as in `5\checkmark`.
_TICK = re.compile(r"(?:\\\\|\\checkmark|[✓✔])\Z")


def without_style(answer: str) -> str:
    r"""Returns the answer without formatting of the whole: `\textcolor{blue}{5}`, `\mathbf{\frac12}`, `{5}`."""
    text = answer.strip()
    if _HELD_BY_BRACES.search(text):
        return answer
    # \boxed{\mathbf{{5}}} loses one layer a turn; six turns bound the work.
    for _ in range(6):
        before = text
        text = _TICK.sub("", text).rstrip()
        text = _TEXT_AROUND.sub(r"\1", text).strip() if _TEXT_AROUND.fullmatch(text) else text
        style = _STYLES.match(text)
        rest = text[style.end() :] if style is not None else text
        if rest.startswith("{") and closing_brace(rest, 0, len(rest)) == len(rest) - 1:
            text = rest[1:-1].strip()
        # \bf 5 and \color{red} 5 apply to all that follows; \mathbf{5}x applies only to the 5, so it stays.
        elif style is not None and not rest.startswith("{") and not _is_of_one_sign(style[0]):
            text = rest.strip()
        if text == before:
            break
    return text or answer


def _is_of_one_sign(style: str) -> bool:
    """True for commands that apply only to their argument; `\\bf` and `\\color{red}` apply to all that follows."""
    return style.strip("\\ ").startswith(
        ("math", "bold", "bm", "under", "boxed", "fbox", "frame", "hbox", "bbox", "textcolor")
    )


def closing_brace(text: str, at: int, end: int) -> int:
    """Returns where the brace at `at` closes, at most at `end`; -1 where it does not close."""
    depth = 0
    while at < end:
        character = text[at]
        if character == "\\":
            at += 1  # an escaped brace opens and closes nothing
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if not depth:
                return at
        at += 1
    return -1


def _without_delimiters(text: str) -> str:
    """Strips surrounding math delimiters, emphasis and final punctuation, also where they are nested."""
    # `**$5$.**` has three layers; four turns bound a text of nothing but delimiters.
    for _ in range(4):
        before = text
        text = text.strip()
        if len(text) > 1 and text[-1] in ".,;" and text[-2] != "\\":
            text = text[:-1]
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            # `$5$ or $6$` begins and ends with a dollar sign and has others within: two formulas, no delimiters.
            is_delimited = text.startswith(opening) and text.endswith(closing) and opening not in inner
            if is_delimited and inner and not inner.endswith("\\"):
                text = inner
        if text == before:
            break
    return text


# ----------------------------------------------------------------------------------------------------- numbers
_MAX_DIGITS = 4_000
"""Longest integer that is converted; longer ones are compared as digits. Python rejects above 4,300 by default."""
# Digits in groups of three with one and the same separator; with full stops only from two groups on, since 1.234 is a
# decimal number.
_INTEGER = r"(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+|(?:'[0-9]{3})+|(?:\.[0-9]{3}){2,}(?![.0-9]))|[0-9]+)"
# Deletes every separator that `_INTEGER` allows.
_GROUPING = str.maketrans("", "", ", .'")
_CURRENCY = r"(?:\\\$|[$€£¥₹] ?)"
# Sign, currency, sign, digits, point, decimals, currency, percent, degrees. A sign may stand on either side of the
# currency: -\$5, \$-5.
_PLAIN = re.compile(
    rf"([+-]?) ?({_CURRENCY})?(-?)({_INTEGER})?(?:\.([0-9]*))?(\\\$|[$€£¥₹])?"
    r"( ?(?:\\?%|percent(?:age)?|pct))?( ?\^\\circ| degrees)?"
)
_FRACTION = re.compile(
    rf"([+-]?) ?(?:\\frac\{{ ?(-?{_INTEGER}) ?\}}\{{ ?({_INTEGER}) ?\}}|({_INTEGER}) ?/ ?({_INTEGER}))"
)
# Exponents up to 999: 1e9999999 is not a number here, because the power would be computed.
_SCIENTIFIC = re.compile(
    r"([+-]?[0-9]+)(?:\.([0-9]+))? ?"
    r"(?:(?:\\times|\\cdot|\*) ?10 ?\^ ?\{? ?([+-]?[0-9]{1,3}) ?\}?|[eE]([+-]?[0-9]{1,3}))"
)
_UNTIL_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
UNTIL_TWENTY = _UNTIL_TWENTY.split()
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_NUMBER_WORDS = {name: value for value, name in enumerate(UNTIL_TWENTY)} | {
    f"{tens}{gap}{one}".strip(): 10 * ten + value
    for ten, tens in enumerate(_TENS, start=2)
    for value, one in enumerate(["", *UNTIL_TWENTY[1:10]])
    for gap in (" ", "-")
    if one or gap == " "
}


@dataclass(frozen=True)
class WrittenNumber:
    """An exact value and the parts of its notation that matter for comparing."""

    value: Fraction | None
    """The value; a percentage is already divided by 100; None when it is too long to convert."""
    is_decimal: bool = False
    """True when written with a decimal point, so that it may be a rounded value."""
    is_percent: bool = False
    places: int = 0
    """Decimal places of the value, for a decimal."""
    digits: str = ""
    """For an integer too long to convert: its sign and digits without leading zeros."""
    unit: str = ""
    """A currency sign, `%` or `°`; empty without one."""


def read_number(text: str) -> WrittenNumber | None:
    """Returns the number that `text` (as `clean` returns it) denotes, or None when it is not just a number."""
    # The common case, at a fraction of the cost of the pattern.
    if text.isdigit() and text.isascii() and len(text) <= _MAX_DIGITS:
        return WrittenNumber(Fraction(int(text)))
    # Number words up to ninety-nine; any other word is not a number, whatever follows.
    if text[:1].isalpha():
        return WrittenNumber(Fraction(_NUMBER_WORDS[text.lower()])) if text.lower() in _NUMBER_WORDS else None
    plain = _PLAIN.fullmatch(text)
    if plain is not None:
        return _plain_number(plain)
    fraction = _FRACTION.fullmatch(text)
    if fraction is not None:
        return _fraction_number(fraction)
    scientific = _SCIENTIFIC.fullmatch(text)
    if scientific is not None:
        whole, decimals, latex_exponent, short_exponent = scientific.groups()
        if len(whole) + len(decimals or "") <= _MAX_DIGITS:
            exponent = int(latex_exponent or short_exponent)
            scale = Fraction(10) ** (exponent - len(decimals or ""))
            value = int(whole + (decimals or "")) * scale
            return WrittenNumber(value, is_decimal=True, places=max(0, len(decimals or "") - exponent))
    return None


def _plain_number(match: re.Match[str]) -> WrittenNumber | None:
    sign, before, inner_sign, integer, decimals, after, percent, degrees = match.groups()
    # A lone point or sign is not a number, and neither is --5.
    if (integer is None and not decimals) or (sign and inner_sign):
        return None
    whole = (integer or "0").translate(_GROUPING)
    sign = "-" if "-" in (sign, inner_sign) else ""
    fractional = (decimals or "").rstrip("0")
    if len(whole) + len(fractional) > _MAX_DIGITS:
        whole = whole.lstrip("0")
        # Too long for int(), but as digits two such integers can still be equal.
        return None if fractional or percent else WrittenNumber(None, digits=sign + whole)
    numerator = int(sign + whole + fractional)
    scale = 10 ** len(fractional) * (100 if percent else 1)
    # 28.5% is 0.285: two more decimal places.
    places = len(decimals or "") + 2 * bool(percent)
    is_decimal = decimals is not None
    unit = "%" if percent else "°" if degrees else (before or after or "").strip("\\ ")
    return WrittenNumber(Fraction(numerator, scale), is_decimal, bool(percent), places, unit=unit)


def _fraction_number(match: re.Match[str]) -> WrittenNumber | None:
    sign, latex_top, latex_bottom, top, bottom = match.groups()
    texts = [part.translate(_GROUPING) for part in (latex_top or top, latex_bottom or bottom)]
    if max(map(len, texts)) > _MAX_DIGITS:
        return None
    numerator, denominator = map(int, texts)
    if denominator == 0:
        return None
    return WrittenNumber(Fraction(-numerator if sign == "-" else numerator, denominator))


# ---------------------------------------------------------------------------------------------- the precision rule
# The precision rule's second line (docs/reference/answer-conventions.md); exact, as the numbers are.
NOISE = Fraction(1, 10**6)
# Its third line: 2.6667 is the rounding of 8/3; 0.333 could be of many numbers.
LEAST_SIGNIFICANT_DIGITS = 4
_DIGITS_OF_A_FLOAT, _PLACES_OF_A_FLOAT = 15, 13
_LONGEST_DENOMINATOR = 10**6
"""Two fractions with denominators up to this differ by 1e-12 or more, which 13 decimal places show."""


def agree_by_precision(gold: WrittenNumber, prediction: WrittenNumber, allowed: Leniency) -> bool:
    """Applies the precision rule to two numbers with values, of which one is a decimal or a difference is allowed."""
    difference = abs(gold.value - prediction.value)
    largest = max(abs(gold.value), abs(prediction.value))
    if not difference:
        return True
    # Slightly more than the stated tolerance, since the value of a root or of pi comes from a float.
    if allowed.tolerance is not None and difference <= allowed.tolerance * (1 + NOISE):
        return True
    # A decimal does not agree with an exact gold answer: 1.000 is not 99999/100000. But the digits of a printed float,
    # 0.0833333333333333, are those of only one fraction with a short denominator, 1/12. The last may be cut off.
    if not gold.is_decimal and not allowed.decimals:
        is_printed = prediction.places >= _PLACES_OF_A_FLOAT and _shown_digits(prediction) >= _DIGITS_OF_A_FLOAT
        is_short = 1 < gold.value.denominator <= _LONGEST_DENOMINATOR
        return is_printed and is_short and difference * 10**prediction.places <= 1
    if difference <= NOISE and difference <= NOISE * largest:
        return True
    return _is_rounding(gold, prediction) or _is_rounding(prediction, gold)


def _is_rounding(decimal: WrittenNumber, exact: WrittenNumber) -> bool:
    # An exact integer does not count: 3.0004 is not a rounding of 3.
    if not decimal.is_decimal or exact.is_decimal or exact.value.denominator == 1:
        return False
    if _shown_digits(decimal) < LEAST_SIGNIFICANT_DIGITS:
        return False
    # `<=` accepts both ways to round a half.
    return abs(decimal.value - exact.value) <= Fraction(1, 2 * 10**decimal.places)


def _shown_digits(decimal: WrittenNumber) -> int:
    """Significant digits of a decimal, without leading zeros: 0.0033 shows two."""
    return len(str(abs(decimal.value.numerator * 10**decimal.places // decimal.value.denominator)).lstrip("0"))
