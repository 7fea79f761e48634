"""The simulator: replicas compared with a loop over tokens, hand-worked schedules, the command's output."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.asynchronous_throughput import Repeating
from benchmarks.simulator.__main__ import Cell, main, ratios, simulate_cells
from benchmarks.simulator.paper import (
    OURS,
    PAPER_GPUS,
    PAPER_WORK,
    POLICIES,
    DrawnLengths,
    LogNormal,
    Steps,
    paper_setting,
    simulate_split,
)
from benchmarks.simulator.replica import (
    ClusterSplit,
    DecodeStep,
    ReplicaSizes,
    SimulatedReplica,
    SimulatedTrajectory,
    SimulationResult,
)
from benchmarks.simulator.schedules import AsynchronousSchedule, asynchronous, one_step, partial, stream, synchronous

PROJECT = Path(__file__).resolve().parents[2]
STEP = DecodeStep(fixed=1e-3, read=5e-3, read_token=3e-7, multiply=2e-4)


def sizes(kv=1e9, most=64, prefill=1e-5, admitted=0.95):
    return ReplicaSizes(STEP, prefill, 10, 2.5, kv, admitted * kv, most)


def trajectories(lengths):
    return [SimulatedTrajectory(number, number, length) for number, length in enumerate(lengths)]


@pytest.mark.parametrize("seed", range(9))
def test_as_many_steps_are_within_a_time_as_end_in_it(seed):
    rng = random.Random(seed)
    sequences, kv, most = rng.randint(1, 300), rng.randint(0, 400_000), rng.randint(0, 4000)
    limit = STEP.seconds(sequences, kv, most) / 3
    within = STEP.steps_within(sequences, kv, limit, most)
    assert STEP.seconds(sequences, kv, within) <= limit
    assert within == most or STEP.seconds(sequences, kv, within + 1) > limit


class SlowReplica:
    """The same replica as a loop over tokens."""

    def __init__(self, own):
        self.own, self.time, self.waiting, self.running, self.ends = own, 0.0, [], [], {}

    def run(self, lengths):
        own = self.own
        self.waiting = [[name, length, 0] for name, length in enumerate(lengths)]
        while self.waiting or self.running:
            read = 0.0
            while self.waiting and len(self.running) < own.most_sequences:
                made = self.waiting[0][2]
                if self.running and self.kv() + own.prompt_tokens + made > own.admitted_tokens:
                    break
                self.running.append(self.waiting.pop(0))
                read += own.prefilled_prompt + made
            self.time += read * own.prefill_token
            while len(self.running) > 1 and self.kv() + len(self.running) > own.kv_tokens:
                self.waiting.insert(0, self.running.pop())
            if self.waiting and len(self.running) < own.most_sequences and self.room():
                continue
            count = len(self.running)
            read = own.step.read + own.step.read_token * self.kv()
            self.time += own.step.fixed + max(read, own.step.multiply * count)
            for one in self.running:
                one[2] += 1
            for one in [one for one in self.running if one[1] == one[2]]:
                self.running.remove(one)
                self.ends[one[0]] = self.time
        return self.ends

    def kv(self):
        return sum(self.own.prompt_tokens + one[2] for one in self.running)

    def room(self):
        return self.kv() + self.own.prompt_tokens + self.waiting[0][2] <= self.own.admitted_tokens


@pytest.mark.parametrize(
    ("kv", "most"), [(1e9, 64), (1e9, 5), (1500, 64), (900, 7)], ids=["room", "few", "full", "fuller"]
)
@pytest.mark.parametrize("seed", range(2))
def test_a_replica_ends_its_work_when_the_slow_one_does(kv, most, seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 300) for _ in range(40)]
    own = sizes(kv, most)
    replica = SimulatedReplica(0, own)
    replica.submit(trajectories(lengths))
    # Polled now and then: a cut between two tokens must not change anything.
    fast = [one for look in range(1, 4000) for one in replica.run_until(0.05 * look)]
    slow = SlowReplica(own).run(lengths)
    assert replica.trajectories == 0 and len(fast) == len(lengths)
    for time, trajectory in fast:
        assert time == pytest.approx(slow[trajectory.number], rel=1e-6)
    assert replica.kv == 0 and 0 < replica.kv_seconds <= replica.time


def test_a_withdrawn_trajectory_goes_on_elsewhere_with_its_tokens():
    one, other = SimulatedReplica(0, sizes()), SimulatedReplica(1, sizes())
    one.version = other.version = 3
    one.submit(trajectories([50, 200]))
    one.run_until(0.2)
    gone = one.withdraw()
    assert one.trajectories == 0 and one.kv == 0
    assert all(0 < trajectory.made <= trajectory.length for trajectory in gone)
    made = sum(trajectory.made for trajectory in gone)
    other.submit(gone)
    other.run_until(float("inf"))
    # No token is sampled twice: both together have the tokens of the responses.
    assert len(gone) == 2 and one.tokens == made and one.tokens + other.tokens == 250
    assert {trajectory.version for trajectory in gone} == {3}


INFINITE = float("inf")


def machine(replicas=1, groups=2, size=2, **changed):
    """One second per token and step, whatever the batch; an update takes 1 s and 1 s for each ten tokens."""
    sizes = ReplicaSizes(DecodeStep(1.0, 0.0, 0.0, 0.0), 0.0, 0, 0.0, INFINITE, INFINITE, 1000)
    given = {
        "sizes": sizes,
        "replicas": replicas,
        "rollout_gpus": replicas,
        "groups": groups,
        "group_size": size,
        "update_seconds": lambda tokens: 1 + tokens / 10,
        "minibatches": 2,
        "switch_seconds": 3.0,
        "collective_seconds": 4.0,
        "push_seconds": 0.5,
        "broadcast_seconds": 2.0,
        "pull_seconds": 1.0,
        "batch_bound": 100,
        "repack_seconds": 5.0,
    }
    return ClusterSplit(**given | changed)


GROUPS = Repeating([[10, 20], [30, 40]])


def test_batches_by_hand():
    # Generation 40 s. Training: 100 tokens in two updates, 2 + 10 = 12 s.
    found = synchronous(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 12 + 3)
    assert found.generating_share == pytest.approx(40 / 55) and found.staleness == {0: 12}
    found = one_step(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(max(40, 12) + 4)
    # Training ends at 12 s: 10 ends with the newest weights, the three others when they are one step old.
    assert found.staleness == {0: 3, 1: 9} and found.consumed == {1: 12}
    # The groups end at 20 s with 30 tokens and at 40 s with 70. The first alone has less than half of the tokens, so
    # there is one mini-batch of all at 40 s, 1 + 10 s.
    found = stream(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 1 + 10 + 4)
    # [20, 30] ends at 30 s with 50 tokens, [10, 40] at 40 s with 50: updates at 30-36 s and 40-46 s.
    found = stream(machine(), Repeating([[20, 30], [10, 40]]), steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 1 + 5 + 4)


def test_one_replica_that_never_waits_by_hand():
    # A cycle: pull 1 s, 40 s. Training takes 12.5 s at the same time. Responses of version v are trained on as step
    # v + 1. At the end of their cycle, the previous step has long been published (12.5 + 2 s after the cycle's start).
    found = asynchronous(machine(), GROUPS, 3, 5, AsynchronousSchedule(False))
    assert found.seconds_per_step == pytest.approx(41)
    assert found.consumed == {1: 20}
    # When [10] ends, training of the previous batch still runs; the others end after it.
    assert found.staleness == {0: 5, 1: 15}
    assert found.idle_share == pytest.approx(1 / 41)


def small(model="7B", gpus=8, **constants):
    setting = paper_setting(model, gpus)
    lengths = LogNormal(80, 1.0, 4, 800)
    work = replace(PAPER_WORK, groups=24, group_size=4, lengths=lengths)
    return replace(setting, work=work, constants=replace(setting.constants, **constants))


STEPS = Steps(warm_up=3, measured=12, batches=4)


def test_repack_frees_replicas():
    # The longest response takes seconds and the others a tenth of it, so polling twice a second makes a difference.
    setting = small(gpus=32, repack_seconds=0.5)
    lengths = DrawnLengths(setting.work.lengths, 4, 0)
    without, packed = (
        asynchronous(setting.machine(16), lengths, 5, 20, AsynchronousSchedule(is_repacked))
        for is_repacked in (False, True)
    )
    assert packed.tokens_per_second > 1.25 * without.tokens_per_second
    assert packed.seconds_per_step < without.seconds_per_step and packed.kv_used > without.kv_used


@pytest.mark.parametrize("policy", [*POLICIES, OURS])
@pytest.mark.parametrize("seed", range(2))
def test_issued_is_finished_and_in_flight(policy, seed):
    setting = small(most_sequences=16)
    for replicas in (1, 3, 6):
        lengths = DrawnLengths(setting.work.lengths, 4, seed)
        found = simulate_split(policy, setting, lengths, replicas, STEPS)
        assert found.issued == found.finished + found.in_flight
        steps = STEPS.measured if policy in ("partial", "asynchronous", "asynchronous_repack", "ours") else 4
        assert sum(found.consumed.values()) == steps * setting.work.trajectories
        assert 0 < found.kv_used < 1 and 0 <= found.idle_share < 1


@pytest.mark.parametrize("window", [0, 1, 3])
def test_staleness_stays_within_the_window(window):
    setting = small(window=window)
    for policy in ("asynchronous", "asynchronous_repack", "ours"):
        found = simulate_split(policy, setting, DrawnLengths(setting.work.lengths, 4, 1), 5, STEPS)
        assert found.consumed_max <= window
    found = partial(setting.machine(5), DrawnLengths(setting.work.lengths, 4, 1), 3, 12, eta=window)
    assert found.consumed_max <= window


@pytest.mark.parametrize("policy", ["asynchronous_repack", OURS])
def test_the_best_split_is_the_best_of_whole_runs(policy):
    # The longest response takes more steps than the window. So replicas stop once in about ten steps, and a run that is
    # shorter than such a cycle ranks the splits wrongly.
    setting = small(gpus=24, window=8, repack_seconds=0.5, minibatch_seconds=0.05)
    lengths = replace(setting.work.lengths, longest=2000)
    setting = replace(setting, work=replace(setting.work, lengths=lengths))
    drawn = DrawnLengths(lengths, 4, 0)
    seconds = [simulate_split(policy, setting, drawn, replicas, Steps()).seconds_per_step for replicas in range(1, 24)]
    (cell,) = simulate_cells([setting], [policy], [0], Steps())
    assert cell.seconds_per_step <= 1.03 * min(seconds)


def test_the_same_seed_gives_the_same_cells_on_any_number_of_processes():
    settings = [small(gpus=4), small(gpus=6)]
    policies = ("synchronous", "partial", "asynchronous_repack")
    first = [cell.as_dict() for cell in simulate_cells(settings, policies, [3], STEPS, jobs=1)]
    assert first == [cell.as_dict() for cell in simulate_cells(settings, policies, [3], STEPS, jobs=2)]
    assert first != [cell.as_dict() for cell in simulate_cells(settings, policies, [4], STEPS, jobs=1)]


def test_the_paper_by_hand():
    setting = paper_setting("7B", 64)
    # KV: 80e9 x 0.9 - 15.2e9 over 2 x 28 x 4 x 128 x 2 = 57,344 bytes per token.
    assert setting.kv_tokens == pytest.approx(56.8e9 / 57344)
    # Products take longer than reading the weights from (15.2e9 / 2.68e12) / (15.2e9 / 593.4e12) sequences on.
    assert setting.machine(24).batch_bound == 221
    step = setting.machine(24).sizes.step
    assert step.seconds(100, 0, 1) == pytest.approx(15.2e9 / 2.68e12 + 2e-3)
    # Four updates of 8 P tokens at 40% of 989 TFLOP/s, with 0.5 s and 2 x 15.2e9 / 8 / 40e9 s each.
    seconds = setting.machine(24).training_seconds(1e6)
    assert seconds == pytest.approx(8 * 7.6e9 * 1e6 / (40 * 395.6e12) + 4 * (0.5 + 0.095))
    # Tensor parallel adds two all-reduces a layer.
    large = paper_setting("72B", 64)
    built = large.machine(3)
    assert built.sizes.step.fixed == pytest.approx(2e-3 + 160 * 12e-6)
    assert (built.rollout_gpus, built.pull_seconds) == (24, pytest.approx(145.4e9 / 8 / 50e9))


def test_lengths_are_those_of_the_paper():
    lengths = DrawnLengths(PAPER_WORK.lengths, 16, 0)
    drawn = sorted(length for group in range(3000) for length in lengths[group])
    assert drawn[len(drawn) // 2] == pytest.approx(1640, rel=0.05)
    assert drawn[int(0.985 * len(drawn))] < 16384 == drawn[-1]


KEYS = ["model", "gpus", "policy", "seconds_per_step", "rollout_gpus", "staleness_mean", "staleness_max", "kv_used"]


def cell(setting, policy, seconds):
    outcome = SimulationResult(seconds, 8, {0: 9, 2: 1}, {1: 10}, 0.5, 0.1, 1e3, None, 10, 10, 0)
    return Cell(setting, policy, (outcome,))


def test_a_line_of_json_for_each_cell(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.simulator.__main__.Steps", lambda: Steps(warm_up=1, measured=1, batches=1))
    main(["--json", "--jobs", "1", "--ours"])
    printed = capsys.readouterr().out
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [list(line)[:8] for line in lines] == [KEYS] * 7
    assert [(line["policy"], line["gpus"], line["model"]) for line in lines] == [
        (policy, 64, "7B") for policy in (*POLICIES, OURS)
    ]
    assert lines[0]["rollout_gpus"] == 64 > lines[1]["rollout_gpus"] >= 1
    assert lines[0]["staleness_max"] == 0 and 0 < lines[1]["kv_used"] < 1


def test_it_runs_without_torch_and_ray():
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "ray", "vllm", "transformers", "deepspeed"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from benchmarks.simulator import __main__ as command, paper
command.Steps = lambda: paper.Steps(1, 1, 1)
command.POLICIES = ("synchronous", "asynchronous_repack")
command.main(["--json", "--jobs", "1"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["policy"] for line in done.stdout.splitlines()] == ["synchronous", "asynchronous_repack"]


def test_ratios_by_hand():
    settings = [paper_setting(model, gpus) for model, counts in PAPER_GPUS.items() for gpus in counts]
    assert len(settings) == 15
    seconds = {"synchronous": 4.0, "one_step": 3.0, "stream": 3.0, "partial": 2.0, "asynchronous_repack": 1.0}
    cells = [cell(one, policy, value) for one in settings for policy, value in seconds.items()]
    cells[0] = cell(settings[0], "synchronous", 7.0)  # the smallest setting
    found = ratios(cells)
    assert found["mean over synchronous"] == pytest.approx((14 * 4 + 7) / 15)
    assert found["largest over synchronous"] == 7 and found["mean over partial"] == 2
    assert found["largest scale, over all"] == pytest.approx((4 + 3 + 3 + 2) / 4)
    assert cells[1].as_dict()["staleness_mean"] == pytest.approx(0.2)
