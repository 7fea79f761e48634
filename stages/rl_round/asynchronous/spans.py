"""Parts of a timeline: spans that tile a process's life, marks at moments, and how their number stays bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

START, UNNAMED, AWAY = "start", "unnamed", "away"
MAX_MARKS = 2_000
"""Instants of one name, and values of one counter; beyond, every second is left out (counts stay exact)."""


@dataclass(slots=True)
class Span:
    activity: str
    start: float
    end: float
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(slots=True)
class Marks:
    """Instants or values of one name; of `seen` that came every `stride`-th is kept."""

    kept: list[tuple[float, Any]] = field(default_factory=list)
    seen: int = 0
    stride: int = 1

    def add(self, at: float, value: Any) -> None:
        if self.seen % self.stride == 0:
            self.kept.append((at, value))
        self.seen += 1
        if len(self.kept) > MAX_MARKS:
            self.kept, self.stride = self.kept[::2], self.stride * 2


def coarser(spans: list[Span], grain: float) -> list[Span]:
    """Neighbours as one while they are shorter than `grain` seconds, called what the longer one is."""
    coarse: list[Span] = []
    for span in spans:
        last = coarse[-1] if coarse else None
        is_short = last is not None and last.seconds < grain and AWAY not in (last.activity, span.activity)
        if last and (is_short or last.activity == span.activity):
            longer = max(last, span, key=lambda own: own.seconds)
            last.activity, last.end = longer.activity, span.end
            last.details = last.details if last.details == span.details else {}
        else:
            coarse.append(span)
    return coarse


def plain(details: dict[str, Any]) -> dict[str, Any]:
    """As JSON can hold it: what cannot stand there is written out."""
    simple = (bool, int, str, type(None))
    return {
        name: value
        if isinstance(value, simple) or (isinstance(value, float) and math.isfinite(value))
        else str(value)
        for name, value in details.items()
    }
