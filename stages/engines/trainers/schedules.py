"""Schedules of the learning rate."""

from __future__ import annotations

import math


def warmup_then_cosine(step: int, steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Share of the peak learning rate at `step` (from 0): linear warm-up, then a cosine to the final fraction."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progressed = (step - warmup_steps) / max(1, steps - 1 - warmup_steps)
    return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * min(1.0, progressed)))
