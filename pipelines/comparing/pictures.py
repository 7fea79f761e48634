"""Generators side by side: pictures of the same prompts from the same noise, paired, by every score that they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from pipelines.comparing.sides import folder_of
from pipelines.records.places import Place, place_at, working_place
from stages.algorithms.estimators import Interval, paired_bootstrap
from stages.foundations.errors import UserError
from stages.foundations.tables import FEEDBACK_IMAGE, QUANTITIES, read_table

FOLDER = "data/images/feedback/"
NOISE = ["prompt_id", "seed"]
"""What two pictures from the same noise share."""


@dataclass(frozen=True)
class PictureComparison:
    """One quantity of two generators' pictures."""

    first: str
    second: str
    quantity: str
    means: tuple[float, float]
    difference: Interval
    """The second less the first, whole prompts resampled."""
    pictures: int

    @property
    def verdict(self) -> str:
        """A quantity such as saturation is neither better nor worse: it is higher, lower, or not separated."""
        return {"better": "higher", "worse": "lower"}.get(self.difference.verdict(), "not separated")


def find_pictures(arguments: Sequence[str], root: Path) -> dict[str, Path] | None:
    """The table of each argument (NAME, REV:NAME, FOLDER:NAME); None where none has pictures of feedback.

    UserError where some have and some have not, such as the generator that a round started from.
    """
    tables = {argument: _table(argument, root) for argument in arguments}
    found = {name: path for name, path in tables.items() if path}
    if found and (lacking := [name for name in tables if name not in found]):
        raise UserError(
            f"{', '.join(lacking)} has no pictures of feedback, {', '.join(found)} has: compare rounds of feedback "
            "with each other; a round beside its own start stands in its metrics, refl/*/gain"
        )
    return found or None


def compare_pictures(tables: dict[str, Path]) -> list[PictureComparison]:
    """Every further generator with the first one. UserError when there is one alone, or when noise differs."""
    if len(tables) < 2:
        raise UserError(f"there must be two to compare, given: {', '.join(tables)}")
    frames = {
        name: read_table(path, FEEDBACK_IMAGE).drop(columns=["png_before", "png_after"])
        for name, path in tables.items()
    }
    first, *others = frames
    return [row for other in others for row in _compared(first, frames[first], other, frames[other])]


def picture_table(found: Sequence[PictureComparison]) -> str:
    """The differences for people."""
    lines = []
    for one in found:
        low, high = one.difference.low, one.difference.high
        lines.append(
            f"{one.second} less {one.first}  {one.quantity:<11} {one.means[0]:8.4f} -> {one.means[1]:8.4f}  "
            f"{one.difference.estimate:+.4f} [{low:+.4f}, {high:+.4f}]  {one.verdict}"
        )
    lines.append(f"{found[0].pictures} pictures each, from the same noise; 95% intervals over prompts, not corrected")
    return "\n".join(lines)


def picture_json(found: Sequence[PictureComparison]) -> list[dict[str, Any]]:
    """The same as plain values."""
    return [
        {**vars(one), "means": list(one.means), "difference": one.difference._asdict(), "verdict": one.verdict}
        for one in found
    ]


def _table(argument: str, root: Path) -> Path | None:
    before, _, name = argument.rpartition(":")
    place: Place
    if not before:
        place = working_place(root)
    elif folder := folder_of(root, before):
        place = working_place(folder, str(folder), root)
    else:
        place = place_at(root, before)
    return place.file(f"{FOLDER}{name}.parquet")


def _compared(first: str, one: pandas.DataFrame, second: str, other: pandas.DataFrame) -> list[PictureComparison]:
    both = one.merge(other, on=NOISE, suffixes=("_first", "_second"), validate="one_to_one")
    if not len(one) == len(other) == len(both):
        raise UserError(
            f"of {len(one)} pictures of {first} and {len(other)} of {second}, {len(both)} are from the same noise: "
            "compare rounds with the same refl.measurement, prompts and seed"
        )
    found = []
    for quantity in QUANTITIES:
        values = [both[f"{quantity}_after_{side}"] for side in ("first", "second")]
        if any(side.isna().any() for side in values):  # nobody knows the truth of these prompts
            continue
        means = (float(values[0].mean()), float(values[1].mean()))
        difference = paired_bootstrap(*values, both["prompt_id"])
        found.append(PictureComparison(first, second, quantity, means, difference, len(both)))
    return found
