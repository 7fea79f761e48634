"""The built-in sampler's decoding: equal tokens for late or moved trajectories, its cuts and its random numbers."""

import math
import random
from dataclasses import replace

import numpy
import pytest
import torch

from stages.engines.samplers import torch_decoding
from stages.engines.samplers.protocol import PartialResponse, SamplingSettings, Trajectory, sample_trajectories, uniform
from stages.engines.samplers.torch_decoding import POSITIONS_AT_ONCE, RandomNumbers, distribution
from stages.engines.samplers.torch_sampler import TorchSampler
from tests.engines.samplers.test_torch_sampler import (
    END,
    MODELS,
    PROMPTS,
    SETTINGS,
    make,
    random_biases,
    replace_params,
    trajectories,
)

LONG = replace(SETTINGS, max_response_tokens=40)


def sampler(kind="llama", places=16, **sizes):
    return TorchSampler(replace_params(max_sequences=places), random_biases(make(kind, **sizes)), [END])


def run_out(decoding):
    ended = {}
    while not decoding.is_idle:
        ended |= decoding.step()
    return ended


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, one in found.items():
        assert one.token_ids == expected[name].token_ids
        assert one.logprobs == pytest.approx(expected[name].logprobs, abs=2e-5)
        assert one.stop_reason == expected[name].stop_reason


def named(asked):
    return {(tuple(one.prompt), one.seed): one for one in asked}


def drawn_alone(built, asked, settings=LONG):
    return {name: sample_trajectories(built, [one], settings)[0] for name, one in named(asked).items()}


def moved(one, begun):
    return Trajectory(one.prompt, one.seed, begun)


@pytest.mark.parametrize(("kind", "sizes"), MODELS)
@pytest.mark.parametrize("piece_bytes", [0, 1_000_000])
@pytest.mark.parametrize("refill", [0.0, 0.5])
def test_whoever_comes_late_or_moves_draws_what_it_would_have_drawn(kind, sizes, piece_bytes, refill, monkeypatch):
    """Random arrivals and departures between two decodings, with separate caches and with joined caches."""
    monkeypatch.setitem(torch_decoding.PIECE_BYTES, "cpu", piece_bytes)
    monkeypatch.setitem(torch_decoding.REFILL_SHARE, "cpu", refill)
    choose = random.Random(0)
    asked = trajectories(8)
    expected = drawn_alone(sampler(kind, **sizes), asked)
    places = sampler(kind, places=9, **sizes).open(LONG), sampler(kind, places=14, **sizes).open(LONG)
    todo, here, ended = list(named(asked).items()), {}, {}
    widest, moves = 0, 0
    while todo or here:
        for number in (0, 1):
            if todo and choose.random() < 0.3:
                taken = [todo.pop(0) for _ in range(min(len(todo), choose.randrange(1, 7)))]
                places[number].admit(dict(taken))
                here |= {name: number for name, _ in taken}
            done = places[number].step()
            ended |= done
            here = {name: place for name, place in here.items() if name not in done}
            widest = max(widest, len(places[number].caches))
        if here and choose.random() < 0.3:
            gone = choose.sample(sorted(here), min(len(here), 3))
            for number in (0, 1):
                begun = places[number].withdraw([name for name in gone if here[name] == number])
                moves += sum(len(one.token_ids) > 0 for one in begun.values())
                places[1 - number].admit({name: moved(named(asked)[name], one) for name, one in begun.items()})
                here |= dict.fromkeys(begun, 1 - number)
                gone = [name for name in gone if name not in begun]
    assert_same(ended, expected)
    assert moves > 10 and (widest > 2) == (piece_bytes == 0)
    for decoding in places:
        assert decoding.load.running == decoding.load.waiting == decoding.load.kv_tokens == 0
        assert sorted(decoding.free) == list(range(decoding.max_sequences))


