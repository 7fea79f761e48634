"""Difficulty of problems from pass rates that somebody measured: which share of sampled responses was right.

A pass rate belongs to the policy it was measured with. The file is pinned by its sha256, like any source; its problems
are found by their normalised text, so that it serves whatever source they came from.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from stages.algorithms.problem_text import normalise_problem
from stages.curate.params import PassRates
from stages.foundations.errors import UserError
from stages.foundations.files import require_sha256
from stages.foundations.funnel import Funnel
from stages.foundations.machine import from_root
from stages.foundations.packed_files import packed_lines

Row = dict[str, Any]
Measured = tuple[float, int]
"""Pass rate and responses behind it."""
_MAX_LINE_BYTES = 64 << 20


def read_pass_rates(params: PassRates) -> tuple[dict[str, Measured], Counter[str]]:
    """Pass rates by normalised problem, and how many lines of the file were no use, by reason.

    A problem that is measured several times gets the mean, weighted by the responses. UserError when the file is
    missing, is another one, or holds no usable line.
    """
    path = from_root(params.path)
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: correct curate.difficulty.path, it counts from the project's root"
        )
    remedy = "which curate.difficulty.sha256 says: put its sha256 into the recipe if it is what you want"
    require_sha256(path, params.sha256, remedy)
    passed: dict[str, list[Measured]] = defaultdict(list)
    unusable: Counter[str] = Counter()
    for line in packed_lines(path, _MAX_LINE_BYTES):
        if line is None:
            unusable["malformed_line"] += 1
        elif line.strip():
            text, measured, reason = _read_line(line, params)
            if reason:
                unusable[reason] += 1
            else:
                passed[text].append(measured)
    if not passed:
        raise UserError(
            f"{path}: no line has a problem in `{params.problem_field}` and a pass rate in "
            f"`{params.outcomes_field}` ({dict(unusable)}): correct curate.difficulty"
        )
    return {text: _mean(several) for text, several in passed.items()}, unusable


def _read_line(line: bytes, params: PassRates) -> tuple[str, Measured, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return "", (0.0, 0), "malformed_line"
    if not isinstance(row, dict) or not isinstance(row.get(params.problem_field), str):
        return "", (0.0, 0), "no_problem"
    text = normalise_problem(row[params.problem_field])
    outcomes = row.get(params.outcomes_field)
    if isinstance(outcomes, list) and outcomes and all(isinstance(outcome, bool) for outcome in outcomes):
        return text, (sum(outcomes) / len(outcomes), len(outcomes)), "" if text else "no_problem"
    is_rate = isinstance(outcomes, int | float) and not isinstance(outcomes, bool) and math.isfinite(outcomes)
    if is_rate and 0 <= outcomes <= 1:
        return text, (float(outcomes), 1), "" if text else "no_problem"
    return "", (0.0, 0), "no_pass_rate"


def _mean(several: Sequence[Measured]) -> Measured:
    samples = sum(number for _, number in several)
    return math.fsum(rate * number for rate, number in several) / samples, samples


def rate_difficulty(
    rows: Sequence[Row],
    originals: Mapping[str, str],
    rates: Mapping[str, Measured],
    params: PassRates,
    funnel: Funnel,
) -> tuple[list[Row], list[Row]]:
    """Rows with a pass rate in the wanted range or with none at all, and a `difficulty` row for each that has one.

    `originals` has the problem before it was rewritten, by problem_id. Dropped: `too_hard`, `too_easy`.
    """
    kept, found = [], []
    for row in rows:
        measured = rates.get(normalise_problem(originals.get(row["problem_id"], row["problem"])))
        if measured is None:
            kept.append(row)
            continue
        rate, samples = measured
        if rate < params.least_pass_rate:
            funnel.drop(row, "too_hard", f"pass rate {rate:.3f} of {samples}")
        elif rate > params.most_pass_rate:
            funnel.drop(row, "too_easy", f"pass rate {rate:.3f} of {samples}")
        else:
            kept.append(row)
        own = {"problem_id": row["problem_id"], "source": row["source"]}
        found.append({**own, "pass_rate": rate, "samples": samples, "band": band(rate)})
    return kept, found


def band(rate: float) -> str:
    """unsolved (0), hard (under a third), medium, easy (over two thirds), solved (1)."""
    if rate in (0.0, 1.0):
        return "solved" if rate else "unsolved"
    return "hard" if rate < 1 / 3 else "medium" if rate <= 2 / 3 else "easy"
