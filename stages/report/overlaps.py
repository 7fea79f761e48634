"""What training sources share with benchmarks, and problems with each other; how much work each stage did."""

from __future__ import annotations

from typing import Any

from stages.foundations.stage import about
from stages.report.inputs import Inputs


def contamination(inputs: Inputs, examples: int) -> dict[str, Any] | None:
    """What decontamination found, with pairs of texts to look at; None when no stage has counted its pairs."""
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
    tables = dict.fromkeys(about(stage.name).contamination for stage in inputs.stages)
    by_rule = [
        (benchmark, stage, rule, rows)
        for stage, table in inputs.contamination.items()
        for (benchmark, rule), rows in table.groupby(["benchmark", "rule"], sort=True)
    ]
    hits = [
        (*names, inputs.revisions.get(names[0], "unknown"), len(rows), rows["benchmark_problem_id"].nunique())
        for *names, rows in by_rule
    ]
    # The first pair of each stage, benchmark and rule, then the second ones: a rule with few hits is seen too.
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
    """Scope, rule and pairs of problems that stand there twice."""
    if inputs.duplicates is None:
        return []
    counts = inputs.duplicates.groupby(["scope", "rule"], sort=True).size()
    return [(scope, rule, int(pairs)) for (scope, rule), pairs in counts.items()]


def work_by_stage(inputs: Inputs) -> list[tuple[str, list[int | None]]]:
    """Of each stage that counted some: rows in, rows kept, steps, tokens sampled, tokens trained."""
    names = ("rows/in", "rows/kept", "progress/steps", "tokens/sampled", "tokens/trained")
    return [
        (stage, [int(metrics[name]) if name in metrics else None for name in names])
        for stage, metrics in inputs.metrics.items()
        if any(name in metrics for name in names)
    ]