def test_what_is_streamed_is_what_is_drawn():
    """All new tokens together are the tokens of the samples and of the withdrawn trajectories."""
    built, asked = sampler(), named(trajectories(4))
    decoding = built.open(LONG)
    begun = {name: PartialResponse([5, 6], [-1.0, -2.0]) for name in list(asked)[:3]}
    decoding.admit({name: moved(one, begun.get(name, PartialResponse())) for name, one in asked.items()})
    assert decoding.new_tokens() == {}
    told = {name: (list(one.token_ids), list(one.logprobs)) for name, one in begun.items()}
    ended = {}
    for number in range(12):
        ended |= decoding.step()
        for name, new in decoding.new_tokens().items() if number % 3 == 0 else ():
            assert new.token_ids and name not in ended
            ids, values = told.setdefault(name, ([], []))
            ids.extend(new.token_ids)
            values.extend(new.logprobs)
    load = decoding.load
    left = decoding.withdraw(asked)
    assert ended and load.running == len(left) == len(asked) - len(ended)
    assert load.kv_tokens == sum(len(name[0]) + len(one.token_ids) for name, one in left.items())
    for name, one in left.items():
        ids, values = told[name]
        assert ids == list(one.token_ids)[: len(ids)] and len(ids) >= 10
        assert values == list(one.logprobs)[: len(ids)]
        assert begun.get(name, PartialResponse()).token_ids == list(one.token_ids)[:2] or name not in begun


def test_the_limit_counts_what_was_begun_elsewhere_and_samples_are_whole():
    built = sampler()
    (one,) = [one for one in trajectories(8) if len(drawn_alone(built, [one]).popitem()[1].token_ids) == 40][:1]
    whole = sample_trajectories(built, [one], LONG)[0]
    for count in (1, 20, 39):
        begun = PartialResponse(whole.token_ids[:count], whole.logprobs[:count])
        decoding = built.open(LONG)
        decoding.admit({"it": moved(one, begun)})
        steps = 0
        found = {}
        while not decoding.is_idle:
            steps += 1
            found |= decoding.step()
        assert steps == 40 - count and found["it"].is_truncated
        assert_same(found, {"it": whole})
        assert found["it"].logprobs[:count] == whole.logprobs[:count]


def test_those_who_wait_are_let_in_in_order_and_may_be_withdrawn():
    decoding = sampler(places=4).open(LONG)
    decoding.admit({number: Trajectory(PROMPTS[number % 4], number) for number in range(9)})
    seen = set(decoding.step())
    assert decoding.load.running <= 4 and decoding.load.waiting == 5
    begun = PartialResponse([9], [-0.5])
    decoding.admit({"late": Trajectory([3, 4], 77, begun)})
    assert decoding.withdraw(["late", 8, "nobody"]) == {"late": begun, 8: PartialResponse()}
    while not decoding.is_idle:
        seen |= set(decoding.step()) | set(decoding.names.values())
        assert seen == set(range(len(seen)))
    assert len(seen) == 8


def test_what_cannot_be_drawn_is_refused_and_nothing_is_admitted():
    decoding = sampler().open(SETTINGS)
    decoding.admit({"a": Trajectory([3], 1)})
    for wrong, said in (
        ({"b": Trajectory([3], 2), "a": Trajectory([3], 1)}, "a is being drawn already"),
        ({"b": Trajectory([3], 2), "c": Trajectory([3], 1, PartialResponse([4] * 12, [0.0] * 12))}, "12 tokens of 12"),
    ):
        with pytest.raises(ValueError, match=said):
            decoding.admit(wrong)
    assert decoding.load.waiting == 1
    kept = sampler().open(replace(SETTINGS, keeps_distributions=True))
    with pytest.raises(ValueError, match="distributions of its tokens"):
        kept.admit({"a": Trajectory([3], 1, PartialResponse([4], [0.0]))})


def test_a_closed_decoding_is_empty_and_the_next_one_uses_new_weights():
    built = sampler()
    decoding = built.open(LONG)
    decoding.admit(named(trajectories(4)))
    decoding.step()
    decoding.close()
    assert decoding.is_idle and decoding.step() == {}
    with torch.no_grad():
        weights = {name: 1.1 * weight for name, weight in built.model.named_parameters()}
    built.load_weights(weights.items(), 2)
    fresh = built.open(LONG)
    fresh.admit(named(trajectories(4)))
    drawn = run_out(fresh)
    assert {one.policy_version for one in drawn.values()} == {2}
    assert_same(drawn, drawn_alone(built, trajectories(4)))


CPU = torch.device("cpu")
MASK = 2**64 - 1


