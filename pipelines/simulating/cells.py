"""Cells of a table: a policy in a setting at its best split, for one or more seeds, on some processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial as bound
from typing import Any

from pipelines.simulating.lengths import DrawnLengths
from pipelines.simulating.outcome import Outcome
from pipelines.simulating.policies import Steps, best_split, simulate_split
from pipelines.simulating.setting import Setting
from stages.observe.progress import progress

SEARCH = Steps(warm_up=5, measured=8, batches=3)
"""Steps for which a split is tried."""


@dataclass(frozen=True)
class Cell:
    """A policy in a setting; an outcome for each seed, all at the split that is best for the first."""

    setting: Setting
    policy: str
    outcomes: tuple[Outcome, ...]

    @property
    def seconds_per_step(self) -> float:
        return self._mean("seconds_per_step")

    def _mean(self, figure: str) -> float:
        return sum(getattr(outcome, figure) for outcome in self.outcomes) / len(self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """The line of `--json`: means over the seeds, and the largest staleness of any."""
        first = self.outcomes[0]
        return {
            "model": self.setting.model.name,
            "gpus": self.setting.gpus,
            "policy": self.policy,
            "seconds_per_step": self.seconds_per_step,
            "rollout_gpus": first.rollout_gpus,
            "staleness_mean": self._mean("staleness_mean"),
            "staleness_max": max(outcome.staleness_max for outcome in self.outcomes),
            "kv_used": self._mean("kv_used"),
            "consumed_staleness_mean": self._mean("consumed_mean"),
            "consumed_staleness_max": max(outcome.consumed_max for outcome in self.outcomes),
            "tokens_per_second": self._mean("tokens_per_second"),
            "generating_share": first.generating_share,
        }


def simulate_cells(
    settings: Iterable[Setting],
    policies: Sequence[str],
    seeds: Sequence[int],
    steps: Steps,
    jobs: int = 1,
    label: str = "simulating",
) -> list[Cell]:
    """All policies in all settings, in this order whatever `jobs` is. UserError as the policies say."""
    todo = [(setting, policy) for setting in settings for policy in policies]
    work = bound(_simulate, seeds=tuple(seeds), steps=steps)
    if jobs == 1 or len(todo) == 1:
        return list(progress(map(work, todo), len(todo), label, "cells"))
    with ProcessPoolExecutor(min(jobs, len(todo))) as pool:
        return list(progress(pool.map(work, todo), len(todo), label, "cells"))


def _simulate(what: tuple[Setting, str], seeds: tuple[int, ...], steps: Steps) -> Cell:
    setting, policy = what
    work, outcomes, replicas = setting.work, [], 0
    for place, seed in enumerate(seeds):
        lengths = DrawnLengths(work.lengths, work.group_size, seed)
        if place == 0:
            replicas = best_split(policy, setting, lengths, SEARCH)
        outcomes.append(simulate_split(policy, setting, lengths, replicas, steps))
    return Cell(setting, policy, tuple(outcomes))
