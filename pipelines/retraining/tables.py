"""Two policies' verdicts on the same problems, as the pairs that the gate compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas

from pipelines.retraining.gate import Pair
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.errors import UserError
from stages.foundations.tables.response import RESPONSE
from stages.foundations.tables.table import read_table
from stages.foundations.tables.verdict import VERDICT

KEY = ["benchmark", "problem", "answer"]
"""What makes a problem the same one: ids are row numbers of a source, which a new revision may give to others."""
OPINIONS = ("correct", "wrong")
LEAST_COMMON = 0.9
"""Share of the candidate's problems on which the champion must have been measured too."""


@dataclass(frozen=True)
class Measurement:
    """The two tables behind a policy's scores, and what it was trained on."""

    responses: Path
    verdicts: Path
    trained: frozenset[str]
    """Normalised texts (pipelines/records/trained_on.py)."""


def pair_up(champion: Measurement, candidate: Measurement) -> list[Pair]:
    """The problems that both were measured on; sampled responses count, or greedy ones where none were sampled.

    UserError when too few problems are common, or one policy was sampled and the other was not.
    """
    first, second = _shares(champion), _shares(candidate)
    if set(first["mode"]) != set(second["mode"]):
        raise UserError(
            f"the champion was measured {_told(first)}, the candidate {_told(second)}: nothing can be compared"
        )
    both = first.merge(second, on=KEY, suffixes=("_champion", "_candidate"))
    if len(both) < LEAST_COMMON * len(second):
        raise UserError(
            f"only {len(both)} of the candidate's {len(second)} benchmark problems were put to the champion too"
        )
    trained = champion.trained | candidate.trained
    return [
        Pair(
            benchmark=row.benchmark,
            champion=row.correct_champion,
            candidate=row.correct_candidate,
            champion_undecided=row.undecided_champion,
            candidate_undecided=row.undecided_candidate,
            is_clean=normalise_problem(row.problem) not in trained,
        )
        for row in both.itertuples()
    ]


def _shares(measured: Measurement) -> pandas.DataFrame:
    """A row for each problem: KEY, mode, and the shares of correct and of undecided responses."""
    responses = read_table(measured.responses, RESPONSE)
    verdicts = read_table(measured.verdicts, VERDICT)
    names = ["problem_id", "benchmark", "mode", "sample_index"]
    rows = responses[[*names, "problem", "answer"]].merge(
        verdicts[[*names, "verdict"]], on=names, validate="1:1"
    )
    if len(rows) != len(responses):
        raise UserError(
            f"{measured.verdicts} does not belong to {measured.responses}: run the grade stage again"
        )
    mode = "sampled" if (rows["mode"] == "sampled").any() else "greedy"
    rows = rows[rows["mode"] == mode]
    rows = rows.assign(
        correct=rows["verdict"] == "correct", undecided=~rows["verdict"].isin(OPINIONS), mode=mode
    )
    return rows.groupby([*KEY, "mode"], as_index=False)[["correct", "undecided"]].mean()


def _told(shares: pandas.DataFrame) -> str:
    modes: Sequence[str] = sorted(set(shares["mode"]))
    return " and ".join(modes) or "on nothing"
