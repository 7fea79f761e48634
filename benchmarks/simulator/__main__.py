"""Simulates the paper's schedules on clusters that need not exist: seconds a step, each at its best split of the GPUs.

    python -m benchmarks.simulator [--paper] [--ours] [--seeds 5] [--json]

`--paper` simulates the fifteen settings of Laminar (arXiv 2510.12633), without it 7B on 64 GPUs is a quick look. No GPU
is needed. A cell is a schedule in a setting. The model and its limits: docs/evidence/simulator.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial as bound
from typing import Any

from benchmarks.simulator.paper import (
    OURS,
    PAPER_GPUS,
    POLICIES,
    DrawnLengths,
    Setting,
    Steps,
    best_split,
    paper_setting,
    simulate_split,
)
from benchmarks.simulator.replica import SimulationResult, mean
from pipelines.output import aligned
from stages.observe.progress import progress

BASELINES = ("synchronous", "one_step", "stream", "partial")
PAPER = "asynchronous_repack"
PUBLISHED = {
    "mean over synchronous": 2.56,
    "largest over synchronous": 5.48,
    "mean over one_step": 1.98,
    "mean over stream": 1.93,
    "mean over partial": 1.39,
    "largest scale, over all": 3.34,
}
"""Laminar's throughput over its baselines (abstract and section 8)."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Simulate RL schedules on a cluster that need not exist.")
    parser.add_argument(
        "--paper", action="store_true", help="all fifteen settings of the paper, not only 7B on 64 GPUs"
    )
    parser.add_argument("--ours", action="store_true", help="Retrace's schedule too")
    parser.add_argument("--seed", type=int, default=0, help="seed of the lengths; the same seed gives the same table")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from --seed on; the table shows means")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", action="store_true", help="one JSON line per cell")
    given = parser.parse_args(arguments)
    scales = PAPER_GPUS if given.paper else {"7B": (64,)}
    settings = [paper_setting(model, gpus) for model, counts in scales.items() for gpus in counts]
    policies = (*POLICIES, OURS) if given.ours else POLICIES
    cells = simulate_cells(settings, policies, range(given.seed, given.seed + given.seeds), Steps(), given.jobs)
    table = [*cell_lines(cells), "", *published_lines(cells)]
    lines = [json.dumps(cell.as_dict()) for cell in cells] if given.json else table
    print("\n".join(lines))


