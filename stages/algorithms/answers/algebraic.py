r"""Decides whether two answers agree where reading them as mathematics settles it: exactly, in under a millisecond.

It is asked after `equivalence.exact_verdict`. What it cannot read, or cannot decide, is None: ask a verifier that
knows more algebra. It executes nothing, and its time and memory are bounded whatever the texts.
"""

from __future__ import annotations

import re
from fractions import Fraction

from stages.algorithms.answers.comparison import agree
from stages.algorithms.answers.equivalence import Decision
from stages.algorithms.answers.latex_parser import parse_answer
from stages.algorithms.answers.latex_tokens import FUNCTIONS, UnreadableError
from stages.algorithms.answers.latex_tree import Node, number
from stages.algorithms.answers.normalisation import clean, one_spelling
from stages.algorithms.answers.quantities import conversion, read_quantities
from stages.algorithms.answers.shapes import Several, shape_of
from stages.algorithms.answers.verdicts import Verdict

MAX_CHARACTERS = 1_500
_TIME = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])(?::([0-5][0-9]))? ?(?:([AaPp])\.?\s?[Mm]?\.{0,2})?")
_PERCENT = re.compile(r"(?<=[0-9}$]) ?(?:\\?%|percent(?:age)?(?![a-z])|pct(?![a-z]))|\\text ?\{ ?percent ?\}")
_DEGREES = re.compile(r"(?<=[0-9}]) ?(?:degrees?(?![a-z])|\\text ?\{ ?degrees? ?\})")
_ALL_NUMBERS = re.compile(r"(?:\\text ?\{ ?)?all real(?:s| numbers)(?: ?\})?", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z][A-Za-z ,.'-]*")
_WORD = re.compile(r"[A-Za-z']+")
_ARTICLES = frozenset(["a", "an", "the"])


def algebraic_verdict(gold: str, prediction: str, tolerance: Fraction | None = None) -> Decision | None:
    """Verdict and reason for two bare answers, or None. Never raises.

    `tolerance`: numbers agree when no farther apart than it; None for the precision rule of `values`.
    """
    if max(len(gold), len(prediction)) > MAX_CHARACTERS:
        return None
    decision = _compare_times(gold, prediction) or _compare_words(gold, prediction)
    if decision is not None:
        return decision
    quantities = read_quantities(_prepared(gold), _prepared(prediction))
    factor = conversion(*quantities)
    if factor is None:
        return Verdict.WRONG, "units"
    try:
        shapes = [shape_of(parse_answer(side.body)) for side in quantities]
        is_same = agree(shapes[0], _times(shapes[1], factor), tolerance)
    except (UnreadableError, RecursionError):
        return None
    if is_same is None:
        return None
    return (Verdict.CORRECT if is_same else Verdict.WRONG), "algebra"


def _prepared(answer: str) -> str:
    if answer.count("$") % 2 == 0 and "\\$" not in answer:
        answer = answer.replace("$", " ")
    answer = _ALL_NUMBERS.sub(r"\\mathbb{R}", answer)
    text = _DEGREES.sub(r"^\\circ", _PERCENT.sub(r"\\%", one_spelling(answer)))
    return text.removesuffix(".")


def _times(shape, factor: Fraction):
    """The value in the other unit; lists item by item."""
    if factor == 1:
        return shape
    if isinstance(shape, Several):
        return Several(shape.kind, tuple(_times(item, factor) for item in shape.items), shape.brackets)
    if not isinstance(shape, Node):
        raise UnreadableError("a unit of no number")
    if shape.head == "number":
        return Node("number", (shape.first * factor, shape.parts[1]))
    return Node("multiply", (number(factor), shape))


def _compare_times(gold: str, prediction: str) -> Decision | None:
    """Times of day. `4:30 p.m.` agrees with 16:30; without its half of the day a time is another, or no, time."""
    sides = [_TIME.fullmatch(clean(side)) for side in (gold, prediction)]
    if sides[0] is None or sides[1] is None:
        return None
    values = []
    for side in sides:
        hour, minute, second = int(side[1]), int(side[2]), int(side[3] or 0)
        half = (side[4] or "").lower()
        values.append((hour % 12 + 12 * (half == "p") if half else hour, minute, second, bool(half)))
    if values[0][:3] == values[1][:3]:
        return Verdict.CORRECT, "time"
    if not values[0][3] and not values[1][3] and gold.count(":") == 1 and ":00" not in gold + prediction:
        return None
    return Verdict.WRONG, "time"


def _compare_words(gold: str, prediction: str) -> Decision | None:
    """Two phrases, or a phrase beside an answer without a letter."""
    sides = [clean(side) for side in (gold, prediction)]
    are_words = [_WORDS.fullmatch(side) is not None for side in sides]
    if not any(is_words and _is_language(side) for is_words, side in zip(are_words, sides, strict=True)):
        return None
    if all(are_words):
        words = [
            [word.removesuffix("s") for word in _WORD.findall(side.lower()) if word not in _ARTICLES]
            for side in sides
        ]
        return (Verdict.CORRECT if words[0] == words[1] else Verdict.WRONG), "words"
    if any(_WORD.search(side) for side, is_words in zip(sides, are_words, strict=True) if not is_words):
        return None
    return (Verdict.WRONG, "words") if are_words[0] else (Verdict.UNPARSED, "words_for_mathematics")


def _is_language(text: str) -> bool:
    """True where some word has four letters or more and is no function."""
    return any(len(word) > 3 and word not in FUNCTIONS and not word.isupper() for word in _WORD.findall(text))
