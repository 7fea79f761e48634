"""Gathers demonstrations from the sources of the parameters and splits off the validation rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pandas

from stages.algorithms.problem_text import normalise_problem
from stages.demonstrate.params import (
    DemonstrateParams,
    GivenDemonstrations,
    RejectionSampledDemonstrations,
    WebDemonstrations,
)
from stages.demonstrate.responses import as_response
from stages.foundations.seeds import derive_seed

Rows = list[dict[str, Any]]
Drops = list[tuple[dict[str, Any], str, str]]
"""Rows with the reason and detail of their drop."""
Sample = Callable[[RejectionSampledDemonstrations, Rows], tuple[Rows, Drops]]
"""Draws responses to problems: the demonstrations among them, and the rest."""
CountTokens = Callable[[list[str]], list[int]]


def gather(
    params: DemonstrateParams,
    problems: pandas.DataFrame,
    solutions: pandas.DataFrame,
    seed: int,
    sample: Sample,
    count_tokens: CountTokens,
) -> tuple[Rows, Drops]:
    """Demonstrations of all sources in the order of the parameters, and what was dropped on the way."""
    rows: Rows = []
    drops: Drops = []
    for source in params.sources:
        match source:
            case WebDemonstrations():
                found, left_out = _solved(solutions, "web", source.max_rows, seed)
            case GivenDemonstrations():
                chosen = (
                    problems if source.sources is None else problems[problems["source"].isin(source.sources)]
                )
                found, left_out = _solved(chosen[chosen["solution"].notna()], "given", source.max_rows, seed)
            case RejectionSampledDemonstrations():
                drawn, _ = _draw(problems.to_dict("records"), source.max_problems, seed, "rejection_sampled")
                found, left_out = sample(source, drawn)
        rows += found
        drops += left_out
    return _drop_unusable(rows, drops, params.max_response_tokens, count_tokens)


def _solved(problems: pandas.DataFrame, kind: str, limit: int | None, seed: int) -> tuple[Rows, Drops]:
    """Problems with a solution as demonstrations; those beyond the limit are dropped."""
    chosen, left_out = _draw(problems.to_dict("records"), limit, seed, kind)
    rows = [
        demonstration(problem, kind, as_response(problem["solution"], problem["answer"]))
        for problem in chosen
    ]
    return rows, [(problem, "beyond_max_rows", kind) for problem in left_out]


def demonstration(problem: dict[str, Any], kind: str, response: str, index: int = 0) -> dict[str, Any]:
    """A row of the demonstration table; `index` tells apart several responses to one problem."""
    return {
        "demonstration_id": f"{kind}:{problem['problem_id']}:{index}",
        "problem_id": problem["problem_id"],
        "source": problem["source"],
        "kind": kind,
        "problem": problem["problem"],
        "response": response,
        "licence": problem["licence"],
    }


def _draw(rows: Rows, limit: int | None, seed: int, name: str) -> tuple[Rows, Rows]:
    if limit is None or len(rows) <= limit:
        return rows, []
    chosen = set(random.Random(derive_seed(seed, "demonstrate", name)).sample(range(len(rows)), limit))
    return [row for i, row in enumerate(rows) if i in chosen], [
        row for i, row in enumerate(rows) if i not in chosen
    ]


def _drop_unusable(
    rows: Rows, drops: Drops, max_tokens: int, count_tokens: CountTokens
) -> tuple[Rows, Drops]:
    kept: Rows = []
    seen: set[tuple[str, str]] = set()
    for row, tokens in zip(rows, count_tokens([row["response"] for row in rows]), strict=True):
        pair = (row["problem"], row["response"])
        if tokens > max_tokens:
            drops.append((row, "response_too_long", f"{tokens} tokens, at most {max_tokens}"))
        elif pair in seen:
            drops.append((row, "repeated", "the same problem and response came before"))
        else:
            seen.add(pair)
            kept.append(row)
    return kept, drops


def split(rows: Rows, validation_rows: int, seed: int) -> tuple[Rows, Rows]:
    """Train and validation rows in their order; all demonstrations of one problem fall on the same side.

    Whole problems are moved in the seed's order until validation has at least the rows asked for.
    """
    groups: dict[str, int] = {}
    for row in rows:
        text = normalise_problem(row["problem"])
        groups[text] = groups.get(text, 0) + 1
    names = sorted(groups)
    random.Random(derive_seed(seed, "demonstrate", "validation")).shuffle(names)
    held_out: set[str] = set()
    count = 0
    for name in names:
        if count >= validation_rows:
            break
        held_out.add(name)
        count += groups[name]
    sides = [normalise_problem(row["problem"]) in held_out for row in rows]
    train = [row for row, is_held_out in zip(rows, sides, strict=True) if not is_held_out]
    validation = [row for row, is_held_out in zip(rows, sides, strict=True) if is_held_out]
    return train, validation
