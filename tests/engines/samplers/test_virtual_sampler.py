"""The virtual sampler: lengths, identities and planned time; no assertion on the clock."""

import math
import statistics
import subprocess
import sys

import pytest

from stages.engines.samplers import virtual_sampler
from stages.engines.samplers.build import build_sampler
from stages.engines.samplers.params import VirtualSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, StopReason, Trajectory, sample_trajectories
from stages.engines.samplers.virtual_sampler import DeviceClock, VirtualSampler, forced_length
from stages.foundations.errors import UserError
from tests.fakes.tiny_policy import write_tiny_policy

END, VOCABULARY = 7, 50
PARAMS = VirtualSamplerParams.model_validate(
    {
        "kind": "virtual",
        "max_sequences": 4,
        "step_milliseconds": 0.0,
        "step_milliseconds_per_sequence": 0.0,
        "step_milliseconds_per_thousand_tokens": 0.0,
        "read_milliseconds_per_thousand_tokens": 0.0,
        "lengths": {"median": 10.0, "p99_over_median": 10.0, "within_group": 0.7},
    }
)
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=40, log_threshold=None)


def sampler(**changes):
    return VirtualSampler(PARAMS.model_copy(update=changes), END, VOCABULARY)


def asked(count, prompt=(3, 4)):
    return [Trajectory(prompt, 100 + number) for number in range(count)]


def test_lengths_are_log_normal_and_those_of_a_group_are_alike():
    lengths = PARAMS.lengths.model_copy(update={"median": 1000.0})
    groups = [
        [forced_length(lengths, Trajectory([prompt], 97 * prompt + number)) for number in range(8)]
        for prompt in range(1000)
    ]
    drawn = sorted(length for group in groups for length in group)
    assert statistics.median(drawn) == pytest.approx(1000, rel=0.1)
    assert drawn[int(0.99 * len(drawn))] == pytest.approx(10_000, rel=0.2)
    logs = [[math.log(length) for length in group] for group in groups]
    within = statistics.fmean(statistics.variance(group) for group in logs)
    assert within / statistics.variance([value for group in logs for value in group]) == pytest.approx(0.7, abs=0.05)


def test_a_response_ends_with_the_end_token_at_its_length_or_is_cut():
    drawn = sample_trajectories(sampler(), asked(200), SETTINGS)
    assert {one.stop_reason for one in drawn} == set(StopReason)
    for one, trajectory in zip(drawn, asked(200), strict=True):
        length = forced_length(PARAMS.lengths, trajectory)
        assert len(one.token_ids) == len(one.logprobs) == min(length, 40)
        assert (one.token_ids[-1] == END) == (length <= 40) == (not one.is_truncated)
        assert END not in one.token_ids[:-1] and max(one.token_ids) < VOCABULARY
        assert len(set(one.logprobs)) == 1


def test_a_trajectory_that_goes_elsewhere_has_the_tokens_that_it_would_have_had():
    whole = sample_trajectories(sampler(), asked(6), SETTINGS)
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


def test_a_step_takes_what_the_params_say(monkeypatch):
    planned = []
    monkeypatch.setattr(DeviceClock, "work", lambda clock, seconds: planned.append(seconds))
    timed = sampler(
        step_milliseconds=10.0,
        step_milliseconds_per_sequence=1.0,
        step_milliseconds_per_thousand_tokens=1000.0,
        read_milliseconds_per_thousand_tokens=100_000.0,
    )
    decoding = timed.open(SETTINGS)
    decoding.admit({"a": Trajectory([3, 4, 5], 101), "b": Trajectory([3, 4, 5], 102)})
    decoding.step()
    decoding.step()
    assert planned == pytest.approx([0.010 + 0.002 + 0.008 + 0.300, 0.010 + 0.002 + 0.010])


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


def test_it_stands_in_for_no_policy(tmp_path):
    policy = write_tiny_policy(tmp_path)
    with pytest.raises(UserError, match="written down here as the policy's answers"):
        build_sampler(PARAMS, policy)
    with pytest.raises(ValueError, match="built-in sampler"):
        build_sampler(PARAMS, policy, mismatch=object(), may_be_virtual=True)
    built = build_sampler(PARAMS, policy, may_be_virtual=True)
    assert built.vocabulary == 258 and built.end_token == 0
    built.load_weights([], 3)
    assert {one.policy_version for one in sample_trajectories(built, asked(3), SETTINGS)} == {3}
    assert len(set(built.logprobs([[1]], [[2, 3]])[0])) == 1


def test_it_needs_no_torch(tmp_path):
    write_tiny_policy(tmp_path)
    code = (
        "import sys; from pathlib import Path; from stages.engines.samplers.virtual_sampler import VirtualSampler as V;"
        "from stages.engines.samplers.params import VirtualSamplerParams as P;"
        "V.from_folder(P.model_validate_json(sys.argv[1]), Path(sys.argv[2])); assert 'torch' not in sys.modules"
    )
    given = [sys.executable, "-c", code, PARAMS.model_dump_json(), str(tmp_path)]
    ended = subprocess.run(given, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
