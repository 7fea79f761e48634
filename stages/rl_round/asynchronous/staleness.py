"""The numbers of one step of the asynchronous loop, from plain data: how old, how full, what was moved, what was lost.

Names are those of docs/asynchronous.md. A function leaves out what it cannot say (a mean of nothing), so that no curve
shows a zero that nobody measured; counts of things that did not happen are 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

TOP = 8
"""Responses this stale and staler ones share the last bar of the histogram."""


def staleness_metrics(version: int, versions: Iterable[int]) -> dict[str, float]:
    """Of the rollouts that a step trains on: `version` is what it starts from, `versions` what drew each.

    Mean, largest, 99th percentile, and how many there are of each staleness (`staleness/count_0`, ...).
    """
    ages = sorted(version - own for own in versions)
    if not ages:
        return {}
    counts = Counter(min(max(age, 0), TOP) for age in ages)
    return {
        "staleness/mean": sum(ages) / len(ages),
        "staleness/max": ages[-1],
        "staleness/p99": ages[math.ceil(0.99 * len(ages)) - 1],
        **{f"staleness/count_{age}": counts[age] for age in range(max(counts) + 1)},
    }


def buffer_metrics(now: float, ready_since: Sequence[float]) -> dict[str, float]:
    """Groups that wait for a step, and for how long: `ready_since` by the same clock as `now`."""
    ages = sorted(max(0.0, now - since) for since in ready_since)
    if not ages:
        return {"buffer/groups": 0}
    return {
        "buffer/groups": len(ages),
        "buffer/age_seconds_p50": ages[(len(ages) - 1) // 2],
        "buffer/age_seconds_max": ages[-1],
    }


def window_metrics(outstanding: int, groups_per_step: int, window: int | None) -> dict[str, float]:
    """`window/used`: groups begun and not trained on, over the most that the window allows; none without a window."""
    if window is None:
        return {"window/outstanding": outstanding}
    return {"window/outstanding": outstanding, "window/used": outstanding / ((window + 1) * groups_per_step)}


@dataclass(slots=True)
class Repacked:
    """Since the last step."""

    moves: int = 0
    """Trajectories that went on at another replica."""
    tokens_recomputed: int = 0
    """Prompt and response tokens that were read again there."""
    freed_replicas: int = 0
    seconds: float = 0.0
    """From withdrawing to going on, added up."""


@dataclass(slots=True)
class Faults:
    """Since the last step."""

    restarts: int = 0
    """Processes that died or hung and were started again."""
    stalled: int = 0
    """Those of them that had to be killed because they reported nothing."""
    redirected: int = 0
    """Trajectories that went on at another replica of their version."""
    restarted_from_prompt: int = 0
    """Trajectories whose version was gone."""
    tokens_lost: int = 0
    duplicates: int = 0
    """Results that came a second time, or from a process that had been replaced."""


def counted_metrics(repacked: Repacked, faults: Faults) -> dict[str, float]:
    """`repack/...` and `fault/...`."""
    named = {"repack": asdict(repacked), "fault": asdict(faults)}
    return {f"{kind}/{name}": value for kind, values in named.items() for name, value in values.items()}


def replica_metrics(version: int, versions: Sequence[int], kv_used: Sequence[float]) -> dict[str, float]:
    """Of the replicas at work: how full their key-value caches are (fractions), how far behind `version` they are."""
    metrics = {}
    if kv_used:
        metrics["kv/used_fraction"] = sum(kv_used) / len(kv_used)
    if versions:
        metrics["relay/lag_versions"] = version - sum(versions) / len(versions)
    return metrics


def relay_metrics(publish_seconds: Sequence[float], broadcast_seconds: Sequence[float]) -> dict[str, float]:
    """Means since the last step: what a publication costs the trainer, and until the last node has it."""
    seconds = {"publish": publish_seconds, "broadcast": broadcast_seconds}
    return {f"relay/{name}_seconds": sum(own) / len(own) for name, own in seconds.items() if own}


def length_metrics(issued: tuple[int, int], trained: tuple[int, int]) -> dict[str, float]:
    """Mean response tokens of all that has ended so far and of all that was trained on: short ones must not be ahead.

    Each is (tokens, responses), over the round and not the step: what is issued in a step and what it trains on are
    different trajectories.
    """
    lengths = {"issued": issued, "trained": trained}
    return {f"length/{name}_mean": tokens / count for name, (tokens, count) in lengths.items() if count}


def round_totals(curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What the round's metrics say of these: totals of what is counted, the mean and the largest staleness."""
    totals: Counter[str] = Counter()
    for row in curve:
        for name, value in row.items():
            if name.startswith(("repack/", "fault/", "staleness/count_")):
                totals[name] += value
    metrics = {name: totals[name] for name in sorted(totals)}
    counts = {int(name.rpartition("_")[2]): value for name, value in totals.items() if "/count_" in name}
    if counts:
        weighed = sum(row["staleness/mean"] * _trained(row) for row in curve if "staleness/mean" in row)
        metrics["staleness/mean"] = weighed / sum(counts.values())
        metrics["staleness/max"] = max(row["staleness/max"] for row in curve if "staleness/max" in row)
    return metrics


def _trained(row: Mapping[str, float]) -> float:
    return sum(value for name, value in row.items() if name.startswith("staleness/count_"))
