"""Schedules: cases by hand on one replica, conservation, bounds, and the same seed giving the same figures."""

import random
from dataclasses import replace

import pytest

from pipelines.simulating.replica import ClusterSplit, DecodeStep, ReplicaSizes
from pipelines.simulating.schedules import (
    OURS,
    POLICIES,
    AsynchronousSchedule,
    Steps,
    asynchronous,
    best_split,
    one_step,
    partial,
    simulate_split,
    stream,
    synchronous,
)
from pipelines.simulating.setting import PAPER_WORK, DrawnLengths, LogNormal, paper_setting, paper_settings
from pipelines.simulating.table import simulate_cells
from stages.foundations.errors import UserError

INFINITE = float("inf")


def machine(replicas=1, groups=2, size=2, **changed):
    """One second a token and step, whatever the batch; an update takes a second and one for each ten tokens."""
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


class Repeating(list):
    """Lengths of groups, from the first again after the last."""

    def __getitem__(self, group):
        return super().__getitem__(group % len(self))


GROUPS = Repeating([[10, 20], [30, 40]])


def test_batches_by_hand():
    # Generation 40 s. Training: 100 tokens in two updates, 2 + 10 = 12 s.
    found = synchronous(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 12 + 3)
    assert found.generating_share == pytest.approx(40 / 55) and found.staleness == {0: 12}
    found = one_step(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(max(40, 12) + 4)
    # Training is over at 12 s: 10 ends with the newest weights, the three others when they are one step old.
    assert found.staleness == {0: 3, 1: 9} and found.consumed == {1: 12}
    # The groups end at 20 s with 30 tokens and at 40 s with 70. The first alone is no half of the tokens: one
    # mini-batch of all at 40 s, 1 + 10 s.
    found = stream(machine(), GROUPS, steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 1 + 10 + 4)
    # [20, 30] ends at 30 s with 50 tokens, [10, 40] at 40 s with 50: updates at 30-36 s and 40-46 s.
    found = stream(machine(), Repeating([[20, 30], [10, 40]]), steps=3)
    assert found.seconds_per_step == pytest.approx(40 + 1 + 5 + 4)


def test_one_replica_that_never_waits_by_hand():
    # A cycle: pull 1 s, 40 s. Training takes 12.5 s beside it. What version v draws is trained on as step v + 1: when
    # its cycle ends, the step before it has long been published (12.5 + 2 s after the cycle's start).
    found = asynchronous(machine(), GROUPS, 3, 5, AsynchronousSchedule(False))
    assert found.seconds_per_step == pytest.approx(41)
    assert found.consumed == {1: 20}
    # At the end of [10] the training of the batch before is still on; the others end after it.
    assert found.staleness == {0: 5, 1: 15}
    assert found.idle_share == pytest.approx(1 / 41)


def small(model="7B", gpus=8, **constants):
    setting = paper_setting(model, gpus)
    lengths = LogNormal(80, 1.0, 4, 800)
    work = replace(PAPER_WORK, groups=24, group_size=4, lengths=lengths)
    return replace(setting, work=work).with_constants(**constants)


STEPS = Steps(warm_up=3, measured=12, batches=4)


def test_repack_frees_replicas():
    # Where the longest response takes seconds and the others a tenth of it, looking twice a second has work to do.
    setting = small(gpus=32, repack_seconds=0.5)
    lengths = DrawnLengths(setting.work.lengths, 4, 0)
    without, packed = (
        asynchronous(setting.machine(16), lengths, 5, 20, AsynchronousSchedule(is_repacked))
        for is_repacked in (False, True)
    )
    assert packed.tokens_per_second > 1.25 * without.tokens_per_second
    assert packed.seconds_per_step < without.seconds_per_step and packed.kv_used > without.kv_used


@pytest.mark.parametrize("policy", [*POLICIES, OURS])
@pytest.mark.parametrize("seed", range(3))
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


def test_the_best_split_is_the_best():
    setting = small(gpus=12)
    lengths = DrawnLengths(setting.work.lengths, 4, 0)
    for policy in ("one_step", "asynchronous_repack"):
        seconds = {
            replicas: simulate_split(policy, setting, lengths, replicas, STEPS).seconds_per_step
            for replicas in range(1, 12)
        }
        best = best_split(policy, setting, lengths, STEPS)
        assert seconds[best] <= 1.03 * min(seconds.values())
    with pytest.raises(UserError, match="one_step trains beside its replicas: 1 GPUs"):
        best_split("one_step", small(gpus=1), lengths, STEPS)


def test_the_same_seed_gives_the_same_cells_on_any_number_of_processes():
    settings = [small(gpus=4), small(gpus=6)]
    policies = ("synchronous", "partial", "asynchronous_repack")
    first = [cell.as_dict() for cell in simulate_cells(settings, policies, [3], STEPS, jobs=1)]
    assert first == [cell.as_dict() for cell in simulate_cells(settings, policies, [3], STEPS, jobs=2)]
    assert first != [cell.as_dict() for cell in simulate_cells(settings, policies, [4], STEPS, jobs=1)]


def test_the_paper_by_hand():
    setting = paper_setting("7B", 64)
    # KV: 80e9 x 0.9 - 15.2e9 over 2 x 28 x 4 x 128 x 2 = 57,344 bytes a token.
    assert setting.kv_tokens == pytest.approx(56.8e9 / 57344)
    # Products overtake the weights' reading at (15.2e9 / 2.68e12) / (15.2e9 / 593.4e12) sequences.
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
    assert len(paper_settings()) == 15


def test_lengths_are_those_of_the_paper():
    lengths = DrawnLengths(PAPER_WORK.lengths, 16, 0)
    drawn = sorted(length for group in range(3000) for length in lengths[group])
    assert drawn[len(drawn) // 2] == pytest.approx(1640, rel=0.05)
    assert drawn[int(0.985 * len(drawn))] < 16384 == drawn[-1]
    spread = LogNormal.of_mean(200, 0.99, 1000)
    rng = random.Random(0)
    drawn = [length for _ in range(5000) for length in spread.group(rng, 8)]
    assert sum(drawn) / len(drawn) == pytest.approx(200, rel=0.03) and max(drawn) == 1000
