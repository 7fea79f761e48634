"""The result of a run as data: every score and gain that the page shows first, for those who do not read the page.

The console, MLflow and Prefect show this file. It holds fractions, not percent:

    {"title": "...", "page": "index.html",
     "scores": [{"policy": "sft", "benchmark": "gsm8k", "metric": "avg@8", "value": 0.41, "low": 0.37, "high": 0.45,
                 "problems": 400}],
     "gains": [{"policy": "rl_3", "baseline": "sft", "benchmark": "gsm8k", "metric": "avg@8", "value": 0.05,
                "low": 0.02, "high": 0.08, "p_value": 0.001, "verdict": "better", "problems": 400}],
     "warnings": ["..."]}

stages/t2i_report/result.py writes the same keys, and `unit` where a score is not of problems or a gain no fraction.
"""

from __future__ import annotations

from typing import Any

from stages.algorithms.estimators import Interval
from stages.report.benchmarks import describe_benchmarks
from stages.report.inputs import Inputs
from stages.report.params import ReportParams
from stages.report.scores import metric_label


def describe_result(inputs: Inputs, params: ReportParams) -> dict[str, Any]:
    """Scores of each graded policy on each benchmark's first metric, the gains of the last policy, and warnings.

    A gain is paired over problems, with a 95% interval; `verdict` is about these two policies, not about a setting.
    """
    scores, gains = [], []
    for benchmark in describe_benchmarks(inputs, params):
        place = benchmark.metrics.index(benchmark.headline_metric)
        for row in benchmark.rows:
            score = row.scores[place]
            if score:
                named = {"policy": row.policy, "benchmark": benchmark.name}
                metric = metric_label(benchmark.headline_metric)
                scores.append({**named, "metric": metric, **_numbers(score), "problems": benchmark.problems})
        for found in benchmark.comparisons:
            named = {"policy": found.policy, "baseline": found.baseline, "benchmark": found.benchmark}
            difference = found.difference
            gains.append(
                {
                    **named,
                    "metric": metric_label(found.metric),
                    **_numbers(difference.interval),
                    "p_value": difference.p_value,
                    "verdict": difference.verdict,
                    "problems": difference.problems,
                }
            )
    return {
        "title": params.title,
        "page": "index.html",
        "scores": scores,
        "gains": gains,
        "warnings": inputs.warnings,
    }


def _numbers(interval: Interval) -> dict[str, float]:
    return {"value": interval.estimate, "low": interval.low, "high": interval.high}
