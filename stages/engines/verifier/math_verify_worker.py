"""Compares two answers with math-verify in a worker process.

The pool enforces the time limit from outside, so math-verify's alarms are off. They need the main thread, and a
computation inside C code ignores them (Math-Verify issue 65).

Equal questions get equal answers. The verifier fixes the hash seed (with a random one `simplify(9 - 9**oo)` is 0 in one
process of ten), and sympy's random numbers are seeded for each comparison.

math-verify and sympy are imported inside functions, so the verifier's process never loads them.
"""

from __future__ import annotations

import logging

_EXACT = {"float_rounding": 15, "numeric_precision": 150}
"""By default math-verify accepts numbers as equal that differ by less than 1e-15: 1/2^60 for 1/2^61. So pairs that it
accepts are compared once more with these many digits. Pairs that it calls different are different."""


def prepare() -> None:
    """Loads math-verify and everything that a comparison imports."""
    # math-verify warns that its alarms are off, and the pool would read that as an error of the worker.
    logging.disable(logging.CRITICAL)
    mend_percent()
    # The first comparison imports parts of sympy and builds the grammar: here it takes no time from a question.
    compare("$1$", "$1$")


def mend_percent() -> None:
    r"""Lets latex2sympy2_extended 1.11.0 read `28\%`: its converter uses a rule of an atom that its grammar lacks."""
    from latex2sympy2_extended.antlr_parser import PSParser

    if not hasattr(PSParser.AtomContext, "FUNC_GAMMA"):
        PSParser.AtomContext.FUNC_GAMMA = lambda self: None


def compare(gold: str, prediction: str) -> tuple[str, str]:
    """Returns verdict and reason for two texts in which math-verify finds the answer.

    An exception inside math-verify is never `wrong`: it becomes `unparsed` with the exception's name. MemoryError is
    raised to the caller.
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
            # Equal readings need no arithmetic, so no infinity in them can cancel.
            if gold_forms != forms and any(map(computes_with_infinity, [*gold_forms, *forms])):
                return "unparsed", "computes_with_infinity"
            return "correct", "math_verify"
        # math-verify compares unreadable answers as text, and two different texts may still be equal values.
        if all(isinstance(form, str) for form in gold_forms):
            return "unparsed", "gold_not_understood"
        if all(isinstance(form, str) for form in forms):
            return "unparsed", "answer_not_understood"
        # Once more, with errors raised: otherwise a comparison that failed inside sympy counts as different.
        verify(gold_forms, forms, timeout_seconds=None, raise_on_error=True)
    except MemoryError:
        # The worker reports it and ends, because the state of this process is unknown.
        raise
    except Exception as error:
        return "unparsed", f"math_verify_{type(error).__name__}"
    return "wrong", "math_verify"


def understand(text: str) -> list:
    """Returns math-verify's readings of the answer in `text`: an expression and its text, only the text, or nothing.

    Only the best match counts ("first_match"). Mathematics between delimiters is read as LaTeX or not at all. By
    default math-verify continues with weaker patterns, and takes the 5 of `5^(5^(5^(5^5)))` when the power fails.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    is_formula = text.startswith("$") and text.endswith("$") and "$" not in text[1:-1]
    configs = [LatexExtractionConfig()] if is_formula else [LatexExtractionConfig(), ExprExtractionConfig()]
    return parse(text, configs, extraction_mode="first_match", parsing_timeout=None, raise_on_error=True)


def computes_with_infinity(form) -> bool:
    """Returns True for an expression such as `9**oo`: sympy may cancel two infinities, so it would equal anything.

    Infinity itself, and intervals that end there, are sound.
    """
    from sympy import Expr, nan, oo, zoo

    return isinstance(form, Expr) and form not in (oo, -oo) and form.has(oo, -oo, zoo, nan)
