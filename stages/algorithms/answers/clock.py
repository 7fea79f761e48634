"""Times of day: `4:30 p.m.`, `16:30`, `2 PM`, `noon`, `7 in the evening`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stages.algorithms.answers.equivalence import Decision
from stages.algorithms.answers.normalisation import clean
from stages.algorithms.answers.verdicts import Verdict

_TIME = re.compile(
    r"([01]?[0-9]|2[0-4])(?:(?::|\.(?=[0-9]{2} ?[ap]))([0-5][0-9])(?::([0-5][0-9]))?| o'clock)?"
    r" ?(?:([AaPp])(?:\.?\s?[Mm]\.{0,2})?|(noon|in the afternoon|in the evening)|(midnight|in the morning))?"
)
_NAMED = {"noon": "12 noon", "midnight": "12 midnight"}


@dataclass(frozen=True, slots=True)
class _Time:
    of_day: tuple[int, int, int]
    """Hour, minute and second; the hour as on a clock of 24 hours where the half of the day is known."""
    is_half_known: bool


def compare_times(gold: str, prediction: str) -> Decision | None:
    """The decision for two times. `4:30 p.m.` agrees with 16:30; without its half of the day a time is another, or no,
    time. None where a side is no time, or both may be ratios."""
    sides = _read(gold), _read(prediction)
    if sides[0] is None or sides[1] is None:
        return None
    if sides[0].of_day == sides[1].of_day:
        return Verdict.CORRECT, "time"
    may_be_ratios = not sides[0].is_half_known and not sides[1].is_half_known
    if may_be_ratios and gold.count(":") == 1 and ":00" not in gold + prediction:
        return None
    return Verdict.WRONG, "time"


def _read(answer: str) -> _Time | None:
    text = clean(answer).lower()
    found = _TIME.fullmatch(_NAMED.get(text, text))
    if found is None:
        return None
    hour, minute, second, letter, is_late, is_early = found.groups()
    half = letter or ("p" if is_late else "a" if is_early else "")
    if minute is None and not half and "o'clock" not in text:
        return None
    of_day = int(hour) % 12 + 12 * (half == "p") if half else int(hour) % 24
    return _Time((of_day, int(minute or 0), int(second or 0)), bool(half))
