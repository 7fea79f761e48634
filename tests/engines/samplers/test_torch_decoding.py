"""The built-in sampler's decoding: trajectories that come late, leave and go on elsewhere draw the same tokens."""

import random
from dataclasses import replace

import pytest
import torch

from stages.engines.samplers import torch_decoding
from stages.engines.samplers.protocol import Begun, Trajectory, sample_trajectories
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
    return TorchSampler(replace_params(max_sequences=places), random_biases(make(kind, **sizes)), END)


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
    """Random arrivals and departures between two decodings, with caches apart and with caches joined."""
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
    """New tokens, put together, are the tokens of the samples and of what is withdrawn."""
    built, asked = sampler(), named(trajectories(4))
    decoding = built.open(LONG)
    begun = {name: Begun([5, 6], [-1.0, -2.0]) for name in list(asked)[:3]}
    decoding.admit({name: moved(one, begun.get(name, Begun())) for name, one in asked.items()})
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
        assert begun.get(name, Begun()).token_ids == list(one.token_ids)[:2] or name not in begun


def test_the_limit_counts_what_was_begun_elsewhere_and_samples_are_whole():
    built = sampler()
    (one,) = [one for one in trajectories(8) if len(drawn_alone(built, [one]).popitem()[1].token_ids) == 40][:1]
    whole = sample_trajectories(built, [one], LONG)[0]
    for count in (1, 20, 39):
        begun = Begun(whole.token_ids[:count], whole.logprobs[:count])
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
    begun = Begun([9], [-0.5])
    decoding.admit({"late": Trajectory([3, 4], 77, begun)})
    assert decoding.withdraw(["late", 8, "nobody"]) == {"late": begun, 8: Begun()}
    while not decoding.is_idle:
        seen |= set(decoding.step()) | set(decoding.names.values())
        assert seen == set(range(len(seen)))
    assert len(seen) == 8


def test_what_cannot_be_drawn_is_refused_and_nothing_is_admitted():
    decoding = sampler().open(SETTINGS)
    decoding.admit({"a": Trajectory([3], 1)})
    for wrong, said in (
        ({"b": Trajectory([3], 2), "a": Trajectory([3], 1)}, "a is being drawn already"),
        ({"b": Trajectory([3], 2), "c": Trajectory([3], 1, Begun([4] * 12, [0.0] * 12))}, "12 tokens of 12"),
    ):
        with pytest.raises(ValueError, match=said):
            decoding.admit(wrong)
    assert decoding.load.waiting == 1
    kept = sampler().open(replace(SETTINGS, keeps_distributions=True))
    with pytest.raises(ValueError, match="distributions of its tokens"):
        kept.admit({"a": Trajectory([3], 1, Begun([4], [0.0]))})


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


def test_distributions_are_kept_of_whoever_comes_late():
    built, settings = sampler(places=5), replace(LONG, keeps_distributions=True)
    for one in sample_trajectories(built, trajectories(6), settings):
        rows = one.distributions
        assert rows[torch.arange(len(rows)), one.token_ids].tolist() == one.logprobs
