"""Runs the cells of a table on several processes, and writes the table, one sentence, and a picture.

A cell is a policy in a setting at its best split, for one or more seeds. `sensitivity_lines` gives the paper's
published ratios under changed assumptions, on one large setting of each model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial as bound
from typing import Any

from pipelines.output import aligned
from pipelines.simulating.replica import SimulationResult, mean
from pipelines.simulating.schedules import OURS, POLICIES, Steps, best_split, simulate_split
from pipelines.simulating.setting import PUBLISHED, DrawnLengths, Setting, paper_setting
from stages.observe.progress import progress

BASELINES = ("synchronous", "one_step", "stream", "partial")
PAPER = "asynchronous_repack"


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


def policy_lines(cells: Sequence[Cell]) -> list[str]:
    """One row per policy, for one setting."""
    first = cells[0].seconds_per_step
    heads = ["policy", "s a step", f"{cells[0].policy} / it", "rollout GPUs", "training GPUs", "KV used", "tokens/s"]
    table = [[*heads, "steps late: mean", "most"]]
    for cell in cells:
        figures = cell.as_dict()
        # Here the same GPUs generate and train.
        is_shared = cell.policy == "synchronous"
        training = cell.setting.gpus - (0 if is_shared else figures["rollout_gpus"])
        table.append(
            [
                cell.policy,
                f"{cell.seconds_per_step:.3g}",
                f"{first / cell.seconds_per_step:.2f}",
                str(figures["rollout_gpus"]),
                str(training),
                f"{figures['kv_used']:.1%}",
                f"{figures['tokens_per_second']:,.0f}",
                f"{figures['consumed_staleness_mean']:.2f}",
                str(figures["consumed_staleness_max"]),
            ]
        )
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


def sentence(cells: Sequence[Cell], name: str) -> str:
    """Says what a recipe would gain."""
    first, *others = cells
    if not others:
        return f"A step of {name} takes {first.seconds_per_step:.3g} s with {first.policy}."
    # Of those within a hundredth of the fastest, the one that trains on the newest responses.
    fastest = min(cell.seconds_per_step for cell in others)
    near = [cell for cell in others if cell.seconds_per_step <= 1.01 * fastest]
    best = min(near, key=lambda cell: cell.as_dict()["consumed_staleness_mean"])
    setting, figures = best.setting, best.as_dict()
    where = f"on {setting.gpus} x {setting.gpu.name}"
    gain = first.seconds_per_step / best.seconds_per_step
    if gain <= 1:
        return (
            f"{name} {where} would gain nothing: {first.seconds_per_step:.3g} s a step with {first.policy}, "
            f"{best.seconds_per_step:.3g} s with {best.policy}, the best of the others."
        )
    return (
        f"{name} {where} would train {gain:.2f} times as fast with {best.policy} as with {first.policy}: "
        f"{best.seconds_per_step:.3g} s a step instead of {first.seconds_per_step:.3g} s. "
        f"{figures['rollout_gpus']} GPU{'s' if figures['rollout_gpus'] != 1 else ''} would generate; responses would "
        f"be {figures['consumed_staleness_mean']:.1f} steps old on average when trained on, and at most "
        f"{figures['consumed_staleness_max']}."
    )


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
    """Returns all policies in all settings, in an order independent of `jobs`. UserError as the policies raise."""
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


SETTINGS = (("7B", 256), ("32B", 256), ("72B", 1024))
HEADS = (
    "mean over synchronous",
    "mean over one_step",
    "mean over stream",
    "mean over partial",
    "mean over asynchronous",
    "largest over synchronous",
)
CHANGES: dict[str, dict[str, float]] = {
    "as it stands": {},
    "median length 800": {"median": 800.0},
    "median length 3,200": {"median": 3200.0},
    "sigma 0.6 for 0.99": {"sigma": 0.6},
    "half of the log-variance within a group": {"within_group": 0.5},
    "all of it within a group": {"within_group": 1.0},
    "prompt 1,000 tokens": {"prompt_tokens": 1000},
    "host 0 ms a decode step": {"host_seconds": 0.0},
    "host 10 ms a decode step": {"host_seconds": 10e-3},
    "all-reduce 24 us": {"all_reduce_seconds": 24e-6},
    "decode at 0.6 of the bandwidth": {"bandwidth_share": 0.6},
    "decode at 0.4 of the FLOP/s": {"decode_share": 0.4},
    "prefill at 0.25 of the FLOP/s": {"prefill_share": 0.25},
    "admission up to 0.85 of the KV cache": {"admitted_share": 0.85},
    "0.8 of the memory": {"memory_share": 0.8},
    "at most 256 sequences a replica": {"most_sequences": 256},
    "MFU 0.25": {"mfu": 0.25},
    "MFU 0.55": {"mfu": 0.55},
    "6 FLOPs a parameter and token": {"training_flops": 6.0},
    "8 mini-batches": {"minibatches": 8},
    "5 s a mini-batch": {"minibatch_seconds": 5.0},
    "network at 0.4": {"network_share": 0.4},
    "collective 2 GB/s": {"collective_bytes": 2e9},
    "eta 1": {"eta": 1},
    "collective 2 GB/s and eta 1": {"collective_bytes": 2e9, "eta": 1},
    "switch 10 s": {"switch_seconds": 10.0},
    "repack every 20 s": {"repack_seconds": 20.0},
    "a replica takes 2 shares": {"share": 2.0},
    "a replica takes 4 shares": {"share": 4.0},
}
"""Fields of the lengths, of the work or of the constants, with changed values."""


def sensitivity_lines(seeds: Sequence[int], steps: Steps, jobs: int, as_json: bool) -> list[str]:
    """Ratios of the paper's schedule, one line per change, each policy at its best split under that change."""
    at_all = [paper_setting(*at) for at in SETTINGS]
    settings = [_changed(setting, changes) for changes in CHANGES.values() for setting in at_all]
    cells = simulate_cells(settings, POLICIES, seeds, steps, jobs)
    size = len(at_all) * len(POLICIES)
    by_change = {name: ratios(cells[place * size : (place + 1) * size]) for place, name in enumerate(CHANGES)}
    if as_json:
        return [json.dumps({"change": name, **found}) for name, found in by_change.items()]
    shown = ", ".join(f"{model} on {gpus}" for model, gpus in SETTINGS)
    rows = [[name, *(f"{found[head]:.2f}" for head in HEADS)] for name, found in by_change.items()]
    title = f"asynchronous_repack over the others, at {shown} GPUs"
    return [title, "", *aligned([["change", *HEADS], *rows])]


