"""Random numbers by seed and position: no generator whose state depends on what was drawn before or beside it.

Source: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of the
authors' reference code). The number at a position is an output of the generator that starts with the seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

GOLDEN_GAMMA = numpy.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = numpy.uint64(0xBF58476D1CE4E5B9), numpy.uint64(0x94D049BB133111EB)
POSITIONS_AT_ONCE = 64
"""Positions computed together: one copy to the device for as many steps, and 512 bytes a row."""


class RandomNumbers:
    """Uniform numbers in [0, 1) for rows that each have a seed of their own."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._seeds = numpy.array(seeds, dtype=numpy.uint64)
        self._device = device
        self._first = -POSITIONS_AT_ONCE
        self._block = torch.empty(0)

    def at(self, position: int, rows: Tensor) -> Tensor:
        """The numbers of `rows` (indices of seeds) at `position` of their responses: (rows, 1), float64."""
        if not self._first <= position < self._first + POSITIONS_AT_ONCE:
            self._first = position - position % POSITIONS_AT_ONCE
            positions = numpy.arange(self._first, self._first + POSITIONS_AT_ONCE)
            self._block = torch.from_numpy(uniform(self._seeds[:, None], positions)).to(self._device)
        return self._block[rows, position - self._first, None]


def uniform(seeds: numpy.ndarray, positions: numpy.ndarray) -> numpy.ndarray:
    """Numbers in [0, 1) with 53 random bits, float64, for seeds (uint64) and positions (from 0) that broadcast."""
    bits = seeds + (positions.astype(numpy.uint64) + numpy.uint64(1)) * GOLDEN_GAMMA
    bits = (bits ^ (bits >> numpy.uint64(30))) * FIRST_FACTOR
    bits = (bits ^ (bits >> numpy.uint64(27))) * SECOND_FACTOR
    bits ^= bits >> numpy.uint64(31)
    return (bits >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53
