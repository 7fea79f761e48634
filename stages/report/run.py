"""Writes the main page of a run: which policy is better, how it was trained, and which rows were dropped and why.

The page loads only `timings.js` next to it, with the run's times, which are not an output of the graph. Each section
says which data the run lacks.

Next to the page is its result as data, for the console, MLflow and Prefect. It has fractions, not percent:

    {"title": "...", "page": "index.html",
     "scores": [{"policy": "sft", "benchmark": "gsm8k", "metric": "avg@8", "value": 0.41, "low": 0.37, "high": 0.45,
                 "problems": 400}],
     "gains": [{"policy": "rl_3", "baseline": "sft", "benchmark": "gsm8k", "metric": "avg@8", "value": 0.05,
                "low": 0.02, "high": 0.08, "p_value": 0.001, "verdict": "better", "problems": 400}],
     "warnings": ["..."]}

stages/images/t2i_report/run.py writes the same keys, and `unit` if a score is not about problems or a gain is not a
fraction.
"""

from __future__ import annotations

import json
from typing import Any

from stages.foundations.files import write_text_atomically
from stages.foundations.job import Job
from stages.pages.page import metric_label, paragraph
from stages.pages.reading import numbers_of, report_page
from stages.report.inputs import ReportRun
from stages.report.sections import SECTIONS


def main(job: Job) -> None:
    """Writes the page, and next to it the result that the terminal shows."""
    run = ReportRun(job.paths, job.sections["report"])
    write_text_atomically(job.paths.out, render_page(run))
    write_text_atomically(job.paths.result, json.dumps(describe_result(run), indent=2) + "\n")


def render_page(run: ReportRun) -> str:
    """Returns the whole page as HTML. Equal runs give equal text."""
    names = [", ".join(some) or "none" for some in (run.policies, run.rounds)]
    about = paragraph("Policies {} · RL rounds {} · seed {}", *names, run.seed, kind="quiet")
    return report_page(run, run.report.title, about, SECTIONS)


def describe_result(run: ReportRun) -> dict[str, Any]:
    """Returns each graded policy's score on each benchmark's first metric, gains of the last policy, and warnings.

    A gain is paired over problems, with a 95% interval; `verdict` is about these two policies, not about a setting.
    """
    scores, gains = [], []
    for benchmark in run.benchmarks:
        # One score per policy: the console has a line for each.
        for policy, score in benchmark.scores(benchmark.headline_metric).items():
            named = {"policy": policy, "benchmark": benchmark.name, "metric": metric_label(benchmark.headline_metric)}
            scores.append({**named, **numbers_of(score), "problems": benchmark.problems})
        for comparison in benchmark.comparisons:
            named = {"policy": comparison.policy, "baseline": comparison.baseline, "benchmark": comparison.benchmark}
            difference = comparison.difference
            gains.append(
                {
                    **named,
                    "metric": metric_label(comparison.metric),
                    **numbers_of(difference.interval),
                    "p_value": difference.p_value,
                    "verdict": difference.verdict,
                    "problems": difference.problems,
                }
            )
    title = run.report.title
    return {"title": title, "page": "index.html", "scores": scores, "gains": gains, "warnings": run.warnings}
