"""Scores of each benchmark from verdicts: greedy, avg@k, pass@k, maj@k, each with a 95% interval.

Source: the protocols of "Demystifying Long CoT" (arXiv 2502.03373) and DAPO (arXiv 2503.14476, avg@32); estimators and
their sources are in stages/algorithms/estimators.py. Intervals resample problems, not responses.

An undecided verdict (unparsed, timed out, crashed) scores as not correct; its share is reported beside the score.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy
import pandas

from stages.algorithms.answers.normalisation import clean, compact
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.digit_tasks import read_problem, read_trials
from stages.algorithms.emergence import emergence_measures
from stages.algorithms.estimators import clustered_bootstrap, majority_at_k, pass_at_k, with_width
from stages.foundations.errors import UserError
from stages.grade.stage import TRIALS, GradeParams

CORRECT_VOTE = object()
"""All correct answers are one candidate of the vote, however they are written."""


def score_benchmarks(responses: pandas.DataFrame, verdicts: pandas.DataFrame, params: GradeParams) -> dict[str, float]:
    """Flat metrics of every benchmark in the response table; `verdicts` has the same rows in the same order."""
    rows = responses.assign(verdict=verdicts["verdict"].to_numpy(), extracted=verdicts["extracted"].to_numpy())
    rows["is_correct"] = rows["verdict"] == Verdict.CORRECT
    metrics: dict[str, float] = {"rows/in": len(rows), "rows/kept": len(rows)}
    for benchmark, part in rows.groupby("benchmark", sort=True):
        scores = _accuracies(part, params) | _descriptions(part, params.emergence_keywords) | _trials(part)
        metrics |= {f"{benchmark}/{name}": value for name, value in scores.items()}
    return metrics


def headlines(metrics: Mapping[str, float]) -> dict[str, dict[str, str]]:
    """Of each benchmark: columns of a headline, and the names of their numbers.

    The score is that of all samples (avg@k), or the greedy one where none were drawn.
    """
    columns_of = {}
    for name in metrics:
        benchmark, _, score = name.partition("/")
        if score == "greedy" or re.fullmatch(r"avg_at_\d+", score):  # avg@k comes after greedy and takes its place
            shown = {"score": name, "low": f"{name}_low", "high": f"{name}_high"}
            columns_of[benchmark] = shown | {"tokens": f"{benchmark}/response_tokens_mean"}
    return columns_of


def _accuracies(rows: pandas.DataFrame, params: GradeParams) -> dict[str, float]:
    """The four scores with their intervals; a mode that was not sampled has no score."""
    per_problem: dict[str, Sequence[float]] = {}
    greedy = rows[rows["mode"] == "greedy"]
    if len(greedy):
        # One value a problem, as below: the bootstrap draws problems.
        per_problem["greedy"] = greedy.groupby("problem_id")["is_correct"].mean().to_list()
    sampled = rows[rows["mode"] == "sampled"]
    if len(sampled):
        # Sorted by id: the bootstrap draws positions, and the order of the table must not matter.
        groups = [group for _, group in sampled.groupby("problem_id", sort=True)]
        samples = _samples_per_problem(groups)
        correct = numpy.array([group["is_correct"].sum() for group in groups])
        per_problem[f"avg_at_{samples}"] = (correct / samples).tolist()
        for k in params.pass_at_k:
            # `ABOUT.contradictions` compares the sections; the responses may still be those of another setting.
            if k > samples:
                raise UserError(
                    f"grade.pass_at_k needs {k} samples of a problem, but the responses have {samples}: "
                    "lower it, or raise the number of samples in section `respond`"
                )
            per_problem[f"pass_at_{k}"] = numpy.asarray(pass_at_k(samples, correct, k)).tolist()
        per_problem[f"maj_at_{samples}"] = [majority_at_k(votes(group), CORRECT_VOTE, samples) for group in groups]
    scores: dict[str, float] = {}
    for name, values in per_problem.items():
        interval = clustered_bootstrap(values, draws=params.bootstrap_draws, seed=params.seed)
        # All problems solved, or none: the bootstrap would give an interval without a width.
        interval = with_width(interval, len(values), 0.0, 1.0)
        scores |= {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return scores


def _samples_per_problem(groups: list[pandas.DataFrame]) -> int:
    counts = {len(group) for group in groups}
    if len(counts) > 1:
        raise UserError(f"problems have different numbers of samples ({sorted(counts)}): run the respond stage again")
    return counts.pop()


def votes(group: pandas.DataFrame) -> list[object | None]:
    """One vote for each response; equal canonical text is one candidate, a response without an answer abstains."""
    return [
        # Wrong answers differ by their text alone: the verifier has compared it with the gold answer only.
        CORRECT_VOTE if is_correct else compact(clean(extracted)) if isinstance(extracted, str) else None
        for is_correct, extracted in zip(group["is_correct"], group["extracted"], strict=True)
    ]


def _described(rows: pandas.DataFrame) -> pandas.DataFrame:
    """The sampled responses, or the greedy ones where there are no others."""
    sampled = rows[rows["mode"] == "sampled"]
    return sampled if len(sampled) else rows


def _trials(rows: pandas.DataFrame) -> dict[str, float]:
    """How responses search, for the task family "digits"; nothing for other problems.

    A false claim is a trial that ends in `yes` and does not solve the problem. Shares of trials and claims are 0 where
    there are none.
    """
    described = _described(rows)
    problems = {text: read_problem(text) for text in described["problem"].unique()}
    # One foreign problem is enough: the benchmark is of another family.
    if None in problems.values():
        return {}
    searches = [
        read_trials(problems[text], response)
        for text, response in zip(described["problem"], described["response"], strict=True)
    ]
    trials, claims = sum(search.trials for search in searches), sum(search.claims for search in searches)
    values = {
        "trials_mean": trials / len(searches),
        "without_trials_fraction": sum(search.trials == 0 for search in searches) / len(searches),
        "repeated_trial_fraction": sum(search.repeated for search in searches) / max(1, trials),
        "wrong_trial_fraction": sum(search.wrong_sums for search in searches) / max(1, trials),
        "false_claim_fraction": sum(search.false_claims for search in searches) / max(1, claims),
    }
    # `ABOUT.score_keys` promises these names before the stage has run.
    assert tuple(values) == TRIALS
    return values


def _descriptions(rows: pandas.DataFrame, keywords: Sequence[str]) -> dict[str, float]:
    """Sizes, lengths, undecided shares, and the emergence measures of "Demystifying Long CoT" (section 5).

    Lengths, emergence, and the shares of problems that every response or none solves, are those of the sampled
    responses. Where there are none, they are those of the greedy ones.
    """
    described = _described(rows)
    verdict, solved = rows["verdict"], described.groupby("problem_id")["is_correct"].mean()
    values = {
        "problems": rows["problem_id"].nunique(),
        "responses": len(rows),
        "undecided_fraction": verdict.isin([v.value for v in Verdict if v.is_undecided]).mean(),
        "unparsed_fraction": (verdict == Verdict.UNPARSED).mean(),
        "exhausted_fraction": (verdict == Verdict.EXHAUSTED).mean(),
        "verifier_failed_fraction": verdict.isin([v.value for v in Verdict if v.is_failure]).mean(),
        "response_tokens_mean": described["response_tokens"].mean(),
        "truncated_fraction": described["is_truncated"].mean(),
        "always_solved_fraction": (solved == 1).mean(),
        "never_solved_fraction": (solved == 0).mean(),
        **pandas.DataFrame([emergence_measures(response, keywords) for response in described["response"]]).mean(),
    }
    return {name: float(value) for name, value in values.items()}
