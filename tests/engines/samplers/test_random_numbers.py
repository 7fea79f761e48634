"""Random numbers by seed and position: the published generator, even, and blind to their neighbours."""

import numpy
import torch

from stages.engines.samplers.random_numbers import POSITIONS_AT_ONCE, RandomNumbers, uniform

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


def test_numbers_are_those_of_the_published_generator():
    seeds = [1234567, 0, 2**63 - 1]
    found = RandomNumbers(seeds, CPU)
    streams = [splitmix64(seed) for seed in seeds]
    rows = torch.arange(3)
    for position in range(POSITIONS_AT_ONCE + 2):
        expected = [(next(stream) >> 11) * 2.0**-53 for stream in streams]
        assert found.at(position, rows)[:, 0].tolist() == expected


def test_rows_and_positions_may_be_asked_in_any_order():
    found = RandomNumbers([5, 6, 7], CPU)
    late = found.at(3 * POSITIONS_AT_ONCE + 1, torch.tensor([2, 0]))
    alone = RandomNumbers([7], CPU).at(3 * POSITIONS_AT_ONCE + 1, torch.tensor([0]))
    assert late.shape == (2, 1) and late.dtype == torch.float64 and late[0] == alone[0]
    assert found.at(0, torch.tensor([1]))[0] == RandomNumbers([6], CPU).at(0, torch.tensor([0]))[0]


def test_numbers_are_even_over_seeds_and_over_positions():
    """Neighbouring seeds share nothing: 20 bins of 5,000 numbers each, within 5 standard errors."""
    over_seeds = uniform(numpy.arange(100_000, dtype=numpy.uint64), numpy.array([3]))
    over_positions = uniform(numpy.array([9], dtype=numpy.uint64), numpy.arange(100_000))
    for numbers in (over_seeds, over_positions):
        counts, _ = numpy.histogram(numbers, bins=20, range=(0, 1))
        assert counts.sum() == 100_000 and abs(counts - 5000).max() < 5 * 69
        assert abs(numpy.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / 100_000**0.5
