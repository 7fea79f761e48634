"""The closed form against one token after the other, and what a replica does with its room."""

import random

import pytest

from pipelines.simulating.replica import DecodeStep, ReplicaSizes, SimulatedReplica, SimulatedTrajectory

STEP = DecodeStep(fixed=1e-3, read=5e-3, read_token=3e-8, multiply=6e-5)


def sizes(kv=1e9, most=64, prefill=1e-5, admitted=0.95):
    return ReplicaSizes(STEP, prefill, 10, 2.5, kv, admitted * kv, most)


def trajectories(lengths):
    return [SimulatedTrajectory(number, number, length) for number, length in enumerate(lengths)]


@pytest.mark.parametrize("seed", range(30))
def test_any_number_of_steps_takes_what_its_steps_take(seed):
    rng = random.Random(seed)
    sequences, kv, steps = rng.randint(1, 300), rng.randint(0, 400_000), rng.randint(0, 4000)
    slow = 0.0
    for step in range(steps):
        read = STEP.read + STEP.read_token * (kv + step * sequences)
        slow += STEP.fixed + max(read, STEP.multiply * sequences)
    assert STEP.seconds(sequences, kv, steps) == pytest.approx(slow, rel=1e-9)
    within = STEP.steps_within(sequences, kv, slow / 3, steps)
    assert STEP.seconds(sequences, kv, within) <= slow / 3
    assert within == steps or STEP.seconds(sequences, kv, within + 1) > slow / 3


class SlowReplica:
    """The same replica with a loop over tokens."""

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
@pytest.mark.parametrize("seed", range(5))
def test_a_replica_ends_its_work_when_the_slow_one_does(kv, most, seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 300) for _ in range(40)]
    own = sizes(kv, most)
    replica = SimulatedReplica(0, own)
    replica.submit(trajectories(lengths))
    # Looked at every now and then: a cut between two tokens must change nothing.
    fast = [one for look in range(1, 4000) for one in replica.run_until(0.05 * look)]
    slow = SlowReplica(own).run(lengths)
    assert replica.trajectories == 0 and len(fast) == len(lengths)
    for time, trajectory in fast:
        assert time == pytest.approx(slow[trajectory.number], rel=1e-6)
    assert replica.kv == 0 and 0 < replica.kv_seconds <= replica.time


def test_the_cache_never_holds_more_than_it_can():
    replica = SimulatedReplica(0, sizes(kv=2000))
    replica.submit(trajectories([400] * 30))
    for look in range(1, 2000):
        replica.run_until(0.02 * look)
        assert replica.kv <= 2000
    assert replica.trajectories == 0


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
    # Nothing is drawn twice: the tokens of both are those of the responses.
    assert len(gone) == 2 and one.tokens == made and one.tokens + other.tokens == 250
    assert {trajectory.version for trajectory in gone} == {3}
