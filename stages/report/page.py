"""Puts the page together. What a run lacks is said in the section where it would stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.algorithms.estimators import Interval
from stages.pages.drawing import Chart
from stages.pages.funnels import data_funnels, ways
from stages.pages.page import graph_lanes, page_environment, page_frame
from stages.report.benchmarks import Benchmark, describe_benchmarks, verdict_sentence
from stages.report.cards import describe_tables
from stages.report.charts import curve_charts, join_rounds, loss_chart
from stages.report.examples import choose_examples
from stages.report.funnels import contamination, work_by_stage
from stages.report.inputs import Inputs
from stages.report.overlaps import benchmark_hits, example_pairs, repeats
from stages.report.params import ReportParams
from stages.report.scores import last_policy, metric_label
from stages.report.searching import branch_charts, describe_search
from stages.report.timelines import describe_rounds

FOLDER = Path(__file__).parent


def render_page(inputs: Inputs, params: ReportParams) -> str:
    """The whole page as HTML. Equal arguments give equal text."""
    environment = page_environment(FOLDER)
    environment.filters |= {
        "bare": lambda fraction: f"{100 * fraction:.1f}",
        "metric": metric_label,
        "sentence": verdict_sentence,
    }
    styles = [FOLDER / "timeline.css"] if inputs.timelines else []
    return environment.get_template("template.html").render(_content(inputs, params), **page_frame(styles))


def _content(inputs: Inputs, params: ReportParams) -> dict[str, Any]:
    benchmarks = describe_benchmarks(inputs, params)
    segments = join_rounds(inputs.round_curves, inputs.rounds)
    label, held_out = _held_out(benchmarks)
    last = last_policy(inputs)
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
        "unmeasured": sorted(set(params.published) - {benchmark.name for benchmark in benchmarks}),
        "curves": curve_charts(segments, held_out, label) if segments else [],
        "branches": branch_charts(inputs),
        "searches": describe_search(inputs, params.baseline_policy),
        "faint": [segment.name for segment in segments if not segment.is_on_line],
        "without_curve": [name for name in inputs.rounds if name not in inputs.round_curves],
        "losses": _losses(inputs),
        "asynchronous": describe_rounds(inputs.timelines, inputs.round_curves),
        "funnels": data_funnels(inputs.stages, inputs.metrics),
        "ways": ways(inputs.stages, inputs.metrics, inputs.params),
        "contamination": contamination(inputs),
        "hits": benchmark_hits(inputs),
        "pairs": example_pairs(inputs, params.contamination_pairs, params.example_characters),
        "repeats": repeats(inputs),
        "cards": describe_tables(inputs.tables),
        "examples": choose_examples(inputs, params, last),
        "work": work_by_stage(inputs),
        "metrics": inputs.metrics,
        "params_text": inputs.params_text,
        "graph": graph_lanes(inputs.stages, inputs.rounds),
    }


def _held_out(benchmarks: list[Benchmark]) -> tuple[str, dict[str, Interval]]:
    """The first benchmark's headline score of every policy, to stand beside training accuracy."""
    if not benchmarks:
        return "", {}
    first = benchmarks[0]
    place = first.metrics.index(first.headline_metric)
    scores = {row.policy: row.scores[place] for row in first.rows}
    label = f"held out, {metric_label(first.headline_metric)}"
    return label, {policy: own for policy, own in scores.items() if own}


def _losses(inputs: Inputs) -> list[Chart]:
    """Of stages that train once, on data that are there before."""
    curves = {stage.address: inputs.curves.get(stage.address) for stage in inputs.stages if not stage.item}
    charts = [loss_chart(name, curve) for name, curve in curves.items() if curve is not None]
    return [chart for chart in charts if chart is not None]
