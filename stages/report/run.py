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
from pathlib import Path
from typing import Any

from stages.algorithms.estimators import Interval
from stages.foundations.files import write_text_atomically
from stages.foundations.job import Job
from stages.foundations.params import CUSTOM
from stages.pages.page import fill_page, graph_lanes, metric_label, visible_text
from stages.pages.reading import data_funnels, loss_charts, ways
from stages.pages.shown_stages import shown
from stages.report.asynchronous import describe_rounds
from stages.report.benchmarks import Benchmark, describe_benchmarks, last_policy, verdict_sentence
from stages.report.charts import branch_charts, curve_charts, join_rounds
from stages.report.inputs import Inputs, read_inputs
from stages.report.responses import choose_examples, describe_search
from stages.report.stage import ReportParams


def main(job: Job) -> None:
    """Writes the page, and next to it the result that the terminal shows."""
    params: ReportParams = job.sections["report"]
    inputs = read_inputs(job.paths)
    write_text_atomically(job.paths.out, render_page(inputs, params))
    write_text_atomically(job.paths.result, json.dumps(describe_result(inputs, params), indent=2) + "\n")


FOLDER = Path(__file__).parent


def render_page(inputs: Inputs, params: ReportParams) -> str:
    """Returns the whole page as HTML. Equal arguments give equal text."""
    filters = {
        "bare": lambda fraction: f"{100 * fraction:.1f}",
        # An empty cell of a table is NaN in pandas, not a text.
        "visible": lambda text: visible_text(text if isinstance(text, str) else "", params.example_characters),
        "sentence": verdict_sentence,
    }
    return fill_page(FOLDER, _content(inputs, params), filters, has_times=True)


def _content(inputs: Inputs, params: ReportParams) -> dict[str, Any]:
    benchmarks = describe_benchmarks(inputs, params)
    segments = join_rounds(inputs.round_curves, inputs.rounds)
    label, held_out = _held_out(benchmarks)
    last = last_policy(inputs)
    # The verifiers: a user's function appears with its file and name.
    paths = {path for rows in inputs.responses.values() for path in rows["path"].dropna()}
    # Rounds have learning curves; these are the stages that train once, on existing data.
    trained_once = {stage.address: inputs.curves.get(stage.address) for stage in inputs.stages if not stage.item}
    trained_once = {name: curve for name, curve in trained_once.items() if curve is not None}
    return {
        "title": params.title,
        "notes": [part.strip() for part in params.notes.split("\n\n") if part.strip()],
        "warnings": inputs.warnings,
        "baseline": params.baseline_policy,
        "last": last,
        "seed": inputs.seed,
        "policies": inputs.policies,
        "rounds": inputs.rounds,
        "sources": inputs.sources,
        "ungraded": [policy for policy in inputs.policies if policy not in inputs.graded],
        "benchmarks": benchmarks,
        "judges": sorted(path for path in paths if path.startswith(f"{CUSTOM}/")),
        "unmeasured": sorted(set(params.published) - {benchmark.name for benchmark in benchmarks}),
        "curves": curve_charts(segments, held_out, label) if segments else [],
        "branches": branch_charts(inputs.round_curves, inputs.rounds),
        "searches": describe_search(inputs, params.baseline_policy),
        "faint": [segment.name for segment in segments if not segment.is_on_line],
        "without_curve": [name for name in inputs.rounds if name not in inputs.round_curves],
        "losses": loss_charts(trained_once, "nats/token", "step"),
        "asynchronous": describe_rounds(inputs.waits, inputs.round_curves),
        "funnels": data_funnels(inputs.stages, inputs.metrics),
        "ways": ways(inputs.stages, inputs.metrics, inputs.params),
        "contamination": contamination(inputs, params.contamination_pairs),
        "repeats": repeats(inputs),
        "cards": inputs.cards,
        "examples": choose_examples(inputs, params.example_problems, params.baseline_policy, last),
        "work": work_by_stage(inputs),
        "metrics": inputs.metrics,
        "params_text": inputs.params_text,
        "graph": graph_lanes(inputs.stages, inputs.rounds),
        "addresses": [stage.address for stage in inputs.stages],
    }


