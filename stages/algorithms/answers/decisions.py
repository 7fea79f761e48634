"""What text alone decides about a response, or the question that is left for math-verify.

The order: exact rules on the texts; the same after a reading as mathematics; a sentence's own answer; then the bounds
of what a computer algebra system may be asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from stages.algorithms.answers.algebraic import algebraic_verdict
from stages.algorithms.answers.equivalence import Decision, exact_verdict
from stages.algorithms.answers.explosive import is_debris, is_explosive
from stages.algorithms.answers.extraction import Extraction, extract_gold, is_prose
from stages.algorithms.answers.math_verify_texts import is_sentence, math_verify_texts
from stages.algorithms.answers.sentences import is_about_money, is_denied, is_labelled, pick_answer
from stages.algorithms.answers.verdicts import Verdict

_MAX_QUESTION_CHARACTERS = 4_000
"""Longest text that math-verify is asked about; no real answer that needs algebra is longer."""


@dataclass(frozen=True)
class Question:
    """A comparison for math-verify: two texts in which it finds the answers."""

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
    gold: str, found: Extraction, require_marker: bool, tolerance: Fraction | None = None
) -> Outcome | Question:
    """The outcome where the texts settle it, or the question for math-verify. Never raises.

    `found` is the answer in the response; `require_marker` and `tolerance` as in `Verifier.judge`.
    """
    if found.text is None:
        return Outcome(Verdict.UNPARSED, None, "extraction", found.rule)
    gold_found = extract_gold(gold)
    if gold_found.text is None:
        return Outcome(Verdict.UNPARSED, found.text, "extraction", f"gold_{gold_found.rule}")
    decision = _agree_within(gold_found.text, found.text, tolerance) or exact_verdict(
        gold_found.text, found.text
    )
    if decision is not None:
        return Outcome(decision[0], found.text, "exact", decision[1])
    if require_marker and not found.is_marked:
        return Outcome(Verdict.UNPARSED, None, "extraction", "no_answer_marker")
    if is_debris(found.text) and not is_sentence(found):
        return Outcome(Verdict.UNPARSED, found.text, "extraction", "no_mathematics")
    if is_denied(found.text) and not is_sentence(found) and not is_denied(gold_found.text):
        return Outcome(Verdict.UNPARSED, found.text, "extraction", "denied_answer")
    if is_sentence(found) and found.text[:1].isalpha() and is_prose(found.text):
        # As a formula, `The sum is $A$` would be a product of letters and A.
        decision = _decide_sentence(gold_found, found, tolerance)
        decision = decision or algebraic_verdict(gold_found.text, found.text, tolerance)
    else:
        decision = algebraic_verdict(gold_found.text, found.text, tolerance)
        decision = decision or _decide_sentence(gold_found, found, tolerance)
    if decision is not None:
        return Outcome(decision[0], found.text, "exact", decision[1])
    question = Question(*math_verify_texts(gold_found, found))
    if max(len(question.gold), len(question.prediction)) > _MAX_QUESTION_CHARACTERS:
        return Outcome(Verdict.UNPARSED, found.text, "extraction", "answer_too_long")
    if is_explosive(question.prediction) or is_explosive(question.gold):
        return Outcome(Verdict.UNPARSED, found.text, "extraction", "too_large_to_compute")
    return question


def _agree_within(gold: str, prediction: str, tolerance: Fraction | None) -> Decision | None:
    """With a tolerance stated, it comes before the rule of the exact path, which knows none."""
    return None if tolerance is None else algebraic_verdict(gold, prediction, tolerance)


def _decide_sentence(gold: Extraction, found: Extraction, tolerance: Fraction | None) -> Decision | None:
    """Compares the answers picked out of sentences; None where neither side is one or nothing can be picked."""
    texts = []
    for side in (gold, found):
        text = side.text or ""
        is_text = is_sentence(side) or (
            not side.rule.startswith("box") and (is_labelled(text) or is_about_money(text))
        )
        texts.append(pick_answer(text) if is_text else side.text)
        if texts[-1] == "":
            return Verdict.UNPARSED, "no_answer_in_sentence"
    if None in texts or (texts[0] == gold.text and texts[1] == found.text):
        return None
    return exact_verdict(*texts) or algebraic_verdict(*texts, tolerance)  # type: ignore[misc]
