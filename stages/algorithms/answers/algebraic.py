r"""Decides whether two answers agree where reading them as mathematics settles it: exactly, in under a millisecond.

It is asked after `equivalence.exact_verdict`. What it cannot read, or cannot decide, is None: ask a verifier that
knows more algebra. It executes nothing, and its time and memory are bounded whatever the texts.
"""

from __future__ import annotations

import re
from fractions import Fraction

from stages.algorithms.answers.chains import holds
from stages.algorithms.answers.clock import compare_times
from stages.algorithms.answers.comparison import agree
from stages.algorithms.answers.equivalence import Decision
from stages.algorithms.answers.evaluation import symbols_of
from stages.algorithms.answers.explosive import is_explosive
from stages.algorithms.answers.latex_parser import parse_answer
from stages.algorithms.answers.latex_tokens import FUNCTIONS, UnreadableError
from stages.algorithms.answers.latex_tree import Node, number
from stages.algorithms.answers.leniency import STRICT, Leniency
from stages.algorithms.answers.noncommuting import may_not_commute
from stages.algorithms.answers.normalisation import clean, one_spelling
from stages.algorithms.answers.quantities import conversion, read_quantities
from stages.algorithms.answers.shapes import Several, shape_of, with_letters_of, without_quantity
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.answers.worked_out import leaves_unsolved, leaves_work

MAX_CHARACTERS = 1_500
_PERCENT = re.compile(r"(?<=[0-9}$]) ?(?:\\?%|percent(?:age)?(?![a-z])|pct(?![a-z]))|\\text ?\{ ?percent ?\}")
_DEGREES = re.compile(r"(?<=[0-9}]) ?(?:degrees?(?![a-z])|\\text ?\{ ?degrees? ?\})")
_TEMPERATURE = re.compile(
    r"(?:\\(?:text|mathrm) ?\{ ?)?(?:\^\\circ|(?<=[0-9 }])degrees?) ?(?:\\(?:text|mathrm) ?\{ ?)?"
    r"(?:(C(?:elsius)?)|F(?:ahrenheit)?) ?\}?\Z"
)
_INCHES = re.compile(r"(?<=[0-9]) ?(?:''|\")\Z")
_CURRENCY = re.compile(r"\\text ?\{ ?(\\\$|[€£¥₹]) ?\}")
_SET_BUILDER = re.compile(
    r"\\\{ ?([a-zA-Z])(?: ?\\in ?\\mathbb ?\{? ?R ?\}?)? ?(?::|\||\\mid(?![a-z])|\\vert(?![a-z])) ?([^{}:|]*\1.*)\\\}"
)
_ALL_NUMBERS = re.compile(r"(?:\\text ?\{ ?)?all real(?:s| numbers)(?: ?\})?", re.IGNORECASE)
_TEXTS = re.compile(r"\\text ?\{((?:[^{}]|\{[^{}]*\})*)\}")
_REALS = r"(?:\\mathbb ?\{ ?R ?\}|\\mathbb R)"
_SETS_IN_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (
            r"all real(?:s| numbers)(?: [a-z])?,? (?:except|other than|excluding|but)(?: for)? (?:[a-z] ?= ?)?(.+)",
            r"\\mathbb{R} \\setminus \\{\1\\}",
        ),
        (
            r"(.+?),? (?:for|where) (?:(?:all|any|some|every|each|an? arbitrary) )?real"
            r"(?: (?:numbers?|constants?|values?(?: of)?))?(?: [a-zA-Z])?(?: is real)?",
            r"\1",
        ),
        (rf"{_REALS} ?- ?(\\\{{.*)", r"\\mathbb{R} \\setminus \1"),
        (rf"(?:all (?:the )?)?positive real(?:s| numbers)|{_REALS} ?[_^] ?\{{? ?\+ ?\}}?", r"(0, \\infty)"),
        (
            r"(?:for )?all (?:real )?(?:numbers? |values of )?(?:[a-z] (?:such that|with|where) )?"
            r"([a-z] ?(?:[<>]|\\[lgn]e).*)",
            r"\1",
        ),
        (r"all real (?:numbers|values) (?:greater|larger) than or equal to (.+)", r"x \\ge \1"),
        (r"all real (?:numbers|values) (?:less|smaller) than or equal to (.+)", r"x \\le \1"),
        (r"all real (?:numbers|values) (?:greater|larger) than (.+)", r"x > \1"),
        (r"all real (?:numbers|values) (?:less|smaller) than (.+)", r"x < \1"),
    )
)
_CASES = re.compile(r"\\begin ?\{cases\}([^&{}]{1,300})\\end ?\{cases\}")
_OPEN_INTERVAL = re.compile(r"\] ?([^\[\]()]{1,100},[^\[\]()]{1,100})\[")
_UPPER, _LOWER = (rf"{mark}(?:\{{([0-9]{{1,4}})\}}|([0-9]))" for mark in (r"\^", "_"))
_CHOSEN = re.compile(rf"C(?:\( ?([0-9]{{1,4}}) ?, ?([0-9]{{1,4}}) ?\)|{_LOWER}{_UPPER}|{_UPPER}{_LOWER})")
_WORDS = re.compile(r"[A-Za-z][A-Za-z ,.'-]*!?")
_WORD = re.compile(r"[A-Za-z']+")
_ARTICLES = frozenset(["a", "an", "the"])


