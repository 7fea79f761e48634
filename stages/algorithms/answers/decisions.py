r"""Decides about a response by rules, or returns the question that is left for math-verify.

Start here: `decide` is the verifier's exact path. The order of the other files is the order of its steps:
1. `extraction` finds the answer in the response; `normalisation` gives it one spelling.
2. `equivalence` compares the two texts.
3. `algebraic_verdict` reads both as mathematics. `quantities` removes units, `latex` and `latex_parser` build a tree,
   and `shapes` says what kind of answer it is. `comparison` compares, by values (`evaluation`). `worked_out` looks for
   work that is left, in the same tree. Where the answer is a sentence, `sentences` first picks the answer out of it.
4. math-verify drops the parts of a text that it does not understand. So it only gets texts that the grammar reads from
   end to end, without a word left over, and that cannot explode.

Reading as mathematics is exact and takes less than a millisecond. It gives None for a text that it cannot read or
decide. It executes nothing, and its time and memory are bounded for any text.

The comparison takes letters for numbers, so products have no order and one sign. The text does not say whether its
letters are numbers, vectors, matrices or statements. So no rule decides where two answers differ in just that:
`u \cdot v` and `u \times v`, `A^T A` and `A A^T`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from stages.algorithms.answers.comparison import agree, holds
from stages.algorithms.answers.equivalence import Decision, compare_times, exact_verdict, is_choice, without_name
from stages.algorithms.answers.evaluation import bits_of, is_explosive, symbols_of
from stages.algorithms.answers.extraction import Extraction, extract_gold, is_prose
from stages.algorithms.answers.latex import FUNCTIONS, Node, UnreadableError, number
from stages.algorithms.answers.latex_parser import parse_answer
from stages.algorithms.answers.normalisation import clean, one_spelling, without_style
from stages.algorithms.answers.quantities import conversion, read_quantities
from stages.algorithms.answers.sentences import (
    is_about_money,
    is_denied,
    is_labelled,
    is_sentence,
    pick_answer,
    pick_choice,
    value_after_marker,
    without_wording,
)
from stages.algorithms.answers.shapes import Several, shape_of, with_letters_of, without_quantity
from stages.algorithms.answers.verdicts import STRICT, Judgement, Leniency, Verdict
from stages.algorithms.answers.worked_out import is_unevaluated, leaves_unsolved

_WORDS = frozenset(["text", "based"])
_MOST_BITS_ASKED = 250
"""Most bits in the numbers of both answers: math-verify compares to 150 digits and ignores smaller differences."""
# `9=====...`: the same sign sixteen times in a row draws a line.
_RUN = re.compile(r"([^\w\s.-])\1{15}")
# The only answers without a letter or a digit.
_EMPTY_SET = re.compile(r"[\s$]{0,9}(?:∅|\\\{\s{0,9}\\\})[\s$.]{0,9}")
# Brackets that LaTeX escapes or makes invisible (`\right.`) need no partner.
_ESCAPE = re.compile(r"\\[{}()\[\]]|\\(?:left|right) ?\.")
_LOWER_CHOICE = re.compile(r"\(?[a-j]\)?\.?")


@dataclass(frozen=True)
class Question:
    """A comparison for math-verify: two formulas."""

    gold: str
    prediction: str


def decide(gold: str, answer: Extraction, require_marker: bool, allowed: Leniency = STRICT) -> Judgement | Question:
    """Returns the judgement where the rules settle it, or the question for math-verify. Never raises.

    `answer` is the result of `extract_answer` for the response; `require_marker` and `allowed` as in `Verifier.judge`.
    """
    if answer.text is None:
        return Judgement(Verdict.UNPARSED, None, "extraction", answer.rule)
    gold_answer, answer = _gold(gold), _bare(answer)
    if gold_answer.text is None:
        return Judgement(Verdict.UNPARSED, answer.text, "extraction", f"gold_{gold_answer.rule}")
    decision = exact_verdict(gold_answer.text, answer.text, allowed)
    # With a tolerance, two numbers that differ as texts may still agree; `comparison` decides that.
    if decision is not None and (decision[0] is Verdict.CORRECT or allowed.tolerance is None):
        return Judgement(decision[0], answer.text, "exact", decision[1])
    # A gold answer that is a choice: the sentence `I think it's (D)` names one.
    letter = _letter_in(answer) if is_choice(gold_answer.text) else None
    decision = exact_verdict(gold_answer.text, letter, allowed) if letter else None
    if decision is not None:
        return Judgement(decision[0], letter, "exact", decision[1])
    # After the exact rules: a short bare answer that repeats the gold answer's text is accepted, too.
    if require_marker and not answer.is_marked:
        return Judgement(Verdict.UNPARSED, None, "extraction", "no_answer_marker")
    if is_debris(answer.text) and not is_sentence(answer):
        return Judgement(Verdict.UNPARSED, answer.text, "extraction", "no_mathematics")
    # `sentences` handles the denials in a sentence; a gold answer may itself say `not`.
    if is_denied(answer.text) and not is_sentence(answer) and not is_denied(gold_answer.text):
        return Judgement(Verdict.UNPARSED, answer.text, "extraction", "denied_answer")
    texts = [_answer_in(gold_answer, gold_answer), _answer_in(answer, gold_answer)]
    if "" in texts:
        return Judgement(Verdict.UNPARSED, answer.text, "extraction", "no_answer_in_sentence")
    decision = _compare(gold_answer.text, answer.text, texts, allowed, is_sentence(answer))
    if decision is not None:
        return Judgement(decision[0], answer.text, "exact", decision[1])
    return _question(texts, answer.text)


@lru_cache(maxsize=4096)
def _gold(gold: str) -> Extraction:
    """Cached: the responses of a group share their gold answer."""
    return _bare(extract_gold(gold))


def _bare(side: Extraction) -> Extraction:
    """Returns the answer without formatting, and in a box without the words that lead to it."""
    if side.text is None or ("\\" not in side.text and side.text[:1] != "{" and side.text[-1:] not in "✓✔"):
        return side
    text = without_style(side.text)
    return replace(side, text=without_wording(text) if side.is_delimited else text)


def is_debris(text: str) -> bool:
    """True for texts that cannot be mathematics: control characters, no letter or digit, open brackets, a long run
    of one sign. Round and square brackets may close each other, as in [0, 1)."""
    if _EMPTY_SET.fullmatch(text):
        return False
    if not "".join(text.split()).isprintable() or not any(map(str.isalnum, text)) or _RUN.search(text):
        return True
    plain = _ESCAPE.sub("", text)
    return plain.count("{") != plain.count("}") or sum(map(plain.count, "([")) != sum(map(plain.count, ")]"))


def _question(answers: list[str], text: str) -> Judgement | Question:
    """Returns the question for math-verify, if both texts are read completely, without words, and can be computed."""
    trees = [read(answer) for answer in answers]
    if any(tree is None or _holds_words(tree) for tree in trees):
        return Judgement(Verdict.UNPARSED, text, "extraction", "not_read")
    # math-verify compares to 150 digits: it does not get numbers that could differ by less.
    if sum(map(bits_of, filter(None, trees))) > _MOST_BITS_ASKED:
        return Judgement(Verdict.UNPARSED, text, "exact", "too_large_to_compute")
    if may_not_commute(*answers):
        return Judgement(Verdict.UNPARSED, text, "exact", "may_not_commute")
    return Question(*math_verify_texts(*answers))


def _letter_in(answer: Extraction) -> str | None:
    """Returns the choice that a marked or short text names; after a marker a small letter counts too."""
    # A sentence may state its answer after a marker, or if it is all of a short response.
    if answer.rule not in ("marker", "bare") or answer.text is None:
        return None
    if answer.rule == "marker" and _LOWER_CHOICE.fullmatch(answer.text):
        return answer.text.strip("().").upper()
    return pick_choice(answer.text)


def _compare(gold: str, text: str, answers: list[str], allowed: Leniency, is_prose_first: bool) -> Decision | None:
    """Returns the whole text, and the answer picked out of it; the latter first where the former is a sentence."""
    is_picked = answers != [gold, text]
    # A whole sentence would be read as one product of words.
    decision = None if is_picked and is_prose_first else algebraic_verdict(gold, text, allowed)
    if decision is None and is_picked:
        decision = exact_verdict(*answers, allowed) or algebraic_verdict(*answers, allowed)
    return decision


def _answer_in(side: Extraction, gold: Extraction) -> str:
    """Returns the answer as text, picked out of a sentence if necessary; empty where there is none."""
    text = side.text or ""
    if not is_sentence(side) and (side.is_delimited or not (is_labelled(text) or is_about_money(text))):
        return text
    # A reward may depend on a marker, so marked text gets the strict reader, all other text the lenient one.
    if side.rule == "marker" and side is not gold:
        # If the gold answer is a phrase, the answer is a phrase too, and `_compare_words` takes it whole.
        return text if _are_words(gold) else value_after_marker(text) or ""
    picked = pick_answer(text)
    return text if picked is None else picked


def _are_words(gold: Extraction) -> bool:
    return not any(map(str.isdigit, gold.text or "")) and "\\" not in (gold.text or "") and is_prose(gold.text or "")


def _holds_words(node: Node) -> bool:
    """True for words, numerals in a base and unknown functions: no value decides about them."""
    if node.head in _WORDS or (node.head == "call" and node.first.startswith("unknown")):
        return True
    if node.head == "multiply" and any(part.head == "sequence" for part in node.parts):
        return True  # P(5, 2) is a function of two numbers, no product with a tuple
    # Not inside an integral or a limit, whose bounds are texts by construction (`from 0`).
    return node.head != "operator" and any(map(_holds_words, node.all_children))


# -------------------------------------------------------------------------------------- reading as mathematics
# Longer answers are not expressions that a rule could decide; the parser also bounds tokens and depth.
MAX_CHARACTERS = 1_500
# Only after a digit, a brace or a dollar sign: `percent` in prose is a word.
_PERCENT = re.compile(r"(?<=[0-9}$]) ?(?:\\?%|percent(?:age)?(?![a-z])|pct(?![a-z]))|\\text ?\{ ?percent ?\}")
_DEGREES = re.compile(r"(?<=[0-9}]) ?(?:degrees?(?![a-z])|\\text ?\{ ?degrees? ?\})")
# `20^\circ C`, `20 degrees Fahrenheit`, with or without \text, at the end of the answer.
_TEMPERATURE = re.compile(
    r"(?:\\(?:text|mathrm) ?\{ ?)?(?:\^\\circ|(?<=[0-9 }])degrees?) ?(?:\\(?:text|mathrm) ?\{ ?)?"
    r"(?:(C(?:elsius)?)|F(?:ahrenheit)?) ?\}?\Z"
)
# `7''` and `7"` are seven inches; only at the end, since f'' is a derivative.
_INCHES = re.compile(r"(?<=[0-9]) ?(?:''|\")\Z")
_CURRENCY = re.compile(r"\\text ?\{ ?(\\\$|[€£¥₹]) ?\}")
# `\{x : x > 2\}`: the condition must contain the same letter (`\1`), and represents the set.
_SET_BUILDER = re.compile(
    r"\\\{ ?([a-zA-Z])(?: ?\\in ?\\mathbb ?\{? ?R ?\}?)? ?(?::|\||\\mid(?![a-z])|\\vert(?![a-z])) ?([^{}:|]*\1.*)\\\}"
)
_ALL_NUMBERS = re.compile(r"(?:\\text ?\{ ?)?all real(?:s| numbers)(?: ?\})?", re.IGNORECASE)
_TEXTS = re.compile(r"\\text ?\{((?:[^{}]|\{[^{}]*\})*)\}")
_REALS = r"(?:\\mathbb ?\{ ?R ?\}|\\mathbb R)"
# Whole answers in words, from specific to general: "all real numbers except 0" must not end as all real numbers.
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
# `\begin{cases} x=2 \\ y=3 \end{cases}` without conditions (`&`) is a list.
_CASES = re.compile(r"\\begin ?\{cases\}([^&{}]{1,300})\\end ?\{cases\}")
# French notation, ]0,6[ for (0,6).
_OPEN_INTERVAL = re.compile(r"\] ?([^\[\]()]{1,100},[^\[\]()]{1,100})\[")
_UPPER, _LOWER = (rf"{mark}(?:\{{([0-9]{{1,4}})\}}|([0-9]))" for mark in (r"\^", "_"))
# C(11,5), C_{11}^5 and C^5_{11}; the larger number is the one chosen from.
_CHOSEN = re.compile(rf"C(?:\( ?([0-9]{{1,4}}) ?, ?([0-9]{{1,4}}) ?\)|{_LOWER}{_UPPER}|{_UPPER}{_LOWER})")
_ONLY_WORDS = re.compile(r"[A-Za-z][A-Za-z ,.'-]*!?")
_WORD = re.compile(r"[A-Za-z']+")
_ARTICLES = frozenset(["a", "an", "the"])


def algebraic_verdict(gold: str, prediction: str, allowed: Leniency = STRICT) -> Decision | None:
    """Returns verdict and reason for two bare answers, or None. Never raises.

    A prediction is wrong if its parts contradict each other, or if it leaves the arithmetic to the reader.
    """
    if max(len(gold), len(prediction)) > MAX_CHARACTERS:
        return None
    # Before the grammar, which would read 4:30 as a ratio and words as factors.
    decision = compare_times(gold, prediction) or _compare_words(gold, prediction)
    if decision is not None:
        return decision
    quantities = read_quantities(_prepared(gold), _prepared(_without_choosing(prediction, gold)))
    # Units that contradict each other decide at once, for any values.
    factor = conversion(*quantities)
    if factor is None:
        return Verdict.WRONG, "units"
    try:
        trees = [parse_answer(side.body) for side in quantities]
        if "radian" in (quantities[0].unit, quantities[1].unit):
            trees = list(map(_in_radians, trees))
        # The gold answer is a value without letters: in `m+n = 5` the response means 5.
        if trees[0].head != "relation" and not symbols_of(trees[0]):
            trees[1] = without_quantity(trees[1])
        else:
            trees = list(with_letters_of(*trees))
        # Before any computation. Two equal trees need none: 9^{9^9} is 9^{9^9}.
        if trees[0] != trees[1] and any(map(is_explosive, trees)):
            return Verdict.UNPARSED, "too_large_to_compute"
        # `x = 41 = 42`: otherwise a response with both numbers would be rewarded for either.
        if not holds(trees[1]):
            return Verdict.WRONG, "parts_that_differ"
        shapes = list(map(shape_of, trees))
        is_same = agree(shapes[0], _in_unit(shapes[1], factor), allowed)
    except (UnreadableError, RecursionError):
        return None
    # Only where the answers agree or may agree: a wrong value is wrong for a simpler reason.
    asks_for_work = is_same is not False and not allowed.expressions
    if asks_for_work and (is_unevaluated(shapes[1], shapes[0]) or leaves_unsolved(trees[1], trees[0])):
        return Verdict.WRONG, "not_worked_out"
    # Last, because only equal answers can differ just in the order of factors.
    if is_same is not False and may_not_commute(gold, prediction):
        return Verdict.UNPARSED, "may_not_commute"
    if is_same is None:
        return None
    return (Verdict.CORRECT if is_same else Verdict.WRONG), "algebra"


def read(answer: str) -> Node | None:
    """Returns the tree of a whole answer; None where part of it cannot be read."""
    if len(answer) > MAX_CHARACTERS:
        return None
    try:
        return parse_answer(_prepared(answer))
    except (UnreadableError, RecursionError):
        return None


def _prepared(answer: str) -> str:
    # Pairs of dollar signs delimit formulas; an unpaired or escaped one means money.
    if answer.count("$") % 2 == 0 and "\\$" not in answer:
        answer = answer.replace("$", " ")
    # Few answers contain these words, and the nine patterns are slow.
    if "all " in answer or "R" in answer or "real" in answer:
        answer = _ALL_NUMBERS.sub(r"\\mathbb{R}", _without_words(answer))
    text = _PERCENT.sub(r"\\%", one_spelling(answer))
    text = _TEMPERATURE.sub(lambda match: r"\text{ celsius}" if match[1] else r"\text{ fahrenheit}", text)
    text = _INCHES.sub(r"\\text{ in}", text)
    text = _CURRENCY.sub(lambda match: match[1], _DEGREES.sub(r"^\\circ", text))
    text = text.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}")
    text = _CASES.sub(lambda match: ", ".join(match[1].split(r"\\")), text)
    text = _OPEN_INTERVAL.sub(r"(\1)", text) if text.startswith("]") else text
    builder = _SET_BUILDER.fullmatch(text)
    return text if builder is None else builder[2]


def _without_words(answer: str) -> str:
    r"""Writes `all real numbers except 0` as `\mathbb{R} \setminus \{0\}`, and similar phrases likewise."""
    text = " ".join(_TEXTS.sub(r" \1 ", one_spelling(answer)).split())
    for pattern, replacement in _SETS_IN_WORDS:
        match = pattern.fullmatch(text)
        if match is not None:
            return match.expand(replacement)
    return answer


def _without_choosing(prediction: str, gold: str) -> str:
    """Reads `C(11,2)`, `C_{11}^2` and `C^2_{11}` as a binomial, where the gold answer has no letter C."""
    chosen = _CHOSEN.fullmatch(prediction.strip(" $")) if "C" in prediction and "C" not in gold else None
    if chosen is None:
        return prediction
    # In either order: of C_{11}^2 and C_2^{11} only one is not 0.
    few, many = sorted(map(int, filter(None, chosen.groups())))
    return rf"\binom{{{many}}}{{{few}}}"


def _in_radians(node: Node) -> Node:
    """Returns an angle in degrees as a number: beside radians, 60 degrees are not 60."""
    if node.head != "degree":
        return node
    return Node("multiply", (node.first, Node("pi", ()), number(Fraction(1, 180))))


def _in_unit(shape, factor: Fraction):
    """Returns the value in the other unit; lists item by item."""
    # Most answers have no unit, or the same one.
    if factor == 1:
        return shape
    if isinstance(shape, Several):
        return Several(shape.kind, tuple(_in_unit(item, factor) for item in shape.items), shape.brackets)
    if not isinstance(shape, Node):
        raise UnreadableError("a unit of no number")
    if shape.head == "number":
        # The decimals are those of the text: 1.5 km keeps its one decimal place as 1500 m.
        return Node("number", (shape.first * factor, shape.parts[1]))
    return Node("multiply", (number(factor), shape))


def _compare_words(gold: str, prediction: str) -> Decision | None:
    """Compares two phrases, or a phrase and an answer without a letter."""
    sides = [_without_brackets(clean(side)) for side in (gold, prediction)]
    are_words = [_ONLY_WORDS.fullmatch(side) is not None for side in sides]
    # Letters that are not words (`ab`, `AB`) are mathematics.
    if not any(is_words and _is_language(side) for is_words, side in zip(are_words, sides, strict=True)):
        return None
    if all(are_words):
        words = [
            [word.removesuffix("s") for word in _WORD.findall(side.lower()) if word not in _ARTICLES] for side in sides
        ]
        return (Verdict.CORRECT if words[0] == words[1] else Verdict.WRONG), "words"
    # A phrase beside an answer with words in it: no opinion.
    if any(_WORD.search(side) for side, is_words in zip(sides, are_words, strict=True) if not is_words):
        return None
    return (Verdict.WRONG, "words") if are_words[0] else (Verdict.UNPARSED, "words_for_mathematics")


def _without_brackets(text: str) -> str:
    return text[1:-1] if text.startswith("(") and text.endswith(")") and "(" not in text[1:] else text


def _is_language(text: str) -> bool:
    """True where some word has four letters or more and is not a function."""
    return any(len(word) > 3 and word not in FUNCTIONS and not word.isupper() for word in _WORD.findall(text))


# --------------------------------------------------------------------------------------- texts for math-verify
_BARE_PERCENT = re.compile(r"(?<!\\)%")
"""In LaTeX it starts a comment; in an answer it is a percent sign."""


def math_verify_texts(gold: str, prediction: str) -> tuple[str, str]:
    """Returns both answers between `$`, without a common `x =`: math-verify cannot read every name.

    As a formula math-verify reads a text completely or not at all; without delimiters it picks numbers out of the text.
    """
    texts = [gold, prediction]
    cleaned = clean(gold), clean(prediction)
    values = without_name(*cleaned)
    # The name is dropped only where both have it or one side lacks it; else math-verify gets the text unchanged.
    texts = [value if value != whole else text for value, whole, text in zip(values, cleaned, texts, strict=True)]
    formulas = ["$" + " ".join(text.replace("$", " ").split()) + "$" for text in texts]
    return _BARE_PERCENT.sub(r"\\%", formulas[0]), _BARE_PERCENT.sub(r"\\%", formulas[1])


# --------------------------------------------------------------------------------------- signs between letters
_STYLED = r"\\(?:mathbf|mathrm|vec|bm|boldsymbol|hat|overrightarrow)\s?\{?\s?[A-Za-z]\s?\}?"
_LETTER = rf"(?:{_STYLED}|\\nabla|(?<![A-Za-z\\])[A-Za-z])"
# Two letters with a product or a logical sign between. The second is only a lookahead, so that `a \times b \times c`
# has two joins. Not before a relation sign: in `x \land y > 0` the y belongs to the inequality.
_JOINED = re.compile(
    rf"({_LETTER})\s?(?:\\(times|cdot|land|lor|wedge|vee)(?![a-zA-Z])|([×·∧∨]))\s?"
    rf"(?=({_LETTER})(?![A-Za-z])(?!\s?(?:[<>=]|\\[lgn]e)))"
)
_JOINING_SIGNS = {"×": "times", "·": "cdot", "∧": "land", "∨": "lor", "wedge": "land", "vee": "lor"}
_MARK = r"\^\s?\{?\s?(?:T|H|-1|\\top|\\intercal|\\dagger|\*)\s?\}?"
# Capitals in a row, as `A^T A`; `_MATRIX` requires an exponent on one of them, or `AB` would be two matrices.
_MATRIX_ROWS = re.compile(rf"(?<![A-Za-z\\])(?:[A-Z](?:{_MARK})?\s?){{2,12}}(?![A-Za-z])")
_MATRIX = re.compile(rf"([A-Z])({_MARK})?")


def may_not_commute(gold: str, prediction: str) -> bool:
    """True where another sign joins the same letters, or where a cross or matrices join them in another order.

    Letters with an exponent T, H, * or -1 in a row are matrices.
    """
    sides = _joins(gold), _joins(prediction)
    if any(_is_contradicted(one, other) for one, other in (sides, sides[::-1])):
        return True
    rows = [[_MATRIX.findall(row) for row in _MATRIX_ROWS.findall(side) if "^" in row] for side in (gold, prediction)]
    # ABA^{-1} is not B: a letter and its inverse do not cancel across another one.
    if rows[0] != rows[1] and any(
        (letter, "") in row for side in rows for row in side for letter, mark in row if "-1" in mark
    ):
        return True
    return any(sorted(one) == sorted(other) and one != other for one in rows[0] for other in rows[1])


def _joins(text: str) -> set[tuple[str, str, str]]:
    return {
        (_letter_of(left), _JOINING_SIGNS.get(command or sign, command or sign), _letter_of(right))
        for left, command, sign, right in _JOINED.findall(text)
    }


def _letter_of(operand: str) -> str:
    return operand if operand == r"\nabla" else operand.rstrip("} ")[-1]


def _is_contradicted(one: set[tuple[str, str, str]], other: set[tuple[str, str, str]]) -> bool:
    for left, sign, right in one:
        # `p \land q` beside `p \lor q` or `p, q`: with another sign, or none, it is another statement.
        if sign in ("land", "lor") and all(join[1] != sign for join in other):
            return True
        # `A \times B` beside `B \times A`, or beside a dot product in either order.
        others = {(right, "times", left), (left, "cdot", right), (right, "cdot", left)}
        if sign == "times" and (left, sign, right) not in other and others & other:
            return True
    return False
