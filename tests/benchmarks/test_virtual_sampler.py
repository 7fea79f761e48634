"""The sampler and the schedules of devices that sleep: lengths, identities, planned time; none asserts on the clock."""

import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks import virtual_sampler
from benchmarks.asynchronous_throughput import simulate_devices
from benchmarks.virtual_sampler import DEVICE, Device, DeviceClock, VirtualSampler, build_virtual_sampler
from stages.engines.samplers.protocol import SamplingSettings, StopReason, Trajectory
from tests.fakes.tiny_policy import write_tiny_policy

END, VOCABULARY = 7, 50
FAST = Device(0.0, 0.0, median=10.0, p99_over_median=10.0, within_group=0.7)
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=40, log_threshold=None)


def sampler(device=FAST, max_sequences=4, notes=None):
    return VirtualSampler(device, max_sequences, END, VOCABULARY, notes)


def asked(count, prompt=(3, 4)):
    return [Trajectory(prompt, 100 + number) for number in range(count)]


def draw(sampler, trajectories):
    decoding, ended = sampler.open(SETTINGS), {}
    decoding.admit(dict(enumerate(trajectories)))
    while not decoding.is_idle:
        ended |= decoding.step()
    return [ended[number] for number in range(len(trajectories))]


def test_lengths_are_log_normal_and_those_of_a_group_are_alike():
    device = replace(FAST, median=1000.0)
    groups = [
        [device.length(Trajectory([prompt], 97 * prompt + number)) for number in range(8)] for prompt in range(1000)
    ]
    drawn = sorted(length for group in groups for length in group)
    assert statistics.median(drawn) == pytest.approx(1000, rel=0.1)
    assert drawn[int(0.99 * len(drawn))] == pytest.approx(10_000, rel=0.2)
    logs = [[math.log(length) for length in group] for group in groups]
    within = statistics.fmean(statistics.variance(group) for group in logs)
    assert within / statistics.variance([value for group in logs for value in group]) == pytest.approx(0.7, abs=0.05)


def test_a_response_ends_with_the_end_token_at_its_length_or_is_cut():
    drawn = draw(sampler(), asked(200))
    assert {one.stop_reason for one in drawn} == {StopReason.END_OF_SEQUENCE, StopReason.MAX_TOKENS}
    for one, trajectory in zip(drawn, asked(200), strict=True):
        length = FAST.length(trajectory)
        assert len(one.token_ids) == len(one.logprobs) == min(length, 40)
        assert (one.token_ids[-1] == END) == (length <= 40) == (not one.is_truncated)
        assert END not in one.token_ids[:-1] and max(one.token_ids) < VOCABULARY
        assert len(set(one.logprobs)) == 1


def test_a_trajectory_that_goes_elsewhere_has_the_tokens_that_it_would_have_had():
    whole = draw(sampler(), asked(6))
    first, second = sampler().open(SETTINGS), sampler(max_sequences=8).open(SETTINGS)
    first.admit(dict(enumerate(asked(6))))
    assert first.load.running == 0 and first.load.waiting == 6
    found, streamed = {}, {}
    for _ in range(5):
        found |= first.step()
        for name, new in first.new_tokens().items():
            streamed.setdefault(name, []).extend(new.token_ids)
    assert first.load.running + first.load.waiting + len(found) == 6 and first.load.kv_tokens > 0
    begun = first.withdraw([*range(6), "unknown"])
    assert first.is_idle and first.load.kv_tokens == 0
    assert {name: one.token_ids for name, one in begun.items() if one.token_ids} == {
        name: ids for name, ids in streamed.items() if name in begun
    }
    left = {name: one for name, one in enumerate(asked(6)) if name in begun}
    second.admit({name: Trajectory(one.prompt, one.seed, begun[name]) for name, one in left.items()})
    while not second.is_idle:
        found |= second.step()
    assert [found[name] for name in range(6)] == whole


def test_a_step_takes_what_the_device_takes(monkeypatch):
    planned = []
    monkeypatch.setattr(DeviceClock, "work", lambda clock, seconds: planned.append(seconds))
    decoding = sampler(DEVICE).open(SETTINGS)
    decoding.admit({"a": Trajectory([3, 4, 5], 101)})
    decoding.step()
    decoding.admit({number: Trajectory([3, 4, 5], 102 + number) for number in range(3)})
    decoding.step()
    assert planned == pytest.approx([0.017, 0.017 + 3 * 0.024 / 63])


class Time:
    """A clock that runs on sleeps alone, each of them `late` too long."""

    def __init__(self):
        self.now, self.late = 100.0, 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds + self.late


@pytest.fixture
def clock_time(monkeypatch):
    fake = Time()
    monkeypatch.setattr(virtual_sampler, "time", fake)
    return fake


def test_work_between_steps_and_late_sleeps_do_not_add_up(clock_time):
    clock, started = DeviceClock(), clock_time.now
    clock_time.late = 0.002
    for _ in range(100):
        clock.work(0.010)
        clock_time.now += 0.003
    assert clock_time.now - started == pytest.approx(1.0 + 0.002 + 0.003)
    assert clock.lateness == pytest.approx(0.002)


def test_what_cannot_be_made_up_for_is_lateness_and_rest_is_not(clock_time):
    clock = DeviceClock()
    for _ in range(10):
        clock.work(0.010)
        clock_time.now += 0.030
    assert clock.lateness == pytest.approx(9 * 0.030 / 0.100)
    clock = DeviceClock()
    for _ in range(10):
        clock.work(0.010)
        clock.rest()
        clock_time.now += 5.0
    assert clock.lateness == pytest.approx(0.0)


def test_it_draws_tokens_of_a_policy_and_notes_its_lateness(tmp_path, monkeypatch):
    policy, notes = write_tiny_policy(tmp_path / "policy"), tmp_path / "notes"
    notes.mkdir()
    built = build_virtual_sampler(notes, SimpleNamespace(max_sequences=4), policy)
    assert built.vocabulary == 258 and built.end_token == 0
    monkeypatch.setattr(virtual_sampler, "NOTE_SECONDS", 0.01)
    built.load_weights([], 3)
    assert {one.policy_version for one in draw(built, asked(3))} == {3}
    assert [float(note.read_text()) >= 0 for note in notes.iterdir()] == [True]
    assert len(set(built.logprobs([[1]], [[2, 3]])[0])) == 1


def test_schedules_of_devices_by_hand():
    # Eight devices, a group of one on each: 0.1 + 0.02 s a token of the longest, 50 tokens, then 1 s of training.
    device = replace(DEVICE, step_seconds=0.1, sequence_seconds=0.02)
    found = simulate_devices([[50]] * 8, 8, 1.0, device)
    assert found["synchronous"].seconds_per_step == pytest.approx(50 * 0.12 + 1)
    assert found["synchronous"].tokens_per_second == pytest.approx(400 / 7)
    assert found["asynchronous"].seconds_per_step == pytest.approx(6.0)
