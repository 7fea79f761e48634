"""A rollout replica: continuous batching with one look a finished trajectory, in closed form between two of them.

All sequences of a replica grow by a token in each decode step, so between two ends the number of sequences stays and
the KV cache grows evenly: the seconds of any number of steps are a sum that can be written down. A sequence that does
not fit when the cache is full is put back, the youngest first, and read again later, as vLLM does.

`ClusterSplit` is one split of a cluster: replicas, and the seconds that the schedules need. `Tally` counts while they
run, and `SimulationResult` is what a simulated run shows.
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
        """Of `steps` steps; the cache holds `kv` tokens before the first and grows by `sequences` in each."""
        multiplied = self.multiply * sequences
        total = steps * self.fixed
        first = self.read + self.read_token * kv
        growth = self.read_token * sequences
        if first < multiplied:
            # Bound by products until the cache has grown.
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
    """What a replica holds and how fast it is."""

    step: DecodeStep
    prefill_token: float
    """Seconds a token that is read and not drawn."""
    prompt_tokens: int
    prefilled_prompt: float
    """Tokens of a prompt that a member of a group reads: the group shares one."""
    kv_tokens: float
    """Capacity of the KV cache."""
    admitted_tokens: float
    """Tokens in the cache up to which sequences are admitted."""
    most_sequences: int


@dataclass(slots=True, eq=False)
class SimulatedTrajectory:
    """A response in the making."""

    number: int
    """Order of issue; no two have the same."""
    group: int
    length: int
    """Tokens when it will have ended."""
    version: int = 0
    """Steps trained by the weights that drew its first token."""
    made: int = 0
    """Tokens drawn before it was last admitted."""
    end_step: int = -1
    """Of its replica's count of steps; negative while it is not decoded."""


