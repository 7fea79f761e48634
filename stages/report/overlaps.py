"""What training sources share with benchmarks, and problems with each other: counts, and pairs with both texts.

Also how much work each stage did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas

from stages.foundations.legible import legible
from stages.foundations.stage import about
from stages.report.inputs import Inputs


@dataclass(frozen=True)
class Hits:
    """Pairs of one benchmark that one rule found in one stage's rows."""

    stage: str
    benchmark: str
    revision: str
    rule: str
    pairs: int
    problems: int
    """Problems of the benchmark in them."""


@dataclass(frozen=True)
class Pair:
    """Two texts that were found alike."""

    rule: str
    overlap: float
    source: str
    problem_id: str
    problem: str
    other_source: str
    other_id: str
    other_problem: str


def benchmark_hits(inputs: Inputs) -> list[Hits]:
    """Counts by stage, benchmark and rule, benchmarks in order of their names."""
    lines = []
    for stage, table in _hit_tables(inputs).items():
        for (benchmark, rule), own in table.groupby(["benchmark", "rule"], sort=True):
            revision = inputs.revisions.get(benchmark, "unknown")
            problems = own["benchmark_problem_id"].nunique()
            lines.append(Hits(stage, benchmark, revision, rule, len(own), problems))
    return sorted(lines, key=lambda line: (line.benchmark, line.stage, line.rule))


def example_pairs(inputs: Inputs, count: int, characters: int) -> list[Pair]:
    """Pairs to look at: the first of each stage, benchmark and rule in turn."""
    groups = [
        own.to_dict("records")
        for table in _hit_tables(inputs).values()
        for _, own in table.groupby(["benchmark", "rule"], sort=True)
    ]
    chosen: list[dict] = []
    for place in range(max(map(len, groups), default=0)):
        chosen += [rows[place] for rows in groups if place < len(rows)]
        if len(chosen) >= count:
            break
    return [_pair(row, characters) for row in chosen[:count]]


def _pair(row: Mapping, characters: int) -> Pair:
    overlap = row["overlap"]
    texts = (
        row["source"],
        row["problem_id"],
        row["problem"],
        row["benchmark"],
        row["benchmark_problem_id"],
        row["benchmark_problem"],
    )
    shown = (legible(text if isinstance(text, str) else "", characters) for text in texts)
    return Pair(row["rule"], overlap if pandas.notna(overlap) else 0.0, *shown)


def repeats(inputs: Inputs) -> list[tuple[str, str, int]]:
    """Scope, rule and pairs of problems that stand there twice."""
    if inputs.duplicates is None:
        return []
    counts = inputs.duplicates.groupby(["scope", "rule"], sort=True).size()
    return [(scope, rule, int(pairs)) for (scope, rule), pairs in counts.items()]


def _hit_tables(inputs: Inputs) -> dict[str, pandas.DataFrame]:
    return {stage: table for stage, table in inputs.contamination.items() if len(table)}


@dataclass(frozen=True)
class BenchmarkLeak:
    """How many problems of a benchmark stood in training data before those were dropped."""

    benchmark: str
    problems: int
    problems_hit: int


@dataclass(frozen=True)
class Contamination:
    """What the data stages counted."""

    benchmarks: list[BenchmarkLeak]
    pairs: int
    """Pairs of a training problem and a benchmark problem."""
    dropped: list[tuple[str, int]]
    """Stage and rows that it dropped for being in a benchmark."""
    tables: list[str]
    """Where the pairs are, below data/."""


def contamination(inputs: Inputs) -> Contamination | None:
    """What decontamination found; None when no stage has counted its pairs."""
    looked = [metrics for metrics in inputs.metrics.values() if "contamination/pairs" in metrics]
    if not looked:
        return None
    leaks = [
        BenchmarkLeak(name.removesuffix("/rows_hit"), int(metrics.get(name.removesuffix("_hit"), 0)), int(hit))
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
    pairs = sum(int(metrics["contamination/pairs"]) for metrics in looked)
    return Contamination(leaks, pairs, dropped, [f"data/{name}.parquet" for name in tables if name])


def work_by_stage(inputs: Inputs) -> list[tuple[str, list[int | None]]]:
    """Of each stage that counted some: rows in, rows kept, steps, tokens sampled, tokens trained."""
    names = ("rows/in", "rows/kept", "progress/steps", "tokens/sampled", "tokens/trained")
    return [
        (stage, [int(metrics[name]) if name in metrics else None for name in names])
        for stage, metrics in inputs.metrics.items()
        if any(name in metrics for name in names)
    ]
