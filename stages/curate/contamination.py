"""Training problems that stand in a benchmark: dropped, and every pair kept with both texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stages.algorithms.decontamination import BenchmarkProblem, Contamination, DecontaminationRules, HitPairs
from stages.foundations.funnel import Funnel
from stages.observe.progress import progress

Row = dict[str, Any]


def drop_contaminated(
    rows: Sequence[Row],
    benchmarks: Sequence[Row],
    revisions: Mapping[str, str],
    rules: DecontaminationRules,
    funnel: Funnel,
) -> tuple[list[Row], list[Row], Counter[str]]:
    """Rows that stand in no benchmark; `contamination` rows, for a bounded number of pairs; all pairs by rule."""
    problems = [
        BenchmarkProblem(
            row["benchmark"], row["problem_id"], row["problem"], revisions.get(row["benchmark"], "")
        )
        for row in benchmarks
    ]
    index, kept, pairs = Contamination(problems, rules), [], HitPairs()
    for row in progress(rows, label="decontamination"):
        hits = index.find_all(row["problem"])
        if not hits:
            kept.append(row)
            continue
        worst = hits[0]
        funnel.drop(row, "contaminated", f"{worst.rule} {worst.overlap:.2f}: {worst.benchmark_problem_id}")
        pairs.add({name: row[name] for name in ("problem_id", "source", "problem")}, hits)
    return kept, pairs.rows, pairs.by_rule