@dataclass(frozen=True)
class Cell:
    """A policy in a setting; an outcome for each seed, all at the best split of the first seed."""

    setting: Setting
    policy: str
    outcomes: tuple[SimulationResult, ...]

    @property
    def seconds_per_step(self) -> float:
        return self._mean("seconds_per_step")

    def _mean(self, figure: str) -> float:
        return sum(getattr(outcome, figure) for outcome in self.outcomes) / len(self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Returns the line of `--json`: means over the seeds, and the largest staleness of any seed."""
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
    settings: Iterable[Setting], policies: Sequence[str], seeds: Sequence[int], steps: Steps, jobs: int = 1
) -> list[Cell]:
    """Returns all policies in all settings, in an order independent of `jobs`."""
    todo = [(setting, policy) for setting in settings for policy in policies]
    work = bound(_simulate, seeds=tuple(seeds), steps=steps)
    # A pool of one process would only add its start-up time.
    if jobs == 1 or len(todo) == 1:
        return list(progress(map(work, todo), len(todo), "simulating", "cells"))

    with ProcessPoolExecutor(min(jobs, len(todo))) as pool:
        return list(progress(pool.map(work, todo), len(todo), "simulating", "cells"))


def _simulate(what: tuple[Setting, str], seeds: tuple[int, ...], steps: Steps) -> Cell:
    setting, policy = what
    first, *others = (DrawnLengths(setting.work.lengths, setting.work.group_size, seed) for seed in seeds)
    # Searching the split takes longer than the simulation: seeds share the split of the first.
    replicas, outcome = best_split(policy, setting, first, steps)
    return Cell(setting, policy, (outcome, *(simulate_split(policy, setting, own, replicas, steps) for own in others)))


def ratios(cells: Sequence[Cell], policy: str = PAPER) -> dict[str, float]:
    """Returns the speed-up of `policy` over the paper's baselines, as the paper defines it; only from existing cells.

    mean, largest: over all settings. largest scale: mean over the largest settings of each model and all baselines.
    """
    seconds = {(cell.setting.model.name, cell.setting.gpus, cell.policy): cell.seconds_per_step for cell in cells}
    scales: dict[str, list[int]] = {}
    for model, gpus, name in seconds:
        if name == policy:
            scales.setdefault(model, []).append(gpus)
    over = {
        baseline: {
            (model, gpus): seconds[model, gpus, baseline] / seconds[model, gpus, policy]
            for model, all_gpus in scales.items()
            for gpus in all_gpus
            if (model, gpus, baseline) in seconds
        }
        for baseline in (*BASELINES, "asynchronous", PAPER)
        if baseline != policy
    }
    found = {f"mean over {name}": _mean(list(own.values())) for name, own in over.items() if own}
    if over["synchronous"]:
        found["largest over synchronous"] = max(over["synchronous"].values())
    largest = [(model, max(all_gpus)) for model, all_gpus in scales.items()]
    # The published figure is a mean over all four baselines: without one of them it cannot be compared.
    if all(over[name] for name in BASELINES) and largest:
        found["largest scale, over all"] = _mean([over[name][at] for name in BASELINES for at in largest])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def cell_lines(cells: Sequence[Cell]) -> list[str]:
    """One row per setting: seconds per step of each policy, and the gain over the first."""
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    rows: dict[tuple[str, int], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.setting.model.name, cell.setting.gpus), {})[cell.policy] = cell
    heads = ["model", "GPUs", *policies]
    last = [policy for policy in (PAPER, OURS) if policy in policies and "synchronous" in policies]
    heads += [f"synchronous / {policy}" for policy in last]
    table = [heads]
    for (model, gpus), row in rows.items():
        line = [model, str(gpus), *(f"{row[policy].seconds_per_step:.1f}" for policy in policies)]
        line += [f"{row['synchronous'].seconds_per_step / row[policy].seconds_per_step:.2f}" for policy in last]
        table.append(line)
    return aligned(table)


def published_lines(cells: Sequence[Cell]) -> list[str]:
    """The ratios beside the published ones, staleness at 7B on 64 GPUs, and the gain of our schedule."""
    found = ratios(cells)
    table = [["asynchronous_repack", "published", "simulated", "error"]]
    for name, value in found.items():
        if name in PUBLISHED:
            table.append([name, f"{PUBLISHED[name]:.2f}", f"{value:.2f}", f"{value / PUBLISHED[name] - 1:+.0%}"])
        else:
            table.append([name, "", f"{value:.2f}", ""])
    lines = aligned(table)
    for cell in cells:
        if (cell.setting.model.name, cell.setting.gpus, cell.policy) == ("7B", 64, PAPER):
            lines += ["", f"staleness at the end of a trajectory, 7B on 64 GPUs: {_staleness_shares(cell)}"]
    if ours := ratios(cells, OURS):
        rows = [["ours", "simulated"], *([name, f"{value:.2f}"] for name, value in ours.items())]
        lines += ["", *aligned(rows), "", _ours_line(cells)]
    return lines


def _ours_line(cells: Sequence[Cell]) -> str:
    ours = [cell for cell in cells if cell.policy == OURS]
    paper = {(c.setting.model.name, c.setting.gpus): c.seconds_per_step for c in cells if c.policy == PAPER}
    at = [(cell.setting.model.name, cell.setting.gpus) for cell in ours]
    gains = [paper[key] / cell.seconds_per_step for key, cell in zip(at, ours, strict=True) if key in paper]
    late = _mean([cell.as_dict()["consumed_staleness_mean"] for cell in ours])
    most = max(cell.as_dict()["consumed_staleness_max"] for cell in ours)
    gain = (
        f"{min(gains):.2f} to {max(gains):.2f} times the paper's schedule in {len(gains)} settings; " if gains else ""
    )
    return f"ours: {gain}trained on {late:.1f} steps late on average, at most {most}"


def _staleness_shares(cell: Cell) -> str:
    """Shares of the trajectories by staleness when they end."""
    counted: Counter[int] = Counter()
    for outcome in cell.outcomes:
        counted.update(outcome.staleness)
    total = sum(counted.values())
    shares = ", ".join(f"{value}: {count / total:.1%}" for value, count in sorted(counted.items()))
    return f"{shares}; mean {mean(counted):.2f}"


if __name__ == "__main__":
    main()
