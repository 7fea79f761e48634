"""Why rows were dropped, what training problems share with benchmarks, and how much work each stage did."""

from __future__ import annotations

from dataclasses import dataclass

from stages.report.inputs import Inputs, Metrics

_WEB_RULES = (
    "missing_field",
    "duplicate_id",
    "no_solution",
    "no_short_answer",
    "unfinished",
    "solution_disagrees_with_answer",
    "no_question",
    "multi_part",
    "refers_to_figure_or_other",
    "proof_or_opinion",
    "wrong_language",
    "too_long",
    "conflicting_answers",
    "exact_duplicate",
    "near_duplicate",
    "contaminated",
    "not_sampled",
    "no_agreement",
)
"""Reasons of filter_web in the order in which it asks; the row rules share one pass, the first that objects counts."""
_ORDER = ("collect_web", "extract_web", "filter_web", "curate", "demonstrate", "sft")


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
    """How many problems of a benchmark stood in training data before `curate` dropped those."""

    benchmark: str
    problems: int
    problems_hit: int


@dataclass(frozen=True)
class Contamination:
    """Counts of the `curate` and `filter_web` stages."""

    benchmarks: list[BenchmarkLeak]
    pairs: int
    """Pairs of a training problem and a benchmark problem."""
    dropped: list[tuple[str, int]]
    """Stage and rows that it dropped for being in a benchmark."""


@dataclass(frozen=True)
class WebStep:
    """A step on the way from pages to trusted problems."""

    stage: str
    unit: str
    """`pages` or `exercises`."""
    what: str
    """What was dropped and why, or what came in."""
    dropped: int
    left: int


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
    names = [f"collect@{source}" for source in inputs.sources] + list(_ORDER)
    found = {name: inputs.metrics[name] for name in names if "rows/in" in inputs.metrics.get(name, {})}
    return [_funnel(name, metrics) for name, metrics in found.items()]


def _funnel(stage: str, metrics: Metrics) -> Funnel:
    drops = {
        key.removeprefix("dropped/"): int(value)
        for key, value in metrics.items()
        if key.startswith("dropped/")
    }
    ranked = sorted(drops.items(), key=lambda item: (-item[1], item[0]))
    words = [(reason.replace("_", " "), rows) for reason, rows in ranked]
    return Funnel(stage, int(metrics["rows/in"]), int(metrics.get("rows/kept", 0)), words)


def web_steps(inputs: Inputs) -> list[WebStep]:
    """From pages to trusted problems, a step for each reason; empty unless every stage on the way has counted."""
    pages, extracted, filtered = (
        inputs.metrics.get(name, {}) for name in ("collect_web", "extract_web", "filter_web")
    )
    if not all("rows/in" in metrics for metrics in (pages, extracted, filtered)):
        return []
    left = int(pages["rows/in"])
    steps = [WebStep("collect_web", "pages", "pages collected", 0, left)]
    for stage, metrics in (("collect_web", pages), ("extract_web", extracted)):
        for reason, rows in _reasons(metrics):
            left -= rows
            steps.append(WebStep(stage, "pages", reason.replace("_", " "), rows, left))
    left = int(filtered["rows/in"])
    steps.append(WebStep("extract_web", "exercises", "exercises found", 0, left))
    for reason, rows in _reasons(filtered):
        left -= rows
        steps.append(WebStep("filter_web", "exercises", reason.replace("_", " "), rows, left))
    steps.append(WebStep("filter_web", "exercises", "trusted problems", 0, int(filtered.get("rows/kept", 0))))
    return steps


def _reasons(metrics: Metrics) -> list[tuple[str, int]]:
    found = {
        key.removeprefix("dropped/"): int(rows) for key, rows in metrics.items() if key.startswith("dropped/")
    }
    order = {reason: place for place, reason in enumerate(_WEB_RULES)}
    return sorted(found.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))


def contamination(inputs: Inputs) -> Contamination | None:
    """What decontamination found; None when `curate` has not counted."""
    metrics = inputs.metrics.get("curate")
    if metrics is None:
        return None
    leaks = [
        BenchmarkLeak(
            name.removesuffix("/rows_hit"), int(metrics.get(name.removesuffix("_hit"), 0)), int(hit)
        )
        for name, hit in metrics.items()
        if name.endswith("/rows_hit")
    ]
    dropped = [
        (stage, int(value))
        for stage in ("curate", "filter_web")
        for key, value in inputs.metrics.get(stage, {}).items()
        if key.startswith("dropped/") and "contaminated" in key
    ]
    return Contamination(leaks, int(metrics.get("contamination/pairs", 0)), dropped)


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
