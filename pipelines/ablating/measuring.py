"""Reads the metrics of finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pandas

from pipelines.ablating.definition import (
    Ablation,
    CurveMean,
    Metric,
    Score,
    StepsToReach,
    TokensToReach,
    resolve,
)
from pipelines.ablating.plan import PlannedRun
from pipelines.ablating.records import read_curve, read_metrics, read_verdicts
from pipelines.ablating.results import Measured, spent_to_reach
from pipelines.ablating.settings import applies, scores_policy
from stages.algorithms.estimators import pass_at_k
from stages.foundations.errors import UserError


def measure(ablation: Ablation, places: Mapping[PlannedRun, Path]) -> dict[str, dict[str, Measured]]:
    """Metric -> variant -> what its finished runs measured. UserError names a metric that a run does not have."""
    measured: dict[str, dict[str, Measured]] = {}
    for name, metric in ablation.metrics.items():
        for run, place in places.items():
            own = measured.setdefault(name, {}).setdefault(run.variant, Measured({}, {}))
            policy = ablation.policy_of(run.variant)
            if not applies(metric, policy, run.params):
                own.by_seed[run.seed] = None
                continue
            try:
                own.by_seed[run.seed] = _value(metric, policy, place)
            except (KeyError, OSError) as error:
                raise UserError(f"ablation {ablation.name}, metrics.{name}: {place} has no {error}") from None
            if scores_policy(metric, policy, run.params) and (
                scores := _scores_of_problems(metric, policy, place)
            ):
                own.problems[run.seed] = scores
    return measured


def _value(metric: Metric, policy: str, place: Path) -> float | None:
    file = resolve(metric.file, policy)
    match metric:
        case Score():
            return read_metrics(place, file)[metric.key]
        case CurveMean():
            values = read_curve(place, file)[metric.column].dropna()
            chosen = values if metric.last_steps is None else values.tail(metric.last_steps)
            return float(chosen.mean()) if len(chosen) else None
        case TokensToReach() | StepsToReach():
            curve = read_curve(place, file)
            accuracies, tokens = curve["accuracy/mean"].to_list(), curve["tokens/sampled"].to_list()
            spent = tokens if isinstance(metric, TokensToReach) else [1] * len(tokens)
            return spent_to_reach(accuracies, spent, metric.accuracy, metric.window_steps)


def _scores_of_problems(metric: Score, policy: str, place: Path) -> dict[str, float]:
    """Problem -> score, for accuracies; empty for what else is said of a benchmark."""
    benchmark, _, quantity = metric.key.partition("/")
    is_greedy = quantity == "greedy"
    if not is_greedy and not quantity.startswith(("avg_at_", "pass_at_")):
        return {}
    verdicts = read_verdicts(place, policy)
    own = verdicts[
        (verdicts["benchmark"] == benchmark) & (verdicts["mode"] == ("greedy" if is_greedy else "sampled"))
    ]
    correct = (own["verdict"] == "correct").groupby(own["problem_id"])
    if not quantity.startswith("pass_at_"):
        return correct.mean().to_dict()
    return _pass_rates(correct, int(quantity.removeprefix("pass_at_")))


def _pass_rates(correct: Any, k: int) -> dict[str, float]:
    counts: pandas.DataFrame = correct.agg(["count", "sum"])
    return dict(
        zip(
            counts.index, numpy.atleast_1d(pass_at_k(counts["count"], counts["sum"], k)).tolist(), strict=True
        )
    )
