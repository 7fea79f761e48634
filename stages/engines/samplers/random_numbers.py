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
    """Uniform numbers in [0, 1) for places; each place has a seed and a position of its own."""

    def __init__(self, places: int, device: torch.device) -> None:
        self._device = device
        self._seeds = numpy.zeros(places, dtype=numpy.uint64)
        self._ahead = numpy.zeros(places, dtype=numpy.int64)
        """Position of a place minus the steps taken: all places go on together."""
        self._steps = self._first = 0
        self._block = torch.zeros(places, POSITIONS_AT_ONCE, dtype=torch.float64, device=device)

    def begin(self, places: Sequence[int], seeds: Sequence[int], positions: Sequence[int]) -> None:
        """From the next step on these places draw for these seeds, from these positions on."""
        places = numpy.array(places)
        self._seeds[places] = numpy.array(seeds, dtype=numpy.uint64)
        self._ahead[places] = numpy.array(positions) - self._steps
        self._block[torch.from_numpy(places).to(self._device)] = self._numbers(places)

    def step(self, places: Tensor) -> Tensor:
        """The numbers of `places` (indices) at their positions: (places, 1), float64; every place goes on by one."""
        if self._steps == self._first + POSITIONS_AT_ONCE:
            self._first = self._steps
            self._block = self._numbers(numpy.arange(len(self._seeds)))
        numbers = self._block[places, self._steps - self._first, None]
        self._steps += 1
        return numbers

    def _numbers(self, places: numpy.ndarray) -> Tensor:
        """Of the steps of the block; those before a place was begun are not asked for."""
        positions = self._ahead[places, None] + self._first + numpy.arange(POSITIONS_AT_ONCE)
        return torch.from_numpy(uniform(self._seeds[places, None], positions)).to(self._device)


def uniform(seeds: numpy.ndarray, positions: numpy.ndarray) -> numpy.ndarray:
    """Numbers in [0, 1) with 53 random bits, float64, for seeds (uint64) and positions (from 0) that broadcast."""
    bits = seeds + (positions.astype(numpy.uint64) + numpy.uint64(1)) * GOLDEN_GAMMA
    bits = (bits ^ (bits >> numpy.uint64(30))) * FIRST_FACTOR
    bits = (bits ^ (bits >> numpy.uint64(27))) * SECOND_FACTOR
    bits ^= bits >> numpy.uint64(31)
    return (bits >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53