def _held_out(benchmarks: list[Benchmark]) -> tuple[str, dict[str, Interval]]:
    """Returns the first benchmark's headline score of every policy, for the chart of training accuracy."""
    if not benchmarks:
        return "", {}
    first = benchmarks[0]
    # Training accuracy is a mean over samples, so it is compared with the headline (avg@k), not with greedy.
    place = first.metrics.index(first.headline_metric)
    scores = {row.policy: row.scores[place] for row in first.rows}
    label = f"held out, {metric_label(first.headline_metric)}"
    return label, {policy: own for policy, own in scores.items() if own}


def describe_result(inputs: Inputs, params: ReportParams) -> dict[str, Any]:
    """Returns each graded policy's score on each benchmark's first metric, gains of the last policy, and warnings.

    A gain is paired over problems, with a 95% interval; `verdict` is about these two policies, not about a setting.
    """
    scores, gains = [], []
    for benchmark in describe_benchmarks(inputs, params):
        # One score per policy: the console has a line for each.
        place = benchmark.metrics.index(benchmark.headline_metric)
        for row in benchmark.rows:
            score = row.scores[place]
            if score:
                named = {"policy": row.policy, "benchmark": benchmark.name}
                metric = metric_label(benchmark.headline_metric)
                scores.append({**named, "metric": metric, **_numbers(score), "problems": benchmark.problems})
        for comparison in benchmark.comparisons:
            named = {"policy": comparison.policy, "baseline": comparison.baseline, "benchmark": comparison.benchmark}
            difference = comparison.difference
            gains.append(
                {
                    **named,
                    "metric": metric_label(comparison.metric),
                    **_numbers(difference.interval),
                    "p_value": difference.p_value,
                    "verdict": difference.verdict,
                    "problems": difference.problems,
                }
            )
    return {"title": params.title, "page": "index.html", "scores": scores, "gains": gains, "warnings": inputs.warnings}


def _numbers(interval: Interval) -> dict[str, float]:
    return {"value": interval.estimate, "low": interval.low, "high": interval.high}


def contamination(inputs: Inputs, examples: int) -> dict[str, Any] | None:
    """Returns the results of decontamination, with example pairs of texts; None when no stage has counted pairs."""
    looked = [metrics for metrics in inputs.metrics.values() if "contamination/pairs" in metrics]
    if not looked:
        return None
    benchmarks = [
        (name.removesuffix("/rows_hit"), int(metrics.get(name.removesuffix("_hit"), 0)), int(hit))
        for metrics in looked
        for name, hit in metrics.items()
        if name.endswith("/rows_hit")
    ]
    dropped = [
        (stage, int(value))
        for stage, metrics in inputs.metrics.items()
        for key, value in metrics.items()
        if key.startswith("dropped/") and "contaminated" in key
    ]
    tables = dict.fromkeys(shown(stage.name).contamination for stage in inputs.stages)
    by_rule = [
        (benchmark, stage, rule, rows)
        for stage, table in inputs.contamination.items()
        for (benchmark, rule), rows in table.groupby(["benchmark", "rule"], sort=True)
    ]
    hits = [
        (*names, inputs.revisions.get(names[0], "unknown"), len(rows), rows["benchmark_problem_id"].nunique())
        for *names, rows in by_rule
    ]
    # The first pair of each stage, benchmark and rule, then the second pairs: rules with few hits are shown too.
    in_turn = sorted((place, turn) for turn, (*_, rows) in enumerate(by_rule) for place in range(len(rows)))
    return {
        "benchmarks": benchmarks,
        "pairs": sum(int(metrics["contamination/pairs"]) for metrics in looked),
        "dropped": dropped,
        "tables": [f"data/{name}.parquet" for name in tables if name],
        "hits": sorted(hits),
        "examples": [by_rule[turn][-1].iloc[place].to_dict() for place, turn in in_turn[:examples]],
    }


def repeats(inputs: Inputs) -> list[tuple[str, str, int]]:
    """Returns scope, rule and number of pairs for problems that occur twice."""
    if inputs.duplicates is None:
        return []
    counts = inputs.duplicates.groupby(["scope", "rule"], sort=True).size()
    return [(scope, rule, int(pairs)) for (scope, rule), pairs in counts.items()]


def work_by_stage(inputs: Inputs) -> list[tuple[str, list[int | None]]]:
    """Returns, for each stage with such counts: rows in, rows kept, steps, tokens sampled, tokens trained."""
    names = ("rows/in", "rows/kept", "progress/steps", "tokens/sampled", "tokens/trained")
    return [
        (stage, [int(metrics[name]) if name in metrics else None for name in names])
        for stage, metrics in inputs.metrics.items()
        if any(name in metrics for name in names)
    ]
