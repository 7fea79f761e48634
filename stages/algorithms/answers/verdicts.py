"""The verdicts of a verifier, and the allowances that a row of problems may state.

Only two of the verdicts are opinions. The others say why there is none. The author of a problem states its allowances;
they are never guessed from an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction


class Verdict(StrEnum):
    """The judgement of a verifier on a response, given the gold answer."""

    CORRECT = "correct"
    """The response's answer is equivalent to the gold answer."""
    WRONG = "wrong"
    """The response's answer is understood, and it is not equivalent."""
    UNPARSED = "unparsed"
    """The response has no answer, or one of the two sides cannot be understood: a fact about the texts."""
    EXHAUSTED = "exhausted"
    """The comparison exceeded its limit of computing time or memory: a fact about the response, which caused it."""
    TIMED_OUT = "timed_out"
    """Only in tables of earlier versions: the process stood still. Today a retry, then an error."""
    CRASHED = "crashed"
    """The process died during the comparison within its limits: a fact about the verifier."""

    @property
    def is_undecided(self) -> bool:
        """True for verdicts without an opinion; a reward rule must assign them a value."""
        return self not in (Verdict.CORRECT, Verdict.WRONG)

    @property
    def is_failure(self) -> bool:
        """True where the verifier failed, not the response: these count towards the abort threshold."""
        return self in (Verdict.TIMED_OUT, Verdict.CRASHED)


@dataclass(frozen=True, slots=True)
class Leniency:
    """Allowances of one row; none of them applies to rewards."""

    # A row of `retrace grade` may state these. Rewards, demonstrations and the stage `grade` allow nothing.
    tolerance: Fraction | None = None
    """Largest absolute difference at which two numbers agree; None for the precision rule of `normalisation`."""
    decimals: bool = False
    """A decimal agrees with an exact answer (a fraction, a root) of which it is the rounding."""
    expressions: bool = False
    """An expression that is not evaluated, `2+2` or an integral, agrees with its value."""
    ordered: bool = True
    """False where the order of letters (`ABD` for `DBA`) and in brackets does not count."""


STRICT = Leniency()


@dataclass(frozen=True)
class Judgement:
    """The verifier's result for one response."""

    verdict: Verdict
    extracted: str | None
    """The answer as written in the response; None if there is none."""
    path: str
    """The part that decided: `extraction`, `exact`, `math_verify` or `environment`."""
    reason: str
