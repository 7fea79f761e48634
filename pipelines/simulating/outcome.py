"""What a simulated run shows, and the figures that are counted on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.simulating.replica import Replica, Trajectory


@dataclass(frozen=True)
class Outcome:
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
    trained_length: float
    """Mean tokens of the responses trained on."""
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

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        self.staleness: Counter[int] = Counter()
        self.consumed: Counter[int] = Counter()
        self.issued = self.finished = self.trained = self.trained_tokens = 0
        self._is_measuring = False
        self._began = self._kv_seconds = self._busy = 0.0
        self._tokens = 0

    def begin(self, time: float) -> None:
        """Measuring starts at `time`."""
        self._is_measuring, self._began = True, time
        self._kv_seconds = sum(replica.kv_seconds for replica in self.replicas)
        self._busy = sum(replica.busy_seconds for replica in self.replicas)
        self._tokens = sum(replica.tokens for replica in self.replicas)

    def end(self, staleness: int) -> None:
        """A trajectory has ended, `staleness` steps trained after its weights."""
        self.finished += 1
        if self._is_measuring:
            self.staleness[staleness] += 1

    def train(self, step: int, trajectories: Iterable[Trajectory]) -> None:
        """The step `step` (from 0) trains on them."""
        if self._is_measuring:
            for trajectory in trajectories:
                self.consumed[step - trajectory.version] += 1
                self.trained += 1
                self.trained_tokens += trajectory.length

    def outcome(
        self,
        time: float,
        steps: int,
        rollout_gpus: int,
        generating: float | None = None,
        there_seconds: float = 0.0,
    ) -> Outcome:
        """At `time`, `steps` steps after `begin`. The replicas are there for `there_seconds`, or always if 0."""
        seconds = time - self._began
        kv_seconds = sum(replica.kv_seconds for replica in self.replicas) - self._kv_seconds
        busy = sum(replica.busy_seconds for replica in self.replicas) - self._busy
        there = (there_seconds or seconds) * len(self.replicas)
        tokens = sum(replica.tokens for replica in self.replicas) - self._tokens
        return Outcome(
            seconds_per_step=seconds / steps,
            rollout_gpus=rollout_gpus,
            staleness=dict(sorted(self.staleness.items())),
            consumed=dict(sorted(self.consumed.items())),
            kv_used=kv_seconds / there,
            idle_share=max(0.0, 1 - busy / there),
            tokens_per_second=tokens / seconds,
            trained_length=self.trained_tokens / max(1, self.trained),
            generating_share=None if generating is None else generating / seconds,
            issued=self.issued,
            finished=self.finished,
            in_flight=sum(replica.trajectories for replica in self.replicas),
        )
