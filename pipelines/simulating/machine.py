"""One split of a cluster, in the seconds that the schedules need to know, and trajectories made from lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.simulating.replica import Replica, ReplicaSizes, Trajectory


class GroupLengths(Protocol):
    """Tokens of the responses of each group, by its place in the order of issue."""

    def __getitem__(self, group: int) -> Sequence[int]: ...


@dataclass(frozen=True)
class Machine:
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

    def tokens(self, trajectories: Iterable[Trajectory]) -> int:
        """Prompts and responses."""
        return sum(self.sizes.prompt_tokens + one.length for one in trajectories)

    def new_replicas(self) -> list[Replica]:
        """Empty, at time 0."""
        return [Replica(name, self.sizes) for name in range(self.replicas)]

    def group(self, number: int, lengths: GroupLengths) -> list[Trajectory]:
        """The trajectories of a group that has not begun."""
        size = self.group_size
        return [
            Trajectory(number * size + place, number, length) for place, length in enumerate(lengths[number])
        ]
