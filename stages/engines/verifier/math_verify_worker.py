"""One math-verify process: reads JSON lines {gold, prediction} to the end of its input, writes lines {verdict, reason}.

The parent enforces the wall clock from outside, so math-verify's own alarms are off: they need the main thread, and a
computation inside C code ignores them (Math-Verify issue 65). Here are the limits that a process must put on itself:
memory, no files written, no core dumps, and dying with the parent.

Equal questions get equal answers: the parent fixes the hash seed (with a random one `simplify(9 - 9**oo)` is 0 in one
process of ten), and sympy's random numbers are seeded for each comparison.

It runs as a script (`python -P`, this folder is not on its path) and imports nothing of this project.
"""

import ctypes
import json
import logging
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1


def confine(parent: int, memory_mib: int) -> None:
    """Ties this process to `parent` (a process id) and caps its address space; a file write raises OSError."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit, value in (
        (resource.RLIMIT_AS, memory_mib * 2**20),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


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
            if gold_forms != forms and any(map(computes_with_infinity, [*gold_forms, *forms])):
                return "unparsed", "computes_with_infinity"
            return "correct", "math_verify"
        if all(isinstance(form, str) for form in gold_forms):
            return "unparsed", "gold_not_understood"
        if all(isinstance(form, str) for form in forms):
            return "unparsed", "answer_not_understood"
        verify(gold_forms, forms, timeout_seconds=None, raise_on_error=True)
    except MemoryError:
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


def serve(requests, answers) -> None:
    """Answers requests until end of input. Memory exhaustion ends the process, since its state is then unknown."""
    for line in requests:
        request = json.loads(line)
        try:
            verdict, reason = compare(request["gold"], request["prediction"])
        except MemoryError:
            verdict, reason = "crashed", "memory_limit"
        answers.write(json.dumps({"verdict": verdict, "reason": reason}).encode() + b"\n")
        answers.flush()
        if verdict == "crashed":
            return


def main() -> None:
    """Arguments: the parent's process id, the memory limit in MiB. Says {"ready": true} once math-verify is there."""
    # The answers get a descriptor of their own: whatever a library prints must not look like one.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    confine(parent=int(sys.argv[1]), memory_mib=int(sys.argv[2]))
    try:
        logging.disable(logging.CRITICAL)
        mend_percent()
        compare("$1$", "$1$")
    except Exception as error:
        answers.write(
            json.dumps({"ready": False, "error": f"{type(error).__name__}: {error}"}).encode() + b"\n"
        )
        sys.exit(1)
    answers.write(b'{"ready": true}\n')
    answers.flush()
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
