"""What a worker does with math-verify: whether two answers are equal.

The pool enforces the clock from outside, so math-verify's own alarms are off: they need the main thread, and a
computation inside C code ignores them (Math-Verify issue 65).

Equal questions get equal answers: the verifier fixes the hash seed (with a random one `simplify(9 - 9**oo)` is 0 in one
process of ten), and sympy's random numbers are seeded for each comparison.

math-verify and sympy are imported inside functions: the verifier's own process never loads them.
"""

from __future__ import annotations

import logging

_EXACT = {"float_rounding": 15, "numeric_precision": 150}
"""By default math-verify takes numbers for equal that differ by less than 1e-15: 1/2^60 for 1/2^61. What it
calls equal is compared once more, to so many digits; what it calls different is."""


def prepare() -> None:
    """Loads math-verify and everything that a comparison imports."""
    # math-verify warns that its alarms are off, and the pool would take that for the worker's last words.
    logging.disable(logging.CRITICAL)
    mend_percent()
    # The first comparison imports parts of sympy and builds the grammar: here it costs no question its time.
    compare("$1$", "$1$")


def mend_percent() -> None:
    r"""Lets latex2sympy2_extended 1.11.0 read `28\%`: its converter asks an atom for a rule that its grammar lacks."""
    from latex2sympy2_extended.antlr_parser import PSParser

    if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
        PSParser.AtomContext.FUNC_GAMMA = lambda self: None


def compare(gold: str, prediction: str) -> tuple[str, str]:
    """Verdict and reason for two texts in which math-verify finds the answer.

    An exception inside math-verify is never `wrong`: it becomes `unparsed` with the exception's name, and memory
    exhaustion is raised to the caller.
    """
    from math_verify import verify
    from sympy.core.random import seed

    seed(0)
    try:
        gold_forms, forms = understand(gold), understand(prediction)
        if not gold_forms or not forms:
            return "unparsed", "no_mathematics_in_gold" if not gold_forms else "no_mathematics_in_answer"
        if verify(gold_forms, forms, timeout_seconds=None, raise_on_error=False):
            if not verify(gold_forms, forms, **_EXACT, timeout_seconds=None, raise_on_error=False):
                return "unparsed", "equal_only_in_floats"
            # Equal readings need no arithmetic, so that an infinity in them cancels nothing.
            if gold_forms != forms and any(map(computes_with_infinity, [*gold_forms, *forms])):
                return "unparsed", "computes_with_infinity"
            return "correct", "math_verify"
        # What math-verify cannot read it compares as text, and two texts that differ are no two values.
        if all(isinstance(form, str) for form in gold_forms):
            return "unparsed", "gold_not_understood"
        if all(isinstance(form, str) for form in forms):
            return "unparsed", "answer_not_understood"
        # Once more, with errors raised: without them a comparison that failed inside sympy reads as different.
        verify(gold_forms, forms, timeout_seconds=None, raise_on_error=True)
    except MemoryError:
        # The worker reports it and ends: what it left behind in this process is unknown.
        raise
    except Exception as error:
        return "unparsed", f"math_verify_{type(error).__name__}"
    return "wrong", "math_verify"


def understand(text: str) -> list:
    """math-verify's readings of the answer in `text`: an expression and its text, only the text, or nothing.

    Only the best match counts ("first_match"), and mathematics between delimiters is read as LaTeX or not at all.
    By default math-verify goes on to weaker patterns, and takes the 5 of `5^(5^(5^(5^5)))` when the power fails.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    is_formula = text.startswith("$") and text.endswith("$") and "$" not in text[1:-1]
    configs = [LatexExtractionConfig()] if is_formula else [LatexExtractionConfig(), ExprExtractionConfig()]
    return parse(text, configs, extraction_mode="first_match", parsing_timeout=None, raise_on_error=True)


def computes_with_infinity(form) -> bool:
    """True for an expression such as `9**oo`: sympy may cancel two infinities, and find it equal to anything.

    Infinity itself, and intervals that end there, are sound.
    """
    from sympy import Expr, nan, oo, zoo

    return isinstance(form, Expr) and form not in (oo, -oo) and form.has(oo, -oo, zoo, nan)
