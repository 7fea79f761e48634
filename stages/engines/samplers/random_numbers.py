"""The random numbers of the sequences of a decoding, each at its own position: see `uniform_numbers`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from stages.engines.samplers.uniform_numbers import uniform

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
