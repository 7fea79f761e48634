"""A step's numbers from plain data."""

from __future__ import annotations

import pytest

from stages.rl_round.asynchronous.coordinator import Lengths
from stages.rl_round.asynchronous.hub import (
    TOP,
    buffer_metrics,
    counted_metrics,
    length_metrics,
    relay_metrics,
    replica_metrics,
    round_totals,
    staleness_metrics,
    window_metrics,
)
from stages.rl_round.asynchronous.trajectory_pool import Faults, Repacked


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


def test_the_99th_percentile_leaves_out_one_in_a_hundred():
    assert staleness_metrics(5, [5] * 99 + [0])["staleness/p99"] == 0
    assert staleness_metrics(5, [5] * 98 + [0] * 2)["staleness/p99"] == 5


def test_the_histogram_is_bounded_and_loses_nobody():
    found = staleness_metrics(1000, range(1000))
    counts = [value for name, value in found.items() if "/count_" in name]
    assert len(counts) == TOP + 1 and sum(counts) == 1000 and found["staleness/max"] == 1000


def test_buffer_and_window():
    assert buffer_metrics(3, [9.0, 6.0, 2.0]) == {
        "buffer/groups": 3,
        "buffer/age_seconds_p50": 6.0,
        "buffer/age_seconds_max": 9.0,
    }
    assert buffer_metrics(2, []) == {"buffer/groups": 2}
    assert window_metrics(12, 8, 2)["window/used"] == 0.5
    assert "window/used" not in window_metrics(12, 8, None)


def test_counts_are_named_by_what_they_count():
    found = counted_metrics(Repacked(moves=3, freed_replicas=1), Faults(restarts=2, tokens_lost=40))
    assert found["repack/moves"] == 3 and found["fault/tokens_lost"] == 40
    assert found["fault/duplicates"] == 0 and len(found) == 10


def test_what_nobody_measured_is_left_out():
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
