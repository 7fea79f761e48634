"""The window of staleness and the choice of trajectories: by hand and against slow versions.

asynchronous/test_coordinator.py plays whole schedules.
"""

import random
from itertools import count

import pytest

from stages.algorithms.rollout_schedule import ExperienceWindow, Replica, repack


def begun(window, names, version):
    for name in names:
        window.begin(name, version)


def test_a_younger_group_overtakes_until_the_deadline():
    # Window 1, one place a step. Version 0 may draw for steps 0 and 1: two groups. b overtakes a in step 0. Then a has
    # to be trained on in step 1, and c, which is ready, waits for it.
    window = ExperienceWindow(groups_per_step=1, window=1, steps=9)
    assert window.may_begin(0) == 2
    begun(window, "ab", 0)
    window.mark_ready("b")
    assert window.next_batch() == ["b"]
    window.take(["b"])
    assert window.may_begin(0) == 0 and window.may_begin(1) == 1
    begun(window, "c", 1)
    window.mark_ready("c")
    assert window.ready_groups() == ["c"] and window.next_batch() is None
    window.mark_ready("a")
    assert window.next_batch() == ["a"]


def test_what_is_left_out_makes_room_and_the_round_ends_even():
    window = ExperienceWindow(groups_per_step=2, window=4, steps=2)
    assert window.may_begin(0) == 4  # two steps of two, though the window would let ten begin
    begun(window, "abcd", 0)
    window.mark_ready("c")
    window.mark_ready("c")
    assert window.ready == 1
    window.leave_out("c")
    assert window.ready == 0 and window.may_begin(0) == 1
    with pytest.raises(ValueError, match="outstanding already"):
        window.begin("a", 0)
    with pytest.raises(KeyError):
        window.mark_ready("c")


class SlowWindow:
    """The same rules by handing out places: each step takes the earliest deadlines, and none may come too late."""

    def __init__(self, groups_per_step, window, steps):
        self.size, self.window, self.steps, self.done, self.all = groups_per_step, window, steps, 0, []

    def deadline(self, version):
        last = self.steps - 1
        return last if self.window is None else min(version + self.window, last)

    def fits(self, deadlines, done):
        return all(done + place // self.size <= one for place, one in enumerate(sorted(deadlines)))

    def may_begin(self, version):
        own, most = [deadline for _, deadline, _ in self.all], 0
        while self.done < self.steps and self.fits([*own, *[self.deadline(version)] * (most + 1)], self.done):
            most += 1
        return most

    def next_batch(self):
        ready = [one for one in self.all if one[2]]
        for batch in (ready[: self.size], sorted(ready, key=lambda one: one[1])[: self.size]):
            left = [one[1] for one in self.all if one not in batch]
            if len(batch) == self.size and self.fits(left, self.done + 1):
                return [one[0] for one in self.all if one in batch]
        return None


@pytest.mark.parametrize("seed", range(60))
def test_any_history_is_that_of_the_slow_window(seed):
    rng = random.Random(seed)
    size, bound, steps = rng.randint(1, 3), rng.choice([None, 0, 1, 2, 3]), rng.randint(2, 8)
    fast, slow, names = ExperienceWindow(size, bound, steps), SlowWindow(size, bound, steps), count()
    for _ in range(200):
        version = max(0, fast.steps_done - rng.choice([0, 0, 0, 1, 2]))
        room = fast.may_begin(version)
        assert room == slow.may_begin(version)
        if room and rng.random() < 0.6:
            name = next(names)
            fast.begin(name, version)
            slow.all.append((name, slow.deadline(version), False))
        if slow.all and rng.random() < 0.6:
            place = rng.randrange(len(slow.all))
            name, deadline, _ = slow.all[place]
            if rng.random() < 0.15:
                fast.leave_out(name)
                del slow.all[place]
            else:
                fast.mark_ready(name)
                slow.all[place] = (name, deadline, True)
        assert fast.ready_groups() == [name for name, _, is_ready in slow.all if is_ready]
        batch = fast.next_batch()
        assert batch == slow.next_batch()
        if batch is not None and rng.random() < 0.7:
            fast.take(batch)
            slow.all = [one for one in slow.all if one[0] not in batch]
            slow.done += 1


def draining(name, kv_used, trajectories, version=0):
    return Replica(name, version, kv_used, kv_used + 1, trajectories)


def test_a_plan_worked_by_hand():
    # Capacity 100, batch bound 8. From the smallest: a (10) fits b (30), c (60) and d (85): d is fullest with 95. b
    # (30) fits c (60 + 30 = 90), not d (95 + 30). c will receive b, and stays; d stays as well.
    replicas = [draining("c", 60, 3), draining("a", 10, 2), draining("d", 85, 2), draining("b", 30, 2)]
    assert repack(replicas, kv_capacity=100, batch_bound=8) == [("a", "d"), ("b", "c")]


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
