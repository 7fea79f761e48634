"""Errors that the hub raises, its messages while nothing happens, and a step's metrics from plain data."""

from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from stages.engines.distributed import waiting
from stages.engines.replicas.replica import Report
from stages.engines.samplers.protocol import Load, Trajectory
from stages.foundations.errors import UserError
from stages.rl_round.asynchronous.coordinator import Lengths
from stages.rl_round.asynchronous.hub import (
    TOP,
    Hub,
    buffer_metrics,
    counted_metrics,
    length_metrics,
    relay_metrics,
    replica_metrics,
    round_totals,
    staleness_metrics,
    window_metrics,
)
from stages.rl_round.asynchronous.timeline import MOVED, Timeline
from stages.rl_round.asynchronous.trajectory_pool import Faults, Repacked, TrajectoryPool
from stages.rl_round.methods import BestFitRepack
from stages.rl_round.round import Trained


def hub_with(**parts):
    names = [part.name for part in fields(Hub) if part.init and part.default is part.default_factory is MISSING]
    known = {"this_round": SimpleNamespace(name="rl_1"), "journal": SimpleNamespace(folder=Path("scratch/journal"))}
    return Hub(**{**dict.fromkeys(names), "batches": {}, **known, **parts})


@pytest.mark.parametrize("steps_known", [0, 2, 4])
def test_a_checkpoint_that_the_journal_does_not_lead_to_is_an_error(steps_known):
    """The end of the journal was lost. Two missing steps would leave a gap in the curve and in the rollouts."""
    hub = hub_with(curve=[{}] * steps_known)
    with pytest.raises(UserError, match=rf"checkpoint is of step 5, .*ends after step {steps_known}: .*remove"):
        hub._note_trained(Trained(4))


