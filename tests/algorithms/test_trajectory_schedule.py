"""Repacking: worked by hand, against a slow version written from the paper's words, and what must hold of any plan."""

import random

import pytest

from stages.algorithms.rollout_schedule import Replica, repack


def draining(name, kv_used, trajectories, version=0):
    return Replica(name, version, kv_used, kv_used + 1, trajectories)


def test_a_plan_worked_by_hand():
    # Capacity 100, batch bound 8. From the smallest: a (10) fits b (30), c (60) and d (85): d is fullest with 95.
    # b (30) fits c (60 + 30 = 90), not d (95 + 30). c has been promised b, and stays; d stays as well.
    replicas = [draining("c", 60, 3), draining("a", 10, 2), draining("d", 85, 2), draining("b", 30, 2)]
    assert repack(replicas, kv_capacity=100, batch_bound=8) == [("a", "d"), ("b", "c")]


def test_both_bounds_may_be_met_and_not_passed():
    assert repack([draining("a", 40, 3), draining("b", 60, 5)], 100, 8) == [("a", "b")]
    assert repack([draining("a", 40, 3), draining("b", 61, 5)], 100, 8) == []
    assert repack([draining("a", 40, 4), draining("b", 60, 5)], 100, 8) == []


@pytest.mark.parametrize(
    "busy",
    [
        Replica("b", 0, 50, 50, 2),  # not draining: as full as before
        Replica("b", 0, 50, 40, 2),  # filling
        Replica("b", 0, 100, 120, 2),  # full
        Replica("b", 0, 50, 60, 8),  # at the batch bound
        Replica("b", 0, 0, 60, 0),  # without work
        Replica("b", 1, 50, 60, 2),  # other weights
    ],
)
def test_what_is_not_idle_or_has_other_weights_neither_gives_nor_takes(busy):
    assert repack([draining("a", 10, 2), busy], 100, 8) == []


def test_no_chain_of_moves():
    # a goes to b, the only one it fits (c is full up to 5). b alone would fit c's room, but keeps what it was given.
    replicas = [draining("a", 10, 1), draining("b", 12, 1), draining("c", 86, 1)]
    assert repack(replicas, kv_capacity=95, batch_bound=8) == [("a", "b")]


def test_versions_are_planned_apart():
    replicas = [draining("a", 10, 1, 3), draining("b", 20, 1, 4), draining("c", 30, 1, 3), draining("d", 40, 1, 4)]
    assert repack(replicas, 100, 8) == [("a", "c"), ("b", "d")]


def test_ids_are_unique():
    with pytest.raises(ValueError, match="one id"):
        repack([draining("a", 10, 1), draining("a", 20, 1)], 100, 8)
    assert repack([], 100, 8) == []


def slow_repack(replicas, kv_capacity, batch_bound):
    """Plans one move at a time on a table of who holds whose trajectories, loads summed anew each time."""
    idle = [
        replica
        for replica in replicas
        if replica.trajectories > 0
        and replica.trajectories < batch_bound
        and replica.kv_used < kv_capacity
        and replica.kv_used < replica.previous_kv_used
    ]
    holds = {replica.replica_id: [replica] for replica in idle}
    for source in sorted(idle, key=lambda replica: replica.kv_used):
        if len(holds[source.replica_id]) != 1:
            continue
        best, best_load = None, -1
        for other in idle:
            held = holds[other.replica_id]
            if other is source or not held or other.policy_version != source.policy_version:
                continue
            load = sum(replica.kv_used for replica in [*held, source])
            count = sum(replica.trajectories for replica in [*held, source])
            if load <= kv_capacity and count <= batch_bound and load > best_load:
                best, best_load = other, load
        if best is not None:
            holds[best.replica_id].append(source)
            holds[source.replica_id] = []
    return {(held.replica_id, name) for name, all_held in holds.items() for held in all_held if held.replica_id != name}


@pytest.mark.parametrize("seed", range(200))
def test_any_plan_is_the_slow_one_and_keeps_the_bounds(seed):
    rng = random.Random(seed)
    replicas = []
    for name in range(rng.randint(0, 12)):
        used = rng.randint(0, 100)
        replicas.append(Replica(name, rng.randint(0, 1), used, used + rng.randint(-3, 9), rng.randint(0, 9)))
    moves = repack(replicas, kv_capacity=100, batch_bound=8)
    assert set(moves) == slow_repack(replicas, 100, 8)
    by_id = {replica.replica_id: replica for replica in replicas}
    sources = [source for source, _ in moves]
    destinations = {destination for _, destination in moves}
    assert len(set(sources)) == len(sources) and not destinations & set(sources)
    for destination in destinations:
        held = [by_id[destination], *(by_id[source] for source, to in moves if to == destination)]
        assert len({replica.policy_version for replica in held}) == 1
        assert sum(replica.kv_used for replica in held) <= 100
        assert sum(replica.trajectories for replica in held) <= 8
