"""Uniform numbers by seed and position: no generator whose state depends on what was drawn before or beside it.

Source: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of the
authors' reference code). The number at a position is an output of the generator that starts with the seed.
"""

from __future__ import annotations

import numpy

GOLDEN_GAMMA = numpy.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = numpy.uint64(0xBF58476D1CE4E5B9), numpy.uint64(0x94D049BB133111EB)


def uniform(seeds: numpy.ndarray, positions: numpy.ndarray) -> numpy.ndarray:
    """Numbers in [0, 1) with 53 random bits, float64, for seeds (uint64) and positions (from 0) that broadcast."""
    bits = seeds + (positions.astype(numpy.uint64) + numpy.uint64(1)) * GOLDEN_GAMMA
    bits = (bits ^ (bits >> numpy.uint64(30))) * FIRST_FACTOR
    bits = (bits ^ (bits >> numpy.uint64(27))) * SECOND_FACTOR
    bits ^= bits >> numpy.uint64(31)
    return (bits >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53
