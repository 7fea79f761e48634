"""Training problems that stand in a benchmark: dropped, and every pair kept with both texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stages.algorithms.decontamination import BenchmarkProblem, Contamination, DecontaminationRules
from stages.foundations.funnel import Funnel
from stages.foundations.progress import progress

Row = dict[str, Any]
MOST_PAIRS = 50
"""Pairs kept of one benchmark problem, so that a benchmark full of equal problems cannot fill the disk."""


def drop_contaminated(
    rows: Sequence[Row],
    benchmarks: Sequence[Row],
    revisions: Mapping[str, str],
    rules: DecontaminationRules,
    funnel: Funnel,
) -> tuple[list[Row], list[Row], Counter[str]]:
    """Rows that stand in no benchmark; a `contamination` row for each pair, at most `MOST_PAIRS` of one benchmark
    problem; all pairs counted by rule."""
    problems = [
        BenchmarkProblem(row["benchmark"], row["problem_id"], row["problem"], revisions.get(row["benchmark"], ""))
        for row in benchmarks
    ]
    index, kept, pairs = Contamination(problems, rules), [], []
    of_problem: Counter[tuple[str, str]] = Counter()
    by_rule: Counter[str] = Counter()
    for row in progress(rows, label="decontamination"):
        hits = index.find_all(row["problem"])
        if not hits:
            kept.append(row)
            continue
        worst = hits[0]
        funnel.drop(row, "contaminated", f"{worst.rule} {worst.overlap:.2f}: {worst.benchmark_problem_id}")
        own = {name: row[name] for name in ("problem_id", "source", "problem")}
        for hit in hits:
            by_rule[hit.rule] += 1
            of_problem[hit.benchmark, hit.benchmark_problem_id] += 1
            if of_problem[hit.benchmark, hit.benchmark_problem_id] <= MOST_PAIRS:
                pairs.append({**own, **hit.columns()})
    return kept, pairs, by_rule
