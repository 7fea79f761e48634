"""Parameters and paths of stage `grade`, and its description for other modules."""

from __future__ import annotations

from pydantic import Field

from stages.algorithms.emergence import keyword_measure
from stages.engines.verifier.params import VerifierParams
from stages.foundations.params import CustomFunctionParams, StrictParams
from stages.foundations.stage import About, Sections, Stage


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
    verifier: CustomFunctionParams | None = Field(default=None, exclude_if=lambda value: value is None)
    """A function that says which responses are right; absent: the rules of section `verifier`."""


STAGE = Stage(
    sections={"verifier": VerifierParams, "grade": GradeParams},
    inputs={"responses": "data/responses/${item}.parquet"},
    outputs={
        "verdicts": "data/verdicts/${item}.parquet",
        "metrics": "data/metrics/grade/${item}.json",
        "headline": "data/headline/grade/${item}",
    },
    foreach="policies",
    items=list[str],
)
DESCRIPTIONS = (
    "problems",
    "responses",
    "undecided_fraction",
    "unparsed_fraction",
    "exhausted_fraction",
    "verifier_failed_fraction",
    "response_tokens_mean",
    "truncated_fraction",
    "always_solved_fraction",
    "never_solved_fraction",
    "branching_frequency",
    "coding_rate",
)
"""The metrics of a benchmark beside its accuracies; rates of keywords are named by the parameters."""


def _contradictions(sections: Sections) -> list[str]:
    samples = sections["respond"].samples
    too_many = [k for k in sections["grade"].pass_at_k if k > samples]
    return [f"grade.pass_at_k {too_many} exceeds respond.samples {samples}"] if too_many else []


def _score_keys(sections: Sections) -> list[str]:
    respond, grade = sections["respond"], sections["grade"]
    accuracies = [
        f"avg_at_{respond.samples}",
        f"maj_at_{respond.samples}",
        *(f"pass_at_{k}" for k in grade.pass_at_k),
        *(["greedy"] if respond.is_greedy_included else []),
    ]
    has_digits = any(
        source.role == "benchmark" and source.origin.kind == "digits" for source in sections["sources"].values()
    )
    searched = TRIALS if has_digits else ()
    return [*accuracies, *DESCRIPTIONS, *searched, *map(keyword_measure, grade.emergence_keywords)]


ABOUT = About(
    description="Verdicts on stored responses, and scores with intervals. Needs no GPU.",
    headline=("score", "accuracy {:.1%}"),
    contradictions=_contradictions,
    named_after=("policy",),
    score_keys=_score_keys,
    is_varied=True,
)
TRIALS = (
    "trials_mean",
    "without_trials_fraction",
    "repeated_trial_fraction",
    "wrong_trial_fraction",
    "false_claim_fraction",
)
"""Further metrics of a benchmark of the task family "digits"."""
