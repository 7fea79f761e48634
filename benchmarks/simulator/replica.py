"""A rollout replica: continuous batching with one event per finished trajectory, in closed form between two events.

All sequences of a replica grow by one token in each decode step. So between two ends the number of sequences is fixed
and the KV cache grows evenly: the seconds of any number of steps have a closed form. When the cache is full, a sequence
that does not fit is put back, the youngest first, and read again later, as in vLLM.

`ClusterSplit` is one split of a cluster: replicas, and the seconds that the schedules need. `Tally` counts during
the run, and `SimulationResult` is the result of a simulated run.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Seconds of a decode step of n sequences over `kv` tokens.

    fixed + max(read + read_token kv, multiply n)
    """

    fixed: float
    read: float
    read_token: float
    multiply: float

    def seconds(self, sequences: int, kv: float, steps: int) -> float:
        """Seconds of `steps` steps; the cache holds `kv` tokens before the first and grows by `sequences` in each."""
        multiplied = self.multiply * sequences
        total = steps * self.fixed
        first = self.read + self.read_token * kv
        growth = self.read_token * sequences
        if first < multiplied:
            # Limited by products until the cache has grown.
            product_bound = steps if growth <= 0 else min(steps, math.ceil((multiplied - first) / growth))
            total += product_bound * multiplied
            steps -= product_bound
            first += product_bound * growth
        return total + steps * first + growth * (steps * (steps - 1) / 2)

    def steps_within(self, sequences: int, kv: float, seconds: float, most: int) -> int:
        """Whole steps that end within `seconds`, at most `most`."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.seconds(sequences, kv, middle) <= seconds else (low, middle - 1)
        return low


@dataclass(frozen=True, slots=True)
class ReplicaSizes:
    """Capacity and speed of a replica."""

    step: DecodeStep
    prefill_token: float
    """Seconds per token that is read, not generated."""
    prompt_tokens: int
    prefilled_prompt: float
    """Prompt tokens that each member of a group reads: the group shares one prompt."""
    kv_tokens: float
    """Capacity of the KV cache."""
    admitted_tokens: float
    """Tokens in the cache up to which sequences are admitted."""
    most_sequences: int


@dataclass(slots=True, eq=False)
class SimulatedTrajectory:
    """A response in progress."""

    number: int
    """Order of issue; no two trajectories have the same."""
    group: int
    length: int
    """Number of tokens at its end."""
    version: int = 0
    """Steps trained by the weights that generated its first token."""
    made: int = 0
    """Tokens generated before it was last admitted."""
    end_step: int = -1
    """Its end in its replica's count of steps; negative while it is not decoded."""


