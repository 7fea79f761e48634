"""Why rows were dropped, what training problems share with benchmarks, and how much work each stage did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.foundations.about import about
from stages.report.inputs import Inputs, Metrics


@dataclass(frozen=True)
class Funnel:
    """The rows of one data stage."""

    stage: str
    rows_in: int
    kept: int
    dropped: list[tuple[str, int]]
    """Reason in words and rows, most rows first."""

    def share(self, rows: int) -> float:
        """Rows as a fraction of those that came in; 0 when none did."""
        return rows / self.rows_in if self.rows_in else 0.0


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
class WayStep:
    """A step on a way that rows take through several stages."""

    stage: str
    unit: str
    """`pages` or `exercises`."""
    what: str
    """What was dropped and why, or what came in."""
    dropped: int
    left: int


@dataclass(frozen=True)
class Way:
    """From what comes in, such as pages, to what may be trusted, a step for each reason of drops."""

    title: str
    note: str
    steps: list[WayStep]


@dataclass(frozen=True)
class Work:
    """What a stage did, in numbers that equal runs share; None where a stage has no such number."""

    stage: str
    rows_in: int | None
    rows_kept: int | None
    steps: int | None
    tokens_sampled: int | None
    tokens_trained: int | None


def data_funnels(inputs: Inputs) -> list[Funnel]:
    """Funnels of the stages that may drop rows, in the order of the graph."""
    return [
        _funnel(stage.address, inputs.metrics[stage.address])
        for stage in inputs.stages
        if about(stage.name).has_funnel and "rows/in" in inputs.metrics.get(stage.address, {})
    ]


def _funnel(stage: str, metrics: Metrics) -> Funnel:
    drops = {
        key.removeprefix("dropped/"): int(value)
        for key, value in metrics.items()
        if key.startswith("dropped/")
    }
    ranked = sorted(drops.items(), key=lambda item: (-item[1], item[0]))
    words = [(reason.replace("_", " "), rows) for reason, rows in ranked]
    return Funnel(stage, int(metrics["rows/in"]), int(metrics.get("rows/kept", 0)), words)


def ways(inputs: Inputs) -> list[Way]:
    """The ways through several stages, those on which every stage has counted."""
    titles = dict.fromkeys(way.title for stage in inputs.stages if (way := about(stage.name).way))
    found = [_way(inputs, title) for title in titles]
    return [way for way in found if way is not None]


def _way(inputs: Inputs, title: str) -> Way | None:
    steps, notes, left, before = [], [], 0, ""
    for stage in inputs.stages:
        own, metrics = about(stage.name).way, inputs.metrics.get(stage.address, {})
        if own is None or own.title != title:
            continue
        if "rows/in" not in metrics:
            return None
        if own.first:
            left = int(metrics["rows/in"])
            steps.append(WayStep(before or stage.address, own.unit, own.first, 0, left))
        for reason, rows in _reasons(metrics, own.reasons):
            left -= rows
            steps.append(WayStep(stage.address, own.unit, reason.replace("_", " "), rows, left))
        if own.last:
            steps.append(WayStep(stage.address, own.unit, own.last, 0, int(metrics.get("rows/kept", 0))))
        notes.append(own.note(inputs.params.get(stage.name) or {}))
        before = stage.address
    return Way(title, " ".join(filter(None, notes)), steps)


def _reasons(metrics: Metrics, asked: Sequence[str]) -> list[tuple[str, int]]:
    found = {
        key.removeprefix("dropped/"): int(rows) for key, rows in metrics.items() if key.startswith("dropped/")
    }
    order = {reason: place for place, reason in enumerate(asked)}
    return sorted(found.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))


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
