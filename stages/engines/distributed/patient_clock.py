"""How long somebody else has been silent, as seen by one who may have been away himself."""

from __future__ import annotations

import time

LONGEST_STEP = 1.0
"""Seconds. More than this between two looks is our own delay (a suspended machine), and no sign of the other side's."""


class PatientClock:
    """Seconds that pass while somebody looks: where nobody does for long, only `LONGEST_STEP` of them passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._looked = time.monotonic()

    def look(self) -> None:
        """Moves on."""
        looked = time.monotonic()
        self.now += min(looked - self._looked, LONGEST_STEP)
        self._looked = looked
