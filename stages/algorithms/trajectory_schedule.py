"""Which rollout replica hands its last trajectories to which, so that whole replicas come free for newer weights.

Source: Laminar (arXiv 2510.12633), dynamic repack; no code of the authors is public.
Deviations:
1. A replica that already is a destination is never emptied in the same plan. Moved on, the trajectories it was promised
   would have to move twice, and the load planned for them would be counted where they no longer are.
2. A replica without trajectories is no destination: a move there empties one replica and fills another.
3. Equal footprints and equal loads are taken in the order in which the replicas are given, so that a plan is one of its
   inputs only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Replica:
    """What the manager knows of a rollout replica; KV cache in tokens, or in any unit that the capacity shares."""

    replica_id: Hashable
    policy_version: int
    kv_used: float
    previous_kv_used: float
    """At the check before this one."""
    trajectories: int
    """Still in flight."""


class Move(NamedTuple):
    """All trajectories of `source` go on at `destination`."""

    source: Hashable
    destination: Hashable


def repack(replicas: Sequence[Replica], kv_capacity: float, batch_bound: int) -> list[Move]:
    """Best-fit plan that empties idle replicas into others of the same policy version, in the order to carry it out.

    Idle is a replica with trajectories, fewer than `batch_bound` (where generation stops being bound by memory
    bandwidth), whose KV cache is neither full nor as full as at the last check. Idle replicas are taken from the
    smallest footprint up; each goes to the idle replica that is fullest afterwards, within `kv_capacity` and
    `batch_bound` with all that was planned for it before. No replica is both a source and a destination, and none is a
    source twice. An empty list where nothing fits. ValueError for two replicas of one id.
    """
    if len({replica.replica_id for replica in replicas}) < len(replicas):
        raise ValueError(f"two replicas have one id: {[replica.replica_id for replica in replicas]}")
    moves = []
    for version in sorted({replica.policy_version for replica in replicas}):
        idle = [
            replica
            for replica in replicas
            if replica.policy_version == version and _is_idle(replica, kv_capacity, batch_bound)
        ]
        moves += _best_fit(idle, kv_capacity, batch_bound)
    return moves


def _is_idle(replica: Replica, kv_capacity: float, batch_bound: int) -> bool:
    is_draining = replica.kv_used < min(kv_capacity, replica.previous_kv_used)
    return is_draining and 0 < replica.trajectories < batch_bound


def _best_fit(idle: Sequence[Replica], kv_capacity: float, batch_bound: int) -> list[Move]:
    kv_used = {replica.replica_id: replica.kv_used for replica in idle}
    trajectories = {replica.replica_id: replica.trajectories for replica in idle}
    emptied, filled, moves = set(), set(), []
    for source in sorted(idle, key=lambda replica: replica.kv_used):
        if source.replica_id in filled:
            continue
        fitting = [
            name
            for name in kv_used
            if name != source.replica_id
            and name not in emptied
            and kv_used[name] + source.kv_used <= kv_capacity
            and trajectories[name] + source.trajectories <= batch_bound
        ]
        if fitting:
            destination = max(fitting, key=kv_used.__getitem__)
            kv_used[destination] += source.kv_used
            trajectories[destination] += source.trajectories
            emptied.add(source.replica_id)
            filled.add(destination)
            moves.append(Move(source.replica_id, destination))
    return moves