class SimulatedReplica:
    """One replica's clock, batch and queue."""

    def __init__(self, name: int, sizes: ReplicaSizes) -> None:
        self.name, self.sizes = name, sizes
        self.version = 0
        """Steps trained by its weights."""
        self.time = 0.0
        self.previous_kv = 0.0
        """Tokens in the cache at the last check for idle replicas."""
        self.kv = 0.0
        self.kv_seconds = 0.0
        """Integral over time of the used share of the cache."""
        self.busy_seconds = 0.0
        """Seconds with a sequence in decoding."""
        self.tokens = 0
        """Number of generated tokens."""
        self._steps = 0
        self._running: list[tuple[int, int, SimulatedTrajectory]] = []
        self._sequences = 0
        self._admitted: list[SimulatedTrajectory] = []
        """In the order of admission, including some that have ended since."""
        self._waiting: deque[SimulatedTrajectory] = deque()

    @property
    def trajectories(self) -> int:
        """In flight here, including those that wait for room."""
        return self._sequences + len(self._waiting)

    def wait_until(self, time: float) -> None:
        """Decodes nothing before `time`."""
        self.time = max(self.time, time)

    def submit(self, trajectories: Iterable[SimulatedTrajectory]) -> None:
        """Adds trajectories, which are decoded as soon as there is room, in this order."""
        self._waiting.extend(trajectories)

    def withdraw(self) -> list[SimulatedTrajectory]:
        """Removes and returns all trajectories, with their tokens so far; the replica is empty then."""
        in_order = sorted(self._running, key=lambda entry: entry[1])
        # A trajectory that was put back and admitted again with the same last step is in the heap twice.
        gone = list(dict.fromkeys(entry[2] for entry in in_order if self._is_live(entry)))
        for trajectory in gone:
            trajectory.made = trajectory.length - (trajectory.end_step - self._steps)
            trajectory.end_step = -1
        gone += self._waiting
        self._running, self._admitted, self._sequences, self.kv = [], [], 0, 0.0
        self._waiting.clear()
        return gone

    def read_again(self) -> None:
        """Computes the prefix of every sequence again: new weights have arrived while it was in flight."""
        sizes = self.sizes
        # A group reads its prompt once, so its copies in the cache are subtracted.
        own = self.kv - self._sequences * (sizes.prompt_tokens - sizes.prefilled_prompt)
        self.time += sizes.prefill_token * own

    def run_until(self, limit: float) -> list[tuple[float, SimulatedTrajectory]]:
        """Decodes until `limit` or until nothing is left; returns the ended trajectories with their times, in order."""
        ended: list[tuple[float, SimulatedTrajectory]] = []
        sizes, running = self.sizes, self._running
        step, capacity = sizes.step, sizes.kv_tokens
        while self.time < limit:
            if self._waiting:
                self._admit()
            while running and running[0][2].end_step != running[0][0]:
                heappop(running)  # put back since
            if not running:
                break
            sequences, kv = self._sequences, self.kv
            steps = running[0][0] - self._steps
            # A single sequence always fits: `Setting` rejects a cache that is smaller than the longest one.
            is_full = kv + steps * sequences > capacity and sequences > 1
            if is_full:
                steps = max(0, int((capacity - kv) // sequences))
            seconds = step.seconds(sequences, kv, steps)
            is_cut = self.time + seconds > limit
            if is_cut:
                steps = step.steps_within(sequences, kv, limit - self.time, steps)
                seconds = step.seconds(sequences, kv, steps)
            self.time += seconds
            self.busy_seconds += seconds
            self._steps += steps
            self.tokens += steps * sequences
            self.kv = kv + steps * sequences
            # The cache grows evenly between two events, so the mean of both ends is exact.
            self.kv_seconds += seconds * (kv + self.kv) / 2 / capacity
            if is_cut:
                break
            if is_full:
                self._put_back_youngest()
                continue
            while running and running[0][0] == self._steps:
                trajectory = heappop(running)[2]
                if trajectory.end_step != self._steps:
                    continue
                trajectory.end_step = -1
                self._sequences -= 1
                self.kv -= sizes.prompt_tokens + trajectory.length
                ended.append((self.time, trajectory))
        return ended

    def _admit(self) -> None:
        sizes, waiting = self.sizes, self._waiting
        read = 0.0
        while waiting and self._sequences < sizes.most_sequences:
            trajectory = waiting[0]
            need = sizes.prompt_tokens + trajectory.made
            # An empty replica always admits the first sequence, or it would wait for ever.
            if self._sequences and self.kv + need > sizes.admitted_tokens:
                break
            waiting.popleft()
            # A trajectory that was put back or moved keeps the version of its first token: staleness counts from there.
            if not trajectory.made:
                trajectory.version = self.version
            trajectory.end_step = self._steps + trajectory.length - trajectory.made
            # The number breaks ties: the order is then reproducible, and trajectories need no comparison.
            heappush(self._running, (trajectory.end_step, trajectory.number, trajectory))
            self._admitted.append(trajectory)
            self._sequences += 1
            self.kv += need
            # Tokens that were generated before the trajectory was put back have to be read again.
            read += sizes.prefilled_prompt + trajectory.made
        # No decoding while prompts are read.
        self.time += read * sizes.prefill_token
        # Ended ones stay in the list until then: removing each at its end would cost a pass over the list.
        if len(self._admitted) > 4 * sizes.most_sequences:
            self._admitted = [one for one in self._admitted if one.end_step >= 0]

    def _put_back_youngest(self) -> None:
        while self._admitted[-1].end_step < 0:
            self._admitted.pop()
        youngest = self._admitted.pop()
        youngest.made = youngest.length - (youngest.end_step - self._steps)
        youngest.end_step = -1
        self._sequences -= 1
        self.kv -= self.sizes.prompt_tokens + youngest.made
        # At the front, because it was admitted before all that wait.
        self._waiting.appendleft(youngest)
        # The heap keeps the old entry of a trajectory that was put back, until there are too many.
        if len(self._running) > 4 * self.sizes.most_sequences:
            self._running[:] = [entry for entry in self._running if self._is_live(entry)]
            heapify(self._running)

    @staticmethod
    def _is_live(entry: tuple[int, int, SimulatedTrajectory]) -> bool:
        return entry[0] == entry[2].end_step


@dataclass(frozen=True)
class ClusterSplit:
    """Replicas beside a trainer, or both alternating on the same GPUs."""

    sizes: ReplicaSizes
    replicas: int
    rollout_gpus: int
    groups: int
    """Groups that a step trains on."""
    group_size: int
    update_seconds: Callable[[float], float]
    """Seconds of a mini-batch of so many prompt and response tokens."""
    minibatches: int
    switch_seconds: float
    """Seconds between alternating generation and training, there and back."""
    collective_seconds: float
    """Seconds in which all replicas wait for new weights."""
    push_seconds: float
    """Seconds that the trainer waits for its relay."""
    broadcast_seconds: float
    """Seconds until all relays have the weights."""
    pull_seconds: float
    """Seconds that a replica waits for its relay."""
    batch_bound: int
    """Batch bound of `repack`."""
    repack_seconds: float

    def training_seconds(self, tokens: float) -> float:
        """Seconds of all updates of a step."""
        return self.minibatches * self.update_seconds(tokens / self.minibatches)

    def tokens(self, trajectories: Iterable[SimulatedTrajectory]) -> int:
        """Prompt and response tokens."""
        return sum(self.sizes.prompt_tokens + one.length for one in trajectories)

    def new_replicas(self) -> list[SimulatedReplica]:
        """Empty, at time 0."""
        return [SimulatedReplica(name, self.sizes) for name in range(self.replicas)]

    def group(self, number: int, lengths: Any) -> list[SimulatedTrajectory]:
        """Returns the trajectories of a group that has not started; `lengths[number]` are its tokens."""
        first = number * self.group_size
        return [SimulatedTrajectory(first + place, number, length) for place, length in enumerate(lengths[number])]


@dataclass(frozen=True)
class SimulationResult:
    """One policy at one split of the GPUs."""

    seconds_per_step: float
    rollout_gpus: int
    staleness: dict[int, int]
    """Staleness of a trajectory when it ends, in steps trained since its first weights -> number of trajectories."""
    consumed: dict[int, int]
    """The same when it is trained on."""
    kv_used: float
    """Mean share of the KV cache in use, over replicas and time."""
    idle_share: float
    """Share of the replicas' time without a sequence: empty, or waiting for weights or other replicas."""
    tokens_per_second: float
    """Tokens generated."""
    generating_share: float | None
    """Part of a step, where generation and training alternate."""
    issued: int
    finished: int
    in_flight: int
    """Trajectories from the start of the run to its end: issued = finished + in flight."""

    @property
    def staleness_mean(self) -> float:
        return mean(self.staleness)

    @property
    def staleness_max(self) -> int:
        return max(self.staleness, default=0)

    @property
    def consumed_mean(self) -> float:
        return mean(self.consumed)

    @property
    def consumed_max(self) -> int:
        return max(self.consumed, default=0)


def mean(counted: dict[int, int]) -> float:
    """Returns the mean of values by their counts; 0 for none."""
    total = sum(counted.values())
    return sum(value * count for value, count in counted.items()) / total if total else 0.0


class Tally:
    """Counts of a run; all but those of conservation start at `begin`."""

    def __init__(self, replicas: Sequence[SimulatedReplica]) -> None:
        self.replicas = replicas
        self.staleness: Counter[int] = Counter()
        self.consumed: Counter[int] = Counter()
        self.issued = self.finished = 0
        self._is_measuring = False
        self._began = self._kv_seconds = self._busy = 0.0
        self._tokens = 0

    def begin(self, time: float) -> None:
        """Starts measuring at `time`."""
        self._is_measuring, self._began = True, time
        # Sums of the warm-up are subtracted later, so that replicas need no second set of counters.
        self._kv_seconds = sum(replica.kv_seconds for replica in self.replicas)
        self._busy = sum(replica.busy_seconds for replica in self.replicas)
        self._tokens = sum(replica.tokens for replica in self.replicas)

    def end(self, staleness: int) -> None:
        """Records an ended trajectory, `staleness` steps trained after its weights."""
        self.finished += 1
        if self._is_measuring:
            self.staleness[staleness] += 1

    def train(self, step: int, trajectories: Iterable[SimulatedTrajectory]) -> None:
        """Records that the step `step` (from 0) trains on them."""
        if self._is_measuring:
            for trajectory in trajectories:
                self.consumed[step - trajectory.version] += 1

    def outcome(
        self, time: float, steps: int, rollout_gpus: int, generating: float | None = None, there_seconds: float = 0.0
    ) -> SimulationResult:
        """Returns the result at `time`, `steps` steps after `begin`. Replicas exist for `there_seconds` (0: always)."""
        seconds = time - self._began
        kv_seconds = sum(replica.kv_seconds for replica in self.replicas) - self._kv_seconds
        busy = sum(replica.busy_seconds for replica in self.replicas) - self._busy
        # Replicas that share GPUs with the trainer exist only while they generate.
        there = (there_seconds or seconds) * len(self.replicas)
        tokens = sum(replica.tokens for replica in self.replicas) - self._tokens
        return SimulationResult(
            seconds_per_step=seconds / steps,
            rollout_gpus=rollout_gpus,
            staleness=dict(sorted(self.staleness.items())),
            consumed=dict(sorted(self.consumed.items())),
            kv_used=kv_seconds / there,
            idle_share=max(0.0, 1 - busy / there),
            tokens_per_second=tokens / seconds,
            generating_share=None if generating is None else generating / seconds,
            issued=self.issued,
            finished=self.finished,
            in_flight=sum(replica.trajectories for replica in self.replicas),
        )
