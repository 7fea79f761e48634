"""The steps of curate, each a pure function from rows to rows, with every drop in the funnel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.algorithms.problem_text import normalise_problem
from stages.curate.answers import answer_kind
from stages.curate.contamination import drop_contaminated
from stages.curate.difficulty import rate_difficulty, read_pass_rates
from stages.curate.duplicates import benchmark_overlaps, drop_duplicates, drop_near_duplicates
from stages.curate.gradability import ask_for_integers, keep_gradable, keep_kinds
from stages.curate.params import CurateParams, IntegerAnswers, PassRates
from stages.curate.text import normalise_text
from stages.engines.verifier.params import VerifierParams
from stages.foundations.errors import UserError
from stages.foundations.funnel import Funnel
from stages.foundations.seeds import derive_seed

Row = dict[str, Any]
_PICTURE = re.compile(
    r"!\[[^\]\[]*\]\([^()]*\)|\\includegraphics(?:\[[^\]\[]*\])?\{[^{}]*\}|<img\b[^<>]*>", re.IGNORECASE
)
_TEXTS = ("problem_id", "source", "problem", "answer", "licence")


@dataclass(frozen=True)
class Curated:
    """What curate makes; the drops are in the funnels that were given."""

    train: list[Row]
    validation: list[Row]
    benchmarks: list[Row]
    contamination: list[Row]
    duplicates: list[Row]
    transforms: list[Row]
    difficulty: list[Row]
    counts: dict[str, int]
    """What the tables do not show: pairs by rule, answers left alone, lines of the pass-rate file that were no use."""


def curate(
    train: Sequence[Row],
    benchmarks: Sequence[Row],
    revisions: Mapping[str, str],
    params: CurateParams,
    limits: VerifierParams,
    seed: int,
    funnel: Funnel,
    benchmark_funnel: Funnel,
) -> Curated:
    """Runs all steps on rows of `problem` tables; UserError when nothing is left to train on.

    Benchmarks are normalised and otherwise left alone: their rows are the ones that others report scores on. Only rows
    that cannot be graded at all (without a text, or with an id twice) go, into `benchmark_funnel`.
    """
    marked = [
        {**normalise_row(row), "benchmark": row["source"]}
        for row in drop_malformed(benchmarks, benchmark_funnel)
    ]
    rows = [normalise_row(row) for row in drop_malformed(train, funnel)]
    rows = drop_unusable(rows, params.max_problem_characters, funnel)
    pairs, near = [], params.deduplication.near_duplicates
    if params.deduplication.exact:
        rows, pairs = drop_duplicates(rows, funnel)
    if near:
        rows, similar = drop_near_duplicates(rows, near, funnel)
        pairs += similar
    pairs += benchmark_overlaps(marked, near)
    rows, contamination, by_rule = drop_contaminated(rows, marked, revisions, params.decontamination, funnel)
    counts = {f"contamination/pairs_{rule}": number for rule, number in sorted(by_rule.items())}
    transforms: list[Row] = []
    if isinstance(params.transform, IntegerAnswers):  # only now: a rewritten problem would not be recognised
        rows, transforms, left = ask_for_integers(rows)
        counts |= {"transform/rows": len(transforms)}
        counts |= {f"transform/left_{reason}": number for reason, number in sorted(left.items())}
    rows = keep_kinds(rows, params.answer_kinds, funnel)
    if params.gradability_test:
        rows = keep_gradable(rows, limits, funnel)
    difficulty: list[Row] = []
    if isinstance(params.difficulty, PassRates):
        rates, unusable = read_pass_rates(params.difficulty)
        originals = {row["problem_id"]: row["original_problem"] for row in transforms}
        rows, difficulty = rate_difficulty(rows, originals, rates, params.difficulty, funnel)
        counts |= {"difficulty/rows": len(difficulty)}
        counts |= {f"difficulty/unusable_{reason}": number for reason, number in sorted(unusable.items())}
    validation, rows = split(rows, params, seed, funnel)
    counts |= {
        f"duplicates/{scope}": number for scope, number in sorted(Counter(p["scope"] for p in pairs).items())
    }
    return Curated(rows, validation, marked, contamination, pairs, transforms, difficulty, counts)


def drop_malformed(rows: Sequence[Row], funnel: Funnel) -> list[Row]:
    """Rows with a text in every column that needs one, and an id of their own: the first of several keeps it."""
    kept, ids = [], set()
    for row in rows:
        missing = [name for name in _TEXTS if not isinstance(row[name], str)]
        if missing:
            row_id = row["problem_id"] if isinstance(row["problem_id"], str) else ""
            readable = {name: value if isinstance(value, str) else None for name, value in row.items()}
            funnel.drop(readable, "missing_field", f"no text in {', '.join(missing)}", row_id)
        elif row["problem_id"] in ids:
            funnel.drop(row, "duplicate_id", "a row before has this id")
        else:
            ids.add(row["problem_id"])
            kept.append(row)
    return kept


def normalise_row(row: Row) -> Row:
    """A copy with all its texts normalised."""
    texts = {name: normalise_text(row[name]) for name in ("problem", "answer")}
    solution = row["solution"]
    return {**row, **texts, "solution": normalise_text(solution) if isinstance(solution, str) else None}


def drop_unusable(rows: Sequence[Row], max_problem_characters: int, funnel: Funnel) -> list[Row]:
    """Rows with a problem of bearable length and an answer."""
    kept = []
    for row in rows:
        if len(row["problem"]) > max_problem_characters:
            funnel.drop(row, "problem_too_long", f"{len(row['problem'])} characters")
        elif not normalise_problem(_PICTURE.sub(" ", row["problem"])):
            funnel.drop(row, "no_problem")
        elif answer_kind(row["answer"]) is None:
            funnel.drop(row, "no_answer")
        else:
            kept.append(row)
    return kept


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
