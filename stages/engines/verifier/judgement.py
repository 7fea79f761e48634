"""What a verifier says about a response."""

from __future__ import annotations

from dataclasses import dataclass

from stages.algorithms.answers.verdicts import Verdict


@dataclass(frozen=True)
class Judgement:
    """What the verifier says about one response."""

    verdict: Verdict
    extracted: str | None
    """The answer as found in the response; None when there is none."""
    path: str
    """What decided: `extraction`, `exact` or `math_verify`."""
    reason: str