def _changed(setting: Setting, changes: Mapping[str, float]) -> Setting:
    work = setting.work
    for name, value in changes.items():
        # The three classes share no field name, so a change needs no prefix.
        if hasattr(work.lengths, name):
            work = replace(work, lengths=replace(work.lengths, **{name: value}))
        elif hasattr(work, name):
            work = replace(work, **{name: value})
        else:
            setting = setting.with_constants(**{name: value})
    return replace(setting, work=work)


def draw(cells: Sequence[Cell], title: str) -> str:
    """Returns the picture; equal cells give equal text. All text is escaped."""
    # Imported here: drawing loads matplotlib, which a table does not need.
    from stages.pages.drawing import WIDE, Line, Row, intervals, lines, picture_file

    first = cells[0].policy
    seconds = {(cell.setting.model.name, cell.setting.gpus, cell.policy): cell.seconds_per_step for cell in cells}
    if len({(model, gpus) for model, gpus, _ in seconds}) == 1:
        rows = [
            Row(policy, cells[0].seconds_per_step / own, text=f"{cells[0].seconds_per_step / own:.2f}  ({own:.3g} s)")
            for (_, _, policy), own in seconds.items()
        ]
        spoken = ", ".join(f"{row.name} {row.text}" for row in rows)
        chart = intervals("gains", "", rows, spoken=spoken, rule=1, x_label="times as fast", width=WIDE)
        return picture_file(title, f"times as fast as {first}, and seconds a step", [("", chart.svg)])
    charts = []
    for model in dict.fromkeys(model for model, _, _ in seconds):
        own = {(gpus, policy): value for (name, gpus, policy), value in seconds.items() if name == model}
        sizes = sorted({gpus for gpus, _ in own})
        drawn = []
        for policy in dict.fromkeys(policy for _, policy in own):
            known = [gpus for gpus in sizes if (gpus, policy) in own]
            drawn.append(Line(policy, known, [own[gpus, first] / own[gpus, policy] for gpus in known]))
        chart = lines(f"gains-{model}", model, "", drawn, x_label="GPUs", doublings=sizes)
        charts.append((model, chart.svg))
    return picture_file(title, f"times as fast as {first}, over the number of GPUs", charts)
