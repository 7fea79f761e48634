"""From candidates to trusted problems: rules on each row, duplicates, benchmarks, agreement with a policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas

from stages.algorithms.answers.equivalence import exact_verdict
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.decontamination import BenchmarkProblem, Contamination, HitPairs, NearDuplicates
from stages.algorithms.problem_text import normalise_problem
from stages.filter_web.params import FilterRules
from stages.filter_web.rules import RULES, Candidate, far_too_long, too_long
from stages.foundations.funnel import Funnel
from stages.observe.progress import progress

Rows = list[dict[str, Any]]
Agree = Callable[[Rows, Funnel], Rows]
"""Takes the rows that passed every rule, drops in the funnel those without agreement, returns the rest."""

_FUNCTION = re.compile(
    r"\\operatorname\{(arc(?:cos|sin|tan)|cosh?|coth?|csc|deg|det|dim|exp|gcd|inf|ker|lg|lim|ln|log|max|min|sec|sinh?|sup"
    r"|tanh?)\}(?P<letter>(?=[A-Za-z]))?"
)


def filter_candidates(
    candidates: pandas.DataFrame, benchmarks: pandas.DataFrame, rules: FilterRules, agree: Agree
) -> tuple[Rows, Rows, Funnel]:
    """Rows of the problem table in the order of the candidates, `contamination` rows of what was dropped, the funnel.

    A duplicate is looked for among the rows that passed the earlier rules only, so that a broken copy never
    displaces a good one.
    """
    rows: Rows = candidates.astype(object).where(candidates.notna(), None).to_dict("records")
    funnel = Funnel("filter_web", len(rows))
    rows = _drop_malformed(rows, funnel)
    rows = _apply_row_rules(rows, rules, funnel)
    rows = _drop_conflicting(rows, rules, funnel)
    rows = _drop_duplicates(rows, rules, funnel)
    rows, hits = _drop_contaminated(rows, benchmarks, rules, funnel)
    rows = agree(rows, funnel)
    return [_problem_row(row) for row in rows], hits, funnel


def _drop_malformed(rows: Rows, funnel: Funnel) -> Rows:
    """Rows with a problem, a page and an id of their own; no switch, since nothing later could name the others."""
    kept, ids = [], set()
    for row in rows:
        missing = [name for name in ("candidate_id", "page_id", "problem", "licence") if row[name] is None]
        if missing:
            funnel.drop(row, "missing_field", f"no text in {', '.join(missing)}", row["candidate_id"] or "")
        elif row["candidate_id"] in ids:
            funnel.drop(row, "duplicate_id", "a candidate before has this id", row["candidate_id"])
        else:
            ids.add(row["candidate_id"])
            kept.append(row)
    return kept


def _apply_row_rules(rows: Rows, rules: FilterRules, funnel: Funnel) -> Rows:
    kept = []
    for row in progress(rows, label="rules"):
        reason, detail = _first_objection(row, rules)
        if reason:
            funnel.drop(row, reason, detail, row["candidate_id"])
        else:
            kept.append(row)
    return kept


def _first_objection(row: dict[str, Any], rules: FilterRules) -> tuple[str, str]:
    candidate = Candidate(
        row["candidate_id"], row["problem"] or "", row["solution"] or "", row["answer"] or ""
    )
    if detail := far_too_long(candidate):
        return "too_long", detail
    for name, rule in RULES.items():
        detail = rule(candidate) if getattr(rules, name) else None
        if detail:
            return name, detail
    detail = too_long(candidate, rules.too_long) if rules.too_long else None
    return ("too_long", detail) if detail else ("", "")


def _drop_conflicting(rows: Rows, rules: FilterRules, funnel: Funnel) -> Rows:
    if not rules.conflicting_answers:
        return rows
    first: dict[str, str] = {}
    conflicting: set[str] = set()
    for row in rows:
        text = normalise_problem(row["problem"])
        decision = exact_verdict(first.setdefault(text, row["answer"] or ""), row["answer"] or "")
        if decision is not None and decision[0] is Verdict.WRONG:
            conflicting.add(text)
    kept = []
    for row in rows:
        text = normalise_problem(row["problem"])
        if text in conflicting:
            detail = f"elsewhere the answer is not {row['answer']}: {first[text]} and others"
            funnel.drop(row, "conflicting_answers", detail, row["candidate_id"])
        else:
            kept.append(row)
    return kept


def _drop_duplicates(rows: Rows, rules: FilterRules, funnel: Funnel) -> Rows:
    near = NearDuplicates(rules.near_duplicate) if rules.near_duplicate else None
    first: dict[str, str] = {}
    kept: Rows = []
    for row in progress(rows, label="duplicates"):
        text = normalise_problem(row["problem"])
        if rules.exact_duplicate and text in first:
            funnel.drop(row, "exact_duplicate", f"of {first[text]}", row["candidate_id"])
            continue
        similar = near.find(row["problem"]) if near else []
        if similar:
            index, similarity = similar[0]
            detail = f"of {kept[index]['candidate_id']}, similarity {similarity:.2f}"
            funnel.drop(row, "near_duplicate", detail, row["candidate_id"])
            continue
        first[text] = row["candidate_id"]
        if near:
            near.add(len(kept), row["problem"])
        kept.append(row)
    return kept


def _drop_contaminated(
    rows: Rows, benchmarks: pandas.DataFrame, rules: FilterRules, funnel: Funnel
) -> tuple[Rows, Rows]:
    """The clean rows, and the hits of the others as rows of the `contamination` table.

    The revision is missing there: sources are no parameter of this stage, and the report knows them.
    """
    if rules.contaminated is None:
        return rows, []
    index = Contamination(_benchmark_problems(benchmarks), rules.contaminated)
    kept, pairs = [], HitPairs()
    for row in progress(rows, label="benchmarks"):
        hits = index.find_all(row["problem"])
        if hits:
            hit = hits[0]
            found = f"{hit.rule} {hit.overlap:.2f} with {hit.benchmark} {hit.benchmark_problem_id}"
            detail = f"{found}: {hit.benchmark_problem}"
            funnel.drop(row, "contaminated", detail, row["candidate_id"])
            own = {"problem_id": row["candidate_id"], "source": _source(row), "problem": row["problem"]}
            pairs.add(own, hits)
        else:
            kept.append(row)
    return kept, [{**pair, "benchmark_revision": None} for pair in pairs.rows]


def _benchmark_problems(benchmarks: pandas.DataFrame) -> Iterable[BenchmarkProblem]:
    columns: Sequence[str] = ("benchmark", "problem_id", "problem")
    whole = benchmarks[list(columns)].dropna()
    return (BenchmarkProblem(*values) for values in whole.itertuples(index=False))


def _source(row: dict[str, Any]) -> str:
    return row["page_id"].partition("/")[0]


def _problem_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "problem_id": row["candidate_id"],
        "source": _source(row),
        "problem": tidy_functions(row["problem"]),
        "answer": tidy_functions(row["answer"] or ""),
        "solution": tidy_functions(row["solution"] or ""),
        "licence": row["licence"],
    }


def tidy_functions(text: str) -> str:
    r"""`\operatorname{sin}` as `\sin`, the form that policies have learnt from other people's texts."""
    return _FUNCTION.sub(lambda found: f"\\{found[1]}" + (" " if found["letter"] is not None else ""), text)
