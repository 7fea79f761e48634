"""What training problems share with benchmarks, and how much work each stage did."""

from __future__ import annotations

from dataclasses import dataclass

from stages.foundations.stage import about
from stages.report.inputs import Inputs


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


@dataclass(frozen=True)
class Work:
    """What a stage did, in numbers that equal runs share; None where a stage has no such number."""

    stage: str
    rows_in: int | None
    rows_kept: int | None
    steps: int | None
    tokens_sampled: int | None
    tokens_trained: int | None


def contamination(inputs: Inputs) -> Contamination | None:
    """What decontamination found; None when no stage has counted its pairs."""
    looked = [metrics for metrics in inputs.metrics.values() if "contamination/pairs" in metrics]
    if not looked:
        return None
    leaks = [
        BenchmarkLeak(
            name.removesuffix("/rows_hit"), int(metrics.get(name.removesuffix("_hit"), 0)), int(hit)
        )
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


def work_by_stage(inputs: Inputs) -> list[Work]:
    """One line for each stage that counted rows, steps or tokens."""
    names = ("rows/in", "rows/kept", "progress/steps", "tokens/sampled", "tokens/trained")
    lines = [
        Work(stage, *(int(metrics[name]) if name in metrics else None for name in names))
        for stage, metrics in inputs.metrics.items()
    ]
    return [
        line
        for line in lines
        if any(value is not None for value in vars(line).values() if value != line.stage)
    ]
