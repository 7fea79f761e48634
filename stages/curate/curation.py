"""The steps of curate, each a pure function from rows to rows, with every drop in the funnel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.algorithms.answers.equivalence import exact_verdict
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.decontamination import (
    BenchmarkProblem,
    Contamination,
    DecontaminationRules,
    NearDuplicateRule,
    NearDuplicates,
    normalise_problem,
)
from stages.curate.answers import AnswerKind, answer_kind, ask_for_integer
from stages.curate.params import CurateParams, IntegerAnswers
from stages.curate.text import normalise_text
from stages.foundations.errors import UserError
from stages.foundations.funnel import Funnel
from stages.foundations.progress import progress
from stages.foundations.seeds import derive_seed

Row = dict[str, Any]


@dataclass(frozen=True)
class Curated:
    """What curate makes; the drops are in the funnel that was given."""

    train: list[Row]
    validation: list[Row]
    benchmarks: list[Row]
    contamination: list[Row]


def curate(
    train: Sequence[Row], benchmarks: Sequence[Row], params: CurateParams, seed: int, funnel: Funnel
) -> Curated:
    """Runs all steps on rows of `problem` tables; UserError when nothing is left to train on.

    Benchmarks are normalised and otherwise left alone: their rows are the ones that others report scores on.
    """
    marked = [{**normalise_row(row), "benchmark": row["source"]} for row in benchmarks]
    rows = drop_unusable([normalise_row(row) for row in train], params.max_problem_characters, funnel)
    if params.deduplication.exact:
        rows = drop_duplicates(rows, funnel)
    if params.deduplication.near_duplicates:
        rows = drop_near_duplicates(rows, params.deduplication.near_duplicates, funnel)
    rows, contamination = drop_contaminated(rows, marked, params.decontamination, funnel)
    rows = make_gradable(rows, params, funnel)  # last: a rewritten problem would no longer be recognised
    validation, rows = split(rows, params, seed, funnel)
    return Curated(rows, validation, marked, contamination)


def normalise_row(row: Row) -> Row:
    """A copy with all its texts normalised."""
    texts = {name: normalise_text(row[name]) for name in ("problem", "answer")}
    solution = row["solution"]
    return {**row, **texts, "solution": normalise_text(solution) if isinstance(solution, str) else None}


def drop_unusable(rows: Sequence[Row], max_problem_characters: int, funnel: Funnel) -> list[Row]:
    """Rows with a problem of bearable length and an answer."""
    kept = []
    for row in rows:
        if not normalise_problem(row["problem"]):
            funnel.drop(row, "no_problem")
        elif len(row["problem"]) > max_problem_characters:
            funnel.drop(row, "problem_too_long", f"{len(row['problem'])} characters")
        elif answer_kind(row["answer"]) is None:
            funnel.drop(row, "no_answer")
        else:
            kept.append(row)
    return kept


def make_gradable(rows: Sequence[Row], params: CurateParams, funnel: Funnel) -> list[Row]:
    """Rows whose answers can be graded, rewritten where the parameters ask for it."""
    kept = []
    for row in rows:
        asked = _ask_for_integer(row) if isinstance(params.transform, IntegerAnswers) else row
        if asked is None:
            funnel.drop(row, "no_integer_form", row["answer"])
        elif answer_kind(asked["answer"]) not in params.answer_kinds:
            funnel.drop(row, "ungradable_answer", f"{answer_kind(asked['answer'])}: {asked['answer']}")
        else:
            kept.append(asked)
    return kept


def _ask_for_integer(row: Row) -> Row | None:
    if answer_kind(row["answer"]) is AnswerKind.integer:
        return row
    question = ask_for_integer(row["answer"], row["problem"])
    if question is None:
        return None
    conclusion = f"Hence ${question.sum_text} = \\boxed{{{question.answer}}}$."
    solution = row["solution"] and f"{row['solution']}\n\n{conclusion}"
    problem = f"{row['problem']}\n{question.request}"
    return {**row, "problem": problem, "answer": question.answer, "solution": solution}


def drop_duplicates(rows: Sequence[Row], funnel: Funnel) -> list[Row]:
    """The first of the rows with one normalised problem; none of them where their answers contradict each other."""
    same: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        same[normalise_problem(row["problem"])].append(row)
    kept = []
    for first, *others in same.values():
        other = next((row for row in others if _contradict(first["answer"], row["answer"])), None)
        if other is None:
            kept.append(first)
        for row in others if other is None else [first, *others]:
            if other is None:
                funnel.drop(row, "duplicate", f"of {first['problem_id']}")
            else:
                detail = f"{first['problem_id']} says {first['answer']}, {other['problem_id']} says {other['answer']}"
                funnel.drop(row, "contradicting_answers", detail)
    return kept


def _contradict(answer: str, other: str) -> bool:
    """True only where the exact comparison is sure: two spellings that it cannot read are no contradiction."""
    decision = exact_verdict(answer, other)
    return decision is not None and decision[0] is Verdict.WRONG


def drop_near_duplicates(rows: Sequence[Row], rule: NearDuplicateRule, funnel: Funnel) -> list[Row]:
    """The rows that are not similar to one kept before them."""
    seen, kept = NearDuplicates(rule), []
    for row in progress(rows, label="near-duplicates"):
        similar = seen.find(row["problem"])
        if similar:
            key, similarity = similar[0]
            funnel.drop(row, "near_duplicate", f"of {kept[key]['problem_id']}, similarity {similarity:.2f}")
        else:
            seen.add(len(kept), row["problem"])
            kept.append(row)
    return kept


def drop_contaminated(
    rows: Sequence[Row], benchmarks: Sequence[Row], rules: DecontaminationRules, funnel: Funnel
) -> tuple[list[Row], list[Row]]:
    """Rows that stand in no benchmark, and a `contamination` row for each pair that was found."""
    problems = [BenchmarkProblem(row["benchmark"], row["problem_id"], row["problem"]) for row in benchmarks]
    index, kept, found = Contamination(problems, rules), [], []
    for row in progress(rows, label="decontamination"):
        hits = index.find_all(row["problem"])
        if not hits:
            kept.append(row)
            continue
        worst = hits[0]
        funnel.drop(row, "contaminated", f"{worst.rule} {worst.overlap:.2f}: {worst.benchmark_problem_id}")
        own = {name: row[name] for name in ("problem_id", "source", "problem")}
        found += [
            {
                **own,
                "benchmark": hit.benchmark,
                "benchmark_problem_id": hit.benchmark_problem_id,
                "benchmark_problem": hit.benchmark_problem,
                "rule": hit.rule,
            }
            for hit in hits
        ]
    return kept, found


def split(
    rows: Sequence[Row], params: CurateParams, seed: int, funnel: Funnel
) -> tuple[list[Row], list[Row]]:
    """Validation and training rows, each in the order of `rows`.

    Each row has its own draw from the seed and its problem_id, so that adding a source moves few rows across.
    """
    if len(rows) <= params.validation_rows:
        raise UserError(
            f"{len(rows)} problems are left and curate.validation_rows asks for {params.validation_rows}: lower it, "
            "add sources, or look into the table of dropped rows for what went"
        )
    drawn = sorted(rows, key=lambda row: derive_seed(seed, "curate", row["problem_id"]))
    validation = {row["problem_id"] for row in drawn[: params.validation_rows]}
    last = None if params.max_train_rows is None else params.validation_rows + params.max_train_rows
    train = {row["problem_id"] for row in drawn[params.validation_rows : last]}
    for row in rows:
        if row["problem_id"] not in validation and row["problem_id"] not in train:
            funnel.drop(row, "over_max_train_rows")
    return [row for row in rows if row["problem_id"] in validation], [
        row for row in rows if row["problem_id"] in train
    ]