def algebraic_verdict(gold: str, prediction: str, allowed: Leniency = STRICT) -> Decision | None:
    """Verdict and reason for two bare answers, or None. Never raises.

    A prediction whose parts contradict each other, or that leaves the arithmetic to the reader, is wrong.
    """
    if max(len(gold), len(prediction)) > MAX_CHARACTERS:
        return None
    decision = compare_times(gold, prediction) or _compare_words(gold, prediction)
    if decision is not None:
        return decision
    quantities = read_quantities(_prepared(gold), _prepared(_without_choosing(prediction, gold)))
    factor = conversion(*quantities)
    if factor is None:
        return Verdict.WRONG, "units"
    try:
        trees = [parse_answer(side.body) for side in quantities]
        if "radian" in (quantities[0].unit, quantities[1].unit):
            trees = list(map(_in_radians, trees))
        if trees[0].head != "relation" and not symbols_of(trees[0]):
            trees[1] = without_quantity(trees[1])
        else:
            trees = list(with_letters_of(*trees))
        if trees[0] != trees[1] and any(map(is_explosive, trees)):
            return Verdict.UNPARSED, "too_large_to_compute"
        if not holds(trees[1]):
            return Verdict.WRONG, "parts_that_differ"
        shapes = list(map(shape_of, trees))
        is_same = agree(shapes[0], _times(shapes[1], factor), allowed)
    except (UnreadableError, RecursionError):
        return None
    asks_for_work = is_same is not False and not allowed.expressions
    if asks_for_work and (leaves_work(shapes[1], shapes[0]) or leaves_unsolved(trees[1], trees[0])):
        return Verdict.WRONG, "not_worked_out"
    if is_same is not False and may_not_commute(gold, prediction):
        return Verdict.UNPARSED, "may_not_commute"
    if is_same is None:
        return None
    return (Verdict.CORRECT if is_same else Verdict.WRONG), "algebra"


def read(answer: str) -> Node | None:
    """The tree of a whole answer; None where some of it cannot be read."""
    if len(answer) > MAX_CHARACTERS:
        return None
    try:
        return parse_answer(_prepared(answer))
    except (UnreadableError, RecursionError):
        return None


def _prepared(answer: str) -> str:
    if answer.count("$") % 2 == 0 and "\\$" not in answer:
        answer = answer.replace("$", " ")
    if "all " in answer or "R" in answer or "real" in answer:
        answer = _ALL_NUMBERS.sub(r"\\mathbb{R}", _without_words(answer))
    text = _PERCENT.sub(r"\\%", one_spelling(answer))
    text = _TEMPERATURE.sub(lambda found: r"\text{ celsius}" if found[1] else r"\text{ fahrenheit}", text)
    text = _INCHES.sub(r"\\text{ in}", text)
    text = _CURRENCY.sub(lambda found: found[1], _DEGREES.sub(r"^\\circ", text))
    text = text.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}")
    text = _CASES.sub(lambda found: ", ".join(found[1].split(r"\\")), text)
    text = _OPEN_INTERVAL.sub(r"(\1)", text) if text.startswith("]") else text
    builder = _SET_BUILDER.fullmatch(text)
    return text if builder is None else builder[2]


def _without_words(answer: str) -> str:
    r"""`all real numbers except 0` as `\mathbb{R} \setminus \{0\}`, and its like."""
    text = " ".join(_TEXTS.sub(r" \1 ", one_spelling(answer)).split())
    for pattern, replacement in _SETS_IN_WORDS:
        found = pattern.fullmatch(text)
        if found is not None:
            return found.expand(replacement)
    return answer


def _without_choosing(prediction: str, gold: str) -> str:
    """`C(11,2)`, `C_{11}^2` and `C^2_{11}` as a binomial, where the gold answer has no letter C."""
    found = _CHOSEN.fullmatch(prediction.strip(" $")) if "C" in prediction and "C" not in gold else None
    if found is None:
        return prediction
    few, many = sorted(map(int, filter(None, found.groups())))
    return rf"\binom{{{many}}}{{{few}}}"


def _in_radians(node: Node) -> Node:
    """An angle in degrees as a number: beside radians, 60 degrees are not 60."""
    if node.head != "degree":
        return node
    return Node("multiply", (node.first, Node("pi", ()), number(Fraction(1, 180))))


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


def _compare_words(gold: str, prediction: str) -> Decision | None:
    """Two phrases, or a phrase beside an answer without a letter."""
    sides = [_without_brackets(clean(side)) for side in (gold, prediction)]
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


def _without_brackets(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") and "(" not in text[1:] else text


def _is_language(text: str) -> bool:
    """True where some word has four letters or more and is no function."""
    return any(len(word) > 3 and word not in FUNCTIONS and not word.isupper() for word in _WORD.findall(text))
