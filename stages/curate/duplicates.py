"""Problems that stand there twice: within a source, across sources, and in the benchmarks themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from stages.algorithms.answers.equivalence import exact_verdict
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.decontamination import NearDuplicateRule, NearDuplicates
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.funnel import Funnel
from stages.observe.progress import progress

Row = dict[str, Any]


def drop_duplicates(rows: Sequence[Row], funnel: Funnel) -> tuple[list[Row], list[Row]]:
    """The first of the rows with one normalised problem, none where their answers contradict each other; the pairs."""
    same: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        same[normalise_problem(row["problem"])].append(row)
    kept, pairs = [], []
    for first, *others in same.values():
        other = next((row for row in others if contradict(first["answer"], row["answer"])), None)
        rule = "exact" if other is None else "contradicting_answers"
        pairs += [pair(row, first, rule, 1.0) for row in others]
        if other is None:
            kept.append(first)
        for row in others if other is None else [first, *others]:
            if other is None:
                funnel.drop(row, "duplicate", f"of {first['problem_id']}")
            else:
                detail = f"{first['problem_id']} says {first['answer']}, {other['problem_id']} says {other['answer']}"
                funnel.drop(row, "contradicting_answers", detail)
    return kept, pairs


def contradict(answer: str, other: str) -> bool:
    """True only where the exact comparison is sure: two spellings that it cannot read are no contradiction."""
    decision = exact_verdict(answer, other)
    return decision is not None and decision[0] is Verdict.WRONG


def drop_near_duplicates(
    rows: Sequence[Row], rule: NearDuplicateRule, funnel: Funnel
) -> tuple[list[Row], list[Row]]:
    """The rows that are not similar to one kept before them, and a pair for each of the others."""
    seen, kept, pairs = NearDuplicates(rule), [], []
    for row in progress(rows, label="near-duplicates"):
        similar = seen.find(row["problem"])
        if similar:
            key, similarity = similar[0]
            funnel.drop(row, "near_duplicate", f"of {kept[key]['problem_id']}, similarity {similarity:.2f}")
            pairs.append(pair(row, kept[key], "near_duplicates", similarity))
        else:
            seen.add(len(kept), row["problem"])
            kept.append(row)
    return kept, pairs


def benchmark_overlaps(rows: Sequence[Row], rule: NearDuplicateRule | None) -> list[Row]:
    """Pairs of benchmark problems that are the same or similar, none of which is dropped.

    Each problem is paired once, with the first equal one before it or else the most similar one, so that a benchmark
    that repeats one problem n times gives n - 1 pairs.
    """
    seen = NearDuplicates(rule) if rule else None
    first: dict[str, Row] = {}
    different: list[Row] = []
    pairs = []
    for row in progress(rows, label="benchmarks"):
        text = normalise_problem(row["problem"])
        if text in first:
            is_other = contradict(first[text]["answer"], row["answer"])
            pairs.append(
                pair(row, first[text], "contradicting_answers" if is_other else "exact", 1.0, "benchmark")
            )
            continue
        first[text] = row
        similar = seen.find(row["problem"]) if seen else []
        if similar:
            key, similarity = similar[0]
            pairs.append(pair(row, different[key], "near_duplicates", similarity, "benchmark"))
        if seen:
            seen.add(len(different), row["problem"])
        different.append(row)
    return pairs


def pair(row: Row, other: Row, rule: str, similarity: float, role: str = "source") -> Row:
    """A row of the `duplicate` table; scopes are within_ and across_ source or benchmark."""
    is_within = row["source"] == other["source"]
    return {
        **{name: row[name] for name in ("problem_id", "source", "problem")},
        **{f"other_{name.removeprefix('problem_')}": other[name] for name in ("problem_id", "source")},
        "other_problem": other["problem"],
        "scope": f"within_{role}" if is_within else f"across_{role}s",
        "rule": rule,
        "similarity": similarity,
    }
