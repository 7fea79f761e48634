"""What the rules decide about a response, or the question that is left for math-verify.

The order: exact rules on the texts; the same after a reading as mathematics, of a sentence's own answer where it is
one. Only what the grammar here reads from end to end, without a word left over, and what cannot explode may be asked of
math-verify, which drops what it does not understand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from stages.algorithms.answers.algebraic import algebraic_verdict, read
from stages.algorithms.answers.equivalence import Decision, exact_verdict, is_choice
from stages.algorithms.answers.explosive import bits_of, is_debris
from stages.algorithms.answers.extraction import Extraction, extract_gold, is_prose
from stages.algorithms.answers.latex_tree import Node
from stages.algorithms.answers.leniency import STRICT, Leniency
from stages.algorithms.answers.math_verify_texts import math_verify_texts
from stages.algorithms.answers.noncommuting import may_not_commute
from stages.algorithms.answers.normalisation import without_style
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
from stages.algorithms.answers.verdicts import Verdict

_WORDS = frozenset(["text", "based"])
_MOST_BITS_ASKED = 250
"""Of the numbers in both answers: math-verify compares to 150 digits and takes what is smaller for nothing."""
_LOWER_CHOICE = re.compile(r"\(?[a-j]\)?\.?")


@dataclass(frozen=True)
class Question:
    """A comparison for math-verify: two formulas."""

    gold: str
    prediction: str


@dataclass(frozen=True)
class Outcome:
    """A verdict that needed no process."""

    verdict: Verdict
    extracted: str | None
    path: str
    """`extraction` or `exact`."""
    reason: str


def decide(
    gold: str, found: Extraction, require_marker: bool, allowed: Leniency = STRICT
) -> Outcome | Question:
    """The outcome where the rules settle it, or the question for math-verify. Never raises.

    `found` is the answer in the response; `require_marker` and `allowed` as in `Verifier.judge`.
    """
    if found.text is None:
        return Outcome(Verdict.UNPARSED, None, "extraction", found.rule)
    gold_found, found = _gold(gold), _bare(found)
    if gold_found.text is None:
        return Outcome(Verdict.UNPARSED, found.text, "extraction", f"gold_{gold_found.rule}")
    decision = exact_verdict(gold_found.text, found.text, allowed)
    if decision is not None and (decision[0] is Verdict.CORRECT or allowed.tolerance is None):
        return Outcome(decision[0], found.text, "exact", decision[1])
    letter = _letter_in(found) if is_choice(gold_found.text) else None
    decision = exact_verdict(gold_found.text, letter, allowed) if letter else None
    if decision is not None:
        return Outcome(decision[0], letter, "exact", decision[1])
    if require_marker and not found.is_marked:
        return Outcome(Verdict.UNPARSED, None, "extraction", "no_answer_marker")
    if is_debris(found.text) and not is_sentence(found):
        return Outcome(Verdict.UNPARSED, found.text, "extraction", "no_mathematics")
    if is_denied(found.text) and not is_sentence(found) and not is_denied(gold_found.text):
        return Outcome(Verdict.UNPARSED, found.text, "extraction", "denied_answer")
    answers = [_answer_in(gold_found, gold_found), _answer_in(found, gold_found)]
    if "" in answers:
        return Outcome(Verdict.UNPARSED, found.text, "extraction", "no_answer_in_sentence")
    decision = _compare(gold_found.text, found.text, answers, allowed, is_sentence(found))
    if decision is not None:
        return Outcome(decision[0], found.text, "exact", decision[1])
    return _question(answers, found.text)


@lru_cache(maxsize=4096)
def _gold(gold: str) -> Extraction:
    """Cached: a group of responses shares its gold answer."""
    return _bare(extract_gold(gold))


def _bare(side: Extraction) -> Extraction:
    """The answer without what only changes its looks, and in a box without the words that lead to it."""
    if side.text is None or ("\\" not in side.text and side.text[:1] != "{" and side.text[-1:] not in "✓✔"):
        return side
    text = without_style(side.text)
    return replace(side, text=without_wording(text) if side.is_delimited else text)


def _question(answers: list[str], text: str) -> Outcome | Question:
    """The question for math-verify, of texts that are read whole, hold no word and can be computed."""
    trees = [read(answer) for answer in answers]
    if any(tree is None or _holds_words(tree) for tree in trees):
        return Outcome(Verdict.UNPARSED, text, "extraction", "not_read")
    if sum(map(bits_of, filter(None, trees))) > _MOST_BITS_ASKED:
        return Outcome(Verdict.UNPARSED, text, "exact", "too_large_to_compute")
    if may_not_commute(*answers):
        return Outcome(Verdict.UNPARSED, text, "exact", "may_not_commute")
    return Question(*math_verify_texts(*answers))


def _letter_in(found: Extraction) -> str | None:
    """The choice that a marked or short text names; behind a marker a small letter is one too."""
    if not found.names_itself or found.text is None:
        return None
    if found.rule == "marker" and _LOWER_CHOICE.fullmatch(found.text):
        return found.text.strip("().").upper()
    return pick_choice(found.text)


def _compare(
    gold: str, text: str, answers: list[str], allowed: Leniency, is_prose_first: bool
) -> Decision | None:
    """The text as a whole, and the answer picked out of it; the latter first where the former is a sentence."""
    picked = answers != [gold, text]
    if picked and is_prose_first:
        return exact_verdict(*answers, allowed) or algebraic_verdict(*answers, allowed)
    decision = algebraic_verdict(gold, text, allowed)
    if decision is None and picked:
        decision = exact_verdict(*answers, allowed) or algebraic_verdict(*answers, allowed)
    return decision


def _answer_in(side: Extraction, gold: Extraction) -> str:
    """The answer as text, picked out where it stands in a sentence; empty where there is none."""
    text = side.text or ""
    if not is_sentence(side) and (side.is_delimited or not (is_labelled(text) or is_about_money(text))):
        return text
    if side.rule == "marker" and side is not gold:
        return text if _are_words(gold) else value_after_marker(text) or ""
    picked = pick_answer(text)
    return text if picked is None else picked


def _are_words(gold: Extraction) -> bool:
    return (
        not any(map(str.isdigit, gold.text or ""))
        and "\\" not in (gold.text or "")
        and is_prose(gold.text or "")
    )


def _holds_words(node: Node) -> bool:
    """True for words, numerals in a base and functions of which nothing is known: no algebra decides about them."""
    if node.head in _WORDS or (node.head == "call" and node.first.startswith("unknown")):
        return True
    if node.head == "multiply" and any(part.head == "sequence" for part in node.parts):
        return True  # P(5, 2) is a function of two numbers, no product with a tuple
    parts = [part for entry in node.parts for part in (entry if isinstance(entry, tuple) else (entry,))]
    return any(_holds_words(part) for part in parts if isinstance(part, Node) and node.head != "operator")
