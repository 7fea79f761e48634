"""Random numbers by seed and position: the published generator, even, and blind to their neighbours."""

import numpy
import pytest
import torch

from stages.engines.samplers.protocol import uniform
from stages.engines.samplers.torch_decoding import POSITIONS_AT_ONCE, RandomNumbers

CPU = torch.device("cpu")
MASK = 2**64 - 1


def splitmix64(seed):
    """The reference code, in Python's integers."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        bits = state
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
        yield bits ^ (bits >> 31)


def test_the_reference_code_gives_the_published_numbers():
    """For seed 1234567, as listed by the test suites of other implementations."""
    stream = splitmix64(1234567)
    assert [next(stream) for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def begun(seeds, positions):
    numbers = RandomNumbers(len(seeds), CPU)
    numbers.begin(range(len(seeds)), seeds, positions)
    return numbers


def test_numbers_are_those_of_the_published_generator():
    seeds = [1234567, 0, 2**63 - 1]
    found = begun(seeds, [0, 0, 0])
    streams = [splitmix64(seed) for seed in seeds]
    for _ in range(POSITIONS_AT_ONCE + 2):
        expected = [(next(stream) >> 11) * 2.0**-53 for stream in streams]
        assert found.step(torch.arange(3))[:, 0].tolist() == expected


@pytest.mark.parametrize("steps", [0, 5, POSITIONS_AT_ONCE - 1, POSITIONS_AT_ONCE, 3 * POSITIONS_AT_ONCE + 1])
def test_places_may_be_begun_at_any_step_and_any_position(steps):
    """A place that is given to another seed leaves its neighbours as they were."""
    found = begun([5, 6, 7], [0, 0, 0])
    for _ in range(steps):
        found.step(torch.arange(3))
    found.begin([1], [9], [70])
    alone, late = begun([7], [steps]), begun([9], [70])
    for _ in range(POSITIONS_AT_ONCE + 2):
        numbers = found.step(torch.tensor([2, 1]))
        assert numbers.shape == (2, 1) and numbers.dtype == torch.float64
        first = torch.tensor([0])
        assert numbers[0] == alone.step(first)[0] and numbers[1] == late.step(first)[0]


def test_numbers_are_even_over_seeds_and_over_positions():
    """Neighbouring seeds share nothing: 20 bins of 5,000 numbers each, within 5 standard errors."""
    over_seeds = uniform(numpy.arange(100_000, dtype=numpy.uint64), numpy.array([3]))
    over_positions = uniform(numpy.array([9], dtype=numpy.uint64), numpy.arange(100_000))
    for numbers in (over_seeds, over_positions):
        counts, _ = numpy.histogram(numbers, bins=20, range=(0, 1))
        assert counts.sum() == 100_000 and abs(counts - 5000).max() < 5 * 69
        assert abs(numpy.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / 100_000**0.5