def splitmix64(seed):
    """Computes the reference code in Python's integers."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        bits = state
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
        yield bits ^ (bits >> 31)


def test_the_reference_code_gives_the_published_numbers():
    """The numbers are for seed 1234567, as listed by the test suites of other implementations."""
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
    """A place that gets another seed does not change its neighbours."""
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
    """Neighbouring seeds have nothing in common: 20 bins of 5,000 numbers each, within 5 standard errors."""
    over_seeds = uniform(numpy.arange(100_000, dtype=numpy.uint64), numpy.array([3]))
    over_positions = uniform(numpy.array([9], dtype=numpy.uint64), numpy.arange(100_000))
    for numbers in (over_seeds, over_positions):
        counts, _ = numpy.histogram(numbers, bins=20, range=(0, 1))
        assert counts.sum() == 100_000 and abs(counts - 5000).max() < 5 * 69
        assert abs(numpy.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / 100_000**0.5


ONE_TOKEN = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=1, log_threshold=None)


def seeded():
    return torch.Generator().manual_seed(0)


def draw(logits, settings, generator=None):
    """Calls `torch_decoding.draw` with random numbers of a generator."""
    numbers = torch.rand(len(logits), 1, generator=generator or seeded(), dtype=torch.float64)
    return torch_decoding.draw(logits, settings, numbers)


OF_FOUR = [0.5, 0.3, 0.15, 0.05]
OF_TWO = [0.625, 0.375, 0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, OF_FOUR),
        ({"temperature": 0.5}, [one**2 / 0.365 for one in OF_FOUR]),
        ({"top_k": 2}, OF_TWO),
        ({"top_p": 0.75}, OF_TWO),
        ({"log_threshold": -math.inf}, OF_FOUR),
        # 0.05 is pruned; of the other three, with 0.53, 0.32, 0.16, the first two have 0.84 of the probability mass.
        ({"log_threshold": math.log(0.2), "top_p": 0.83}, OF_TWO),
        # Temperature 2 takes the root: 0.3 then is 0.77 of 0.5, and 0.15 is 0.55 of it.
        ({"log_threshold": math.log(0.7), "temperature": 2.0}, [0.563508, 0.436492, 0.0, 0.0]),
        ({"log_threshold": -1.0, "temperature": 0.0}, [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(changes, expected):
    settings = replace(ONE_TOKEN, **changes)
    token, logprob = draw(torch.log(torch.tensor(OF_FOUR)).repeat(20_000, 1), settings, seeded())
    shares = torch.bincount(token, minlength=4) / len(token)
    assert shares.tolist() == pytest.approx(expected, abs=0.012)  # 3 standard errors
    assert set(token.tolist()) == {number for number, one in enumerate(expected) if one}
    # What is most probable is reported at temperature 1.
    reported = torch.tensor(expected if settings.temperature else OF_FOUR)
    torch.testing.assert_close(logprob.exp(), reported[token], atol=1e-6, rtol=0)


def test_a_large_vocabulary_is_drawn_evenly():
    generator, logits = seeded(), torch.zeros(100, 50_000)
    token, logprob = map(torch.cat, zip(*(draw(logits, ONE_TOKEN, generator) for _ in range(20)), strict=True))
    shares = torch.bincount(token // 5_000, minlength=10) / len(token)
    assert shares.tolist() == pytest.approx([0.1] * 10, abs=0.023)  # 3.5 standard errors
    assert logprob.tolist() == pytest.approx([-math.log(50_000)] * len(token), abs=1e-6)


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_no_random_number_draws_a_token_without_probability(number):
    none = -torch.inf
    logits = torch.tensor([[none, none, 0.0, none, 0.0, none], [0.0, none, none, none, none, none]])
    numbers = torch.full((2, 1), number, dtype=torch.float64)
    token, logprob = torch_decoding.draw(logits, ONE_TOKEN, numbers)
    assert token.tolist() == ([2, 0] if number == 0 else [4, 0])
    assert logprob.exp().tolist() == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.6}, {"log_threshold": -1.0}, {"temperature": 0.0}]
)
def test_the_distribution_is_that_of_the_drawn_token_to_the_bit_and_sums_to_one(changes):
    settings = replace(ONE_TOKEN, **changes)
    logits = torch.randn(200, 12, generator=seeded())
    token, logprob = draw(logits, settings, seeded())
    whole = distribution(logits, settings)
    assert torch.equal(whole.gather(-1, token[:, None])[:, 0], logprob)
    assert torch.allclose(whole.exp().sum(-1), torch.ones(200), atol=1e-6)
    is_cut = bool(changes) and "temperature" not in changes
    assert bool((whole == -torch.inf).any()) == is_cut