class SimulatedReplica:
    """One replica's clock, batch and queue."""

    def __init__(self, name: int, sizes: ReplicaSizes) -> None:
        self.name, self.sizes = name, sizes
        self.version = 0
        """Steps trained by the weights that it holds."""
        self.time = 0.0
        self.previous_kv = 0.0
        """Tokens in the cache at the last look for idle replicas."""
        self.kv = 0.0
        self.kv_seconds = 0.0
        """Integral of the share of the cache that was in use."""
        self.busy_seconds = 0.0
        """With a sequence that is decoded."""
        self.tokens = 0
        """Drawn in all."""
        self._steps = 0
        self._running: list[tuple[int, int, SimulatedTrajectory]] = []
        self._sequences = 0
        self._admitted: list[SimulatedTrajectory] = []
        """In the order of admission, with some that have ended since."""
        self._waiting: deque[SimulatedTrajectory] = deque()

    @property
    def trajectories(self) -> int:
        """In flight here, those that wait for room too."""
        return self._sequences + len(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def wait_until(self, time: float) -> None:
        """Nothing is decoded before `time`."""
        self.time = max(self.time, time)

    def submit(self, trajectories: Iterable[SimulatedTrajectory]) -> None:
        """They are decoded as soon as there is room, in this order."""
        self._waiting.extend(trajectories)

    def withdraw(self) -> list[SimulatedTrajectory]:
        """All trajectories, with the tokens that they have so far; the replica is empty then."""
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
        """The prefix of every sequence is computed again: other weights have come while it was in flight."""
        sizes = self.sizes
        # A group reads its prompt once, so that the copies of it in the cache are taken off.
        own = self.kv - self._sequences * (sizes.prompt_tokens - sizes.prefilled_prompt)
        self.time += sizes.prefill_token * own

    def run_until(self, limit: float) -> list[tuple[float, SimulatedTrajectory]]:
        """Decodes until `limit` or until nothing is left; what ended, with its time, in order."""
        ended: list[tuple[float, SimulatedTrajectory]] = []
        sizes, running = self.sizes, self._running
        step, capacity, prompt = sizes.step, sizes.kv_tokens, sizes.prompt_tokens
        while self.time < limit:
            if self._waiting:
                self._admit()
            while running and running[0][2].end_step != running[0][0]:
                heappop(running)  # put back since
            if not running:
                break
            sequences, kv = self._sequences, self.kv
            steps = running[0][0] - self._steps
            # A single sequence always fits: `Setting` refuses a cache that is smaller than the longest one.
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
            # The cache grows evenly between two events, so that the mean of both ends is exact.
            self.kv_seconds += seconds * (kv + self.kv) / 2 / capacity
            if is_cut:
                break
            if is_full:
                self._put_back_youngest()
                continue
            while running and running[0][0] == self._steps:
                trajectory = heappop(running)[2]
                if trajectory.end_step == self._steps:
                    trajectory.end_step = -1
                    self._sequences -= 1
                    self.kv -= prompt + trajectory.length
                    ended.append((self.time, trajectory))
        return ended

    def _admit(self) -> None:
        sizes, waiting = self.sizes, self._waiting
        read = 0.0
        while waiting and self._sequences < sizes.most_sequences:
            trajectory = waiting[0]
            need = sizes.prompt_tokens + trajectory.made
            # An empty replica admits the first sequence in any case, or it would wait for ever.
            if self._sequences and self.kv + need > sizes.admitted_tokens:
                break
            waiting.popleft()
            # One that was put back or moved keeps the version of its first token: staleness counts from there.
            if not trajectory.made:
                trajectory.version = self.version
            trajectory.end_step = self._steps + trajectory.length - trajectory.made
            # The number decides between equal ends: the order then repeats, and trajectories need no comparison.
            heappush(self._running, (trajectory.end_step, trajectory.number, trajectory))
            self._admitted.append(trajectory)
            self._sequences += 1
            self.kv += need
            # Tokens that were generated before the trajectory was put back have to be read again.
            read += sizes.prefilled_prompt + trajectory.made
        # While prompts are read, nothing is decoded.
        self.time += read * sizes.prefill_token
        # Ended ones stay in the list until then: taking each out at its end would cost a pass over the list.
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
    """Replicas beside a trainer, or both by turns on the same GPUs."""

    sizes: ReplicaSizes
    replicas: int
    rollout_gpus: int
    groups: int
    """That a step trains on."""
    group_size: int
    update_seconds: Callable[[float], float]
    """Of a mini-batch of so many prompt and response tokens."""
    minibatches: int
    switch_seconds: float
    """Between generation and training by turns, there and back."""
    collective_seconds: float
    """Everybody waits for new weights."""
    push_seconds: float
    """The trainer waits for its relay."""
    broadcast_seconds: float
    """Until all relays have them."""
    pull_seconds: float
    """A replica waits for its relay."""
    batch_bound: int
    """Of `repack`."""
    repack_seconds: float

    def training_seconds(self, tokens: float) -> float:
        """All updates of a step."""
        return self.minibatches * self.update_seconds(tokens / self.minibatches)

    def tokens(self, trajectories: Iterable[SimulatedTrajectory]) -> int:
        """Prompts and responses."""
        return sum(self.sizes.prompt_tokens + one.length for one in trajectories)

    def new_replicas(self) -> list[SimulatedReplica]:
        """Empty, at time 0."""
        return [SimulatedReplica(name, self.sizes) for name in range(self.replicas)]

    def group(self, number: int, lengths: Any) -> list[SimulatedTrajectory]:
        """The trajectories of a group that has not begun; `lengths[number]` are its tokens."""
        size = self.group_size
        return [
            SimulatedTrajectory(number * size + place, number, length) for place, length in enumerate(lengths[number])
        ]


@dataclass(frozen=True)
class SimulationResult:
    """One policy at one split of the GPUs."""

    seconds_per_step: float
    rollout_gpus: int
    staleness: dict[int, int]
    """Steps trained since the weights that began a trajectory, when it has ended -> trajectories."""
    consumed: dict[int, int]
    """The same when it is trained on."""
    kv_used: float
    """Mean share of the KV cache in use, over replicas and time."""
    idle_share: float
    """Of the replicas' time, without a sequence: empty, or waiting for weights or for others."""
    tokens_per_second: float
    """Drawn."""
    generating_share: float | None
    """Of a step, where generation and training take turns."""
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
    """Of values by how often they came; 0 for none."""
    total = sum(counted.values())
    return sum(value * count for value, count in counted.items()) / total if total else 0.0


class Tally:
    """Counts of a run; all but those of conservation only from `begin` on."""

    def __init__(self, replicas: Sequence[SimulatedReplica]) -> None:
        self.replicas = replicas
        self.staleness: Counter[int] = Counter()
        self.consumed: Counter[int] = Counter()
        self.issued = self.finished = 0
        self._is_measuring = False
        self._began = self._kv_seconds = self._busy = 0.0
        self._tokens = 0

    def begin(self, time: float) -> None:
        """Measuring starts at `time`."""
        self._is_measuring, self._began = True, time
        # Sums of the warm-up are subtracted later, so that replicas need no second set of counters.
        self._kv_seconds = sum(replica.kv_seconds for replica in self.replicas)
        self._busy = sum(replica.busy_seconds for replica in self.replicas)
        self._tokens = sum(replica.tokens for replica in self.replicas)

    def end(self, staleness: int) -> None:
        """A trajectory has ended, `staleness` steps trained after its weights."""
        self.finished += 1
        if self._is_measuring:
            self.staleness[staleness] += 1

    def train(self, step: int, trajectories: Iterable[SimulatedTrajectory]) -> None:
        """The step `step` (from 0) trains on them."""
        if self._is_measuring:
            for trajectory in trajectories:
                self.consumed[step - trajectory.version] += 1

    def outcome(
        self, time: float, steps: int, rollout_gpus: int, generating: float | None = None, there_seconds: float = 0.0
    ) -> SimulationResult:
        """At `time`, `steps` steps after `begin`. The replicas are there for `there_seconds`, or always if 0."""
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
