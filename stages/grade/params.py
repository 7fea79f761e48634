"""Parameters of the `grade` stage."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams

TRIALS = (
    "trials_mean",
    "without_trials_fraction",
    "repeated_trial_fraction",
    "wrong_trial_fraction",
    "false_claim_fraction",
)
"""What the stage says besides of a benchmark of the task family "digits"."""


class GradeParams(StrictParams):
    """Section `grade`."""

    bootstrap_draws: int = Field(ge=100)
    """Resamplings of the problems behind each 95% interval."""
    pass_at_k: list[int] = Field(min_length=1)
    """The k for which pass@k is reported; none may exceed the samples of a problem."""
    seed: int
    """Of the bootstrap; one seed for all scores, so that they are drawn on the same problems."""
    emergence_keywords: list[str]
    """Words whose rate in sampled responses is reported ("Demystifying Long CoT": wait, recheck, alternatively,
    retry, however)."""
