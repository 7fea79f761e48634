"""The benchmark of slow tools: what its arms draw, and the floors of their times; nothing asserts on the clock."""

import statistics

import pytest

from benchmarks import slow_tools
from benchmarks.slow_environment import MEDIAN, P99, Tool, seconds_of_tool
from benchmarks.slow_tools import ORDERS, floors, make_work
from stages.engines.environments.protocol import Done
from stages.engines.samplers.protocol import Episode, Sample, StopReason, Trajectory


def test_seconds_of_tools_have_the_median_and_the_tail_that_are_named():
    seconds = sorted(seconds_of_tool(seed, 1) for seed in range(20_000))
    assert statistics.median(seconds) == pytest.approx(MEDIAN, rel=0.05)
    assert seconds[len(seconds) * 99 // 100] == pytest.approx(P99, rel=0.15)
    assert seconds_of_tool(3, 2) == seconds_of_tool(3, 2) != seconds_of_tool(3, 1)


def test_every_arm_draws_the_same_responses_and_episodes_have_several_turns():
    work = make_work(problems=2, group_size=4, turn_tokens=6, hidden=64, layers=2)
    drawn = [work.draw(order, workers, is_slow=False)[1] for order, workers in zip(ORDERS, (1, 2), strict=True)]
    assert drawn[0].keys() == drawn[1].keys() == set(range(8))
    for one, other in zip(*(sorted(samples.items()) for samples in drawn), strict=True):
        assert one[1].token_ids == other[1].token_ids and one[1].episode.observed == other[1].episode.observed
    assert max(one.episode.turns for one in drawn[0].values()) > 1
    assert not any(one.episode.fault for one in drawn[0].values())


def test_an_episode_ends_by_its_seed():
    answers = [Tool(seed, is_slow=False).step("any") for seed in range(300)]
    assert 60 < sum(isinstance(one, Done) for one in answers) < 140


def test_floors_by_hand(monkeypatch):
    monkeypatch.setattr(slow_tools, "seconds_of_tool", lambda seed, turn: 10.0 * seed + turn)
    seeds = {0: 2, 1: 4, 2: 5}
    trajectories = [Trajectory([1], seed) for seed in seeds.values()]
    turns, reason = (2, 1, 1), StopReason.END_OF_SEQUENCE
    samples = {place: Sample([2], [0.0], reason, 0, Episode((), turns[place], "")) for place in seeds}
    # 21 + 22 and 41 for worker 0, 51 for worker 1.
    assert floors(samples, trajectories, 2) == (135 / 2, 84, 51)
    cut = Sample([2], [0.0], StopReason.MAX_TOKENS, 0, Episode((), 2, ""))
    assert floors({0: cut}, trajectories, 2) == (21 / 2, 21, 21), "a turn that was cut asks for nothing"