@pytest.mark.parametrize(("judging", "patience", "seconds"), [(0, 0.0, 600), (3, 0.0, 3600), (0, 900.0, 1500)])
def test_a_round_in_which_nothing_happens_says_so_and_ends(judging, patience, seconds, capsys, monkeypatch):
    """Earlier where nobody has work: no process, the verifier, the trainer."""
    now = [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    pool = TrajectoryPool(None, 1, 100, None)
    pool.join(0)
    hub = hub_with(
        coordinator=SimpleNamespace(pool=pool, window=SimpleNamespace(ready=0), judging=judging),
        fleet=SimpleNamespace(started=lambda: [0]),
        trainers=SimpleNamespace(activity="works", steps_done=2, restarts=0, patience=patience),
        curve=[{}] * 3,
    )

    def check(seconds):
        for _ in range(seconds):
            now[0] += 1.0
            hub._check_progress()

    check(seconds + 1)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == seconds // 61
    assert "the trainer works behind step 2 after 0 restarts, 1 replicas hold weights [None], 0 responses" in said[0]
    with pytest.raises(RuntimeError, match=r"rl_1 is stuck.*Remove scratch to start"):
        check(1)


def draining_pool(reports):
    """Returns a pool of two replicas with a response each under version 0, after the `reports` of their caches."""
    repack = BestFitRepack(kind="best_fit", every_seconds=5.0, batch_bound=8)
    loop = SimpleNamespace(repack=repack, takes_groups="when_empty", report_seconds=1.0)
    pool = TrajectoryPool(loop, 1, 1000, None)
    for replica in (0, 1):
        pool.join(replica)
        pool.orders(replica, 0, [0], lambda version, most: {})
        pool.receive(replica, Report(version=0, pulled=0))
        pool.orders(replica, 0, [0], lambda version, most, number=replica: {(number, 0): Trajectory([3], number)})
        for load in reports:
            pool.receive(replica, Report(version=0, load=load))
    return pool


def test_repack_looks_at_intervals_and_right_after_new_weights():
    pool, timeline = draining_pool([Load(1, 0, 100)]), Timeline(0.0)
    coordinator = SimpleNamespace(pool=pool, loop=pool.loop, window=SimpleNamespace(may_begin=lambda version: 0))
    hub = hub_with(coordinator=coordinator, versions=SimpleNamespace(newest=0), timeline=timeline, curve=[])
    hub._repack(6.0)  # due by the clock: the caches are measured, and both fill up
    for replica in (0, 1):
        pool.receive(replica, Report(version=0, load=Load(1, 0, 90)))
    hub._repack(6.1)
    assert timeline.count(MOVED) == 0, "nothing is due, and no newer weights are there to load"
    hub.versions.newest = 1
    hub._repack(6.2)
    assert timeline.count(MOVED) == 1 and pool.repacked.freed_replicas == 1
    hub._repack(6.3)
    assert hub._repacked_at == 6.2, "the next one is due five seconds after the last"
    hub._repack(11.3)
    assert hub._repacked_at == 11.3


def test_the_capacity_of_repack_is_the_smallest_cache_that_a_replica_reports():
    pool = draining_pool([Load(1, 0, 100), Load(1, 0, 90)])
    assert pool.kv_capacity == 1000 and pool.plan_repack(1, 0) == 0
    for replica, capacity in ((0, 150), (1, 400)):
        pool.receive(replica, Report(version=0, load=Load(1, 0, 80, kv_capacity=capacity)))
    # Two responses of 80 tokens do not fit a cache of 150, and two of 70 do.
    assert pool.kv_capacity == 150 and pool.plan_repack(1, 0) == 0
    for replica in (0, 1):
        pool.receive(replica, Report(version=0, load=Load(1, 0, 70)))
    assert pool.kv_capacity == 150 and pool.kv_fraction() == pytest.approx(70 / 150) and pool.plan_repack(1, 0) == 1


def test_staleness_of_a_step():
    found = staleness_metrics(7, [7, 7, 6, 4])
    assert found == {
        "staleness/mean": 1.0,
        "staleness/max": 3,
        "staleness/p99": 3,
        "staleness/count_0": 2,
        "staleness/count_1": 1,
        "staleness/count_2": 0,
        "staleness/count_3": 1,
    }
    assert staleness_metrics(7, []) == {}
    # The 99th percentile leaves out one in a hundred; the histogram is bounded and counts every response.
    assert staleness_metrics(5, [5] * 99 + [0])["staleness/p99"] == 0
    assert staleness_metrics(5, [5] * 98 + [0] * 2)["staleness/p99"] == 5
    found = staleness_metrics(1000, range(1000))
    counts = [value for name, value in found.items() if "/count_" in name]
    assert len(counts) == TOP + 1 and sum(counts) == 1000 and found["staleness/max"] == 1000


def test_numbers_of_a_step_say_what_was_measured_and_no_more():
    assert buffer_metrics(3, [9.0, 6.0, 2.0]) == {
        "buffer/groups": 3,
        "buffer/age_seconds_p50": 6.0,
        "buffer/age_seconds_max": 9.0,
    }
    assert buffer_metrics(2, []) == {"buffer/groups": 2}
    assert window_metrics(12, 8, 2)["window/used"] == 0.5
    assert "window/used" not in window_metrics(12, 8, None)
    found = counted_metrics(Repacked(moves=3, freed_replicas=1), Faults(restarts=2, tokens_lost=40))
    assert found["repack/moves"] == 3 and found["fault/tokens_lost"] == 40
    assert found["fault/duplicates"] == 0 and len(found) == 10
    assert replica_metrics(5, [5, 3], 0.5) == {"kv/used_fraction": 0.5, "relay/lag_versions": 1.0}
    assert replica_metrics(5, [], 0.0) == {"kv/used_fraction": 0.0}
    assert relay_metrics(0.3, [1.0, 2.0]) == {"relay/publish_seconds": 0.3, "relay/broadcast_seconds": 1.5}
    assert relay_metrics(0.3, []) == {"relay/publish_seconds": 0.3}
    assert length_metrics(Lengths(30, 2), Lengths()) == {"length/issued_mean": 15.0}


def test_a_round_adds_up_what_its_steps_count():
    faults = [Faults(restarts=1), Faults(restarts=2)]
    curve = [
        {**staleness_metrics(step, versions), **counted_metrics(Repacked(moves=1), own)}
        for step, versions, own in zip([0, 2], [[0, 0], [0, 1, 2, 2]], faults, strict=True)
    ]
    totals = round_totals(curve)
    assert totals["fault/restarts"] == 3 and totals["repack/moves"] == 2
    assert totals["staleness/mean"] == pytest.approx(3 / 6) and totals["staleness/max"] == 2
    assert [totals[f"staleness/count_{age}"] for age in range(3)] == [4, 1, 1]
    assert round_totals([{"step": 1}]) == {}
