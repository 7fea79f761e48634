"""The verdicts of a verifier. Only two of them are opinions; the rest say why there is none."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What a verifier says about a response, given the gold answer."""

    CORRECT = "correct"
    """The answer that was found is equivalent to the gold answer."""
    WRONG = "wrong"
    """An answer was found and understood, and it is not equivalent."""
    UNPARSED = "unparsed"
    """No answer was found, or one of the two sides cannot be understood: a fact about the texts."""
    EXHAUSTED = "exhausted"
    """The comparison used up its limit of computing time or memory: a fact about the response, which asked for it."""
    TIMED_OUT = "timed_out"
    """Of tables that earlier versions wrote: the process stood still. Now that is tried again and then an error."""
    CRASHED = "crashed"
    """The process died in mid-comparison within its limits: a fact about the verifier."""

    @property
    def is_undecided(self) -> bool:
        """True for the verdicts that are no opinion; a reward rule must name what they are worth."""
        return self not in (Verdict.CORRECT, Verdict.WRONG)

    @property
    def is_failure(self) -> bool:
        """True where the verifier failed, not the response: these count towards the abort threshold."""
        return self in (Verdict.TIMED_OUT, Verdict.CRASHED)
