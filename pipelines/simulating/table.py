"""Runs the cells of a table on some processes, and writes what people read: the table, one sentence, and a picture.

A cell is a policy in a setting at its best split, for one or more seeds. `sensitivities` gives the ratios that the
paper publishes when one assumption is another, on one large setting of each model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial as bound
from typing import Any

from markupsafe import escape

from pipelines.simulating.replica import Outcome, mean
from pipelines.simulating.schedules import OURS, POLICIES, Steps, best_split, simulate_split
from pipelines.simulating.setting import PUBLISHED, DrawnLengths, Setting, paper_setting
from pipelines.text_tables import aligned
from stages.observe.progress import progress

BASELINES = ("synchronous", "one_step", "stream", "partial")
PAPER = "asynchronous_repack"


def ratios(cells: Sequence[Cell], policy: str = PAPER) -> dict[str, float]:
    """`policy` over the paper's baselines, as the paper means them; only those whose cells are there.

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
    if all(over[name] for name in BASELINES) and largest:
        found["largest scale, over all"] = _mean([over[name][at] for name in BASELINES for at in largest])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def cell_lines(cells: Sequence[Cell]) -> list[str]:
    """A row a setting: seconds a step of each policy, and the gain over the first."""
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
    """A row a policy, of one setting."""
    first = cells[0].seconds_per_step
    heads = ["policy", "s a step", f"{cells[0].policy} / it", "rollout GPUs", "training GPUs", "KV used", "tokens/s"]
    table = [[*heads, "steps late: mean", "most"]]
    for cell in cells:
        figures = cell.as_dict()
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
    """The ratios beside the published ones, staleness at 7B on 64 GPUs, and what ours gains."""
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
            lines += ["", f"staleness at the end of a trajectory, 7B on 64 GPUs: {told_staleness(cell)}"]
    if ours := ratios(cells, OURS):
        rows = [["ours", "simulated"], *([name, f"{value:.2f}"] for name, value in ours.items())]
        lines += ["", *aligned(rows), "", _told_ours(cells)]
    return lines


def _told_ours(cells: Sequence[Cell]) -> str:
    own = [cell for cell in cells if cell.policy == OURS]
    paper = {(c.setting.model.name, c.setting.gpus): c.seconds_per_step for c in cells if c.policy == PAPER}
    gains = [
        paper[cell.setting.model.name, cell.setting.gpus] / cell.seconds_per_step
        for cell in own
        if (cell.setting.model.name, cell.setting.gpus) in paper
    ]
    late = _mean([cell.as_dict()["consumed_staleness_mean"] for cell in own])
    most = max(cell.as_dict()["consumed_staleness_max"] for cell in own)
    shown = (
        f"{min(gains):.2f} to {max(gains):.2f} times the paper's schedule in {len(gains)} settings; " if gains else ""
    )
    return f"ours: {shown}trained on {late:.1f} steps late on average, at most {most}"


def told_staleness(cell: Cell) -> str:
    """Shares of the trajectories by staleness when they end."""
    counted: dict[int, int] = {}
    for outcome in cell.outcomes:
        for value, count in outcome.staleness.items():
            counted[value] = counted.get(value, 0) + count
    total = sum(counted.values())
    shares = ", ".join(f"{value}: {count / total:.1%}" for value, count in sorted(counted.items()))
    return f"{shares}; mean {mean(counted):.2f}"


def sentence(cells: Sequence[Cell], name: str) -> str:
    """What a recipe would gain."""
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


def as_rows(changes: Mapping[str, Mapping[str, float]], heads: Sequence[str]) -> list[str]:
    """A line a change, its ratios in the order of `heads`."""
    table = [["change", *heads]]
    table += [[name, *(f"{found[head]:.2f}" for head in heads)] for name, found in changes.items()]
    return aligned(table)


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


SETTINGS = (("7B", 256), ("32B", 256), ("72B", 1024))
HEADS = (
    "mean over synchronous",
    "mean over one_step",
    "mean over stream",
    "mean over partial",
    "mean over asynchronous",
    "largest over synchronous",
)


def _constants(**changed: float) -> Callable[[Setting], Setting]:
    return lambda setting: setting.with_constants(**changed)


def _lengths(**changed: float) -> Callable[[Setting], Setting]:
    def change(setting: Setting) -> Setting:
        work = setting.work
        return replace(setting, work=replace(work, lengths=replace(work.lengths, **changed)))

    return change


def _prompt(tokens: int) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, work=replace(setting.work, prompt_tokens=tokens))


CHANGES: dict[str, Callable[[Setting], Setting]] = {
    "as it stands": lambda setting: setting,
    "median length 800": _lengths(median=800.0),
    "median length 3,200": _lengths(median=3200.0),
    "sigma 0.6 for 0.99": _lengths(sigma=0.6),
    "half of the log-variance within a group": _lengths(within_group=0.5),
    "all of it within a group": _lengths(within_group=1.0),
    "prompt 1,000 tokens": _prompt(1000),
    "host 0 ms a decode step": _constants(host_seconds=0.0),
    "host 10 ms a decode step": _constants(host_seconds=10e-3),
    "all-reduce 24 us": _constants(all_reduce_seconds=24e-6),
    "decode at 0.6 of the bandwidth": _constants(bandwidth_share=0.6),
    "decode at 0.4 of the FLOP/s": _constants(decode_share=0.4),
    "prefill at 0.25 of the FLOP/s": _constants(prefill_share=0.25),
    "admission up to 0.85 of the KV cache": _constants(admitted_share=0.85),
    "0.8 of the memory": _constants(memory_share=0.8),
    "at most 256 sequences a replica": _constants(most_sequences=256),
    "MFU 0.25": _constants(mfu=0.25),
    "MFU 0.55": _constants(mfu=0.55),
    "6 FLOPs a parameter and token": _constants(training_flops=6.0),
    "8 mini-batches": _constants(minibatches=8),
    "5 s a mini-batch": _constants(minibatch_seconds=5.0),
    "network at 0.4": _constants(network_share=0.4),
    "collective 2 GB/s": _constants(collective_bytes=2e9),
    "eta 1": _constants(eta=1),
    "collective 2 GB/s and eta 1": _constants(collective_bytes=2e9, eta=1),
    "switch 10 s": _constants(switch_seconds=10.0),
    "repack every 20 s": _constants(repack_seconds=20.0),
    "a replica takes 2 shares": _constants(share=2.0),
    "a replica takes 4 shares": _constants(share=4.0),
}


def sensitivities(
    seeds: Sequence[int], steps: Steps, jobs: int, changes: Sequence[str] = tuple(CHANGES)
) -> dict[str, dict[str, float]]:
    """Ratios of the paper's schedule by change, each policy at its best split under that change."""
    return {
        name: ratios(
            simulate_cells(
                [CHANGES[name](paper_setting(*at)) for at in SETTINGS],
                POLICIES,
                seeds,
                steps,
                jobs,
                label=f"{place} of {len(changes)}, {name}",
            )
        )
        for place, name in enumerate(changes, start=1)
    }


PANEL, HEIGHT, GAP, LEFT, TOP, BOTTOM, LEGEND = 280, 240, 44, 46, 76, 40, 204
"""Pixels: a panel's width and height, the room between and around them, and for the names on the right."""
BAR, BAR_GAP, NAMES = 20, 12, 170
COLORS = ("#56606d", "#8a5a00", "#7a3fa0", "#0a7048", "#c2571a", "#1d5fbf", "#b3261e")
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #161a20; }
.title { font-size: 18px; font-weight: 650; } .name { font-weight: 650; } .quiet { fill: #56606d; }
.right { text-anchor: end; } .middle { text-anchor: middle; } .grid { stroke: #dde2e8; }
path { fill: none; stroke-width: 2; }
"""


def draw(cells: Sequence[Cell], title: str) -> str:
    """The picture; equal cells give equal text. All text is escaped."""
    models = list(dict.fromkeys(cell.setting.model.name for cell in cells))
    scales = {(cell.setting.model.name, cell.setting.gpus) for cell in cells}
    if len(scales) == 1:
        return _bars(cells, title)
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    width = LEFT + len(models) * (PANEL + GAP) - GAP + LEGEND
    height = TOP + HEIGHT + BOTTOM
    seconds = {(cell.setting.model.name, cell.setting.gpus, cell.policy): cell.seconds_per_step for cell in cells}
    gains = {key: seconds[key[0], key[1], policies[0]] / value for key, value in seconds.items()}
    most = math.ceil(max(gains.values()))

    def y(gain: float) -> float:
        return TOP + HEIGHT * (1 - gain / most)

    parts = _head(width, height, title, f"times as fast as {policies[0]}, over the number of GPUs")
    for place, model in enumerate(models):
        left = LEFT + place * (PANEL + GAP)
        sizes = sorted({gpus for name, gpus in scales if name == model})
        parts += _axes(left, model, sizes, most, y)
        for number, policy in enumerate(policies):
            points = [
                (left + _share(sizes, gpus) * PANEL, y(gains[model, gpus, policy]))
                for gpus in sizes
                if (model, gpus, policy) in gains
            ]
            parts += _line(points, COLORS[number % len(COLORS)], f"{model}, {policy}")
    right = LEFT + len(models) * (PANEL + GAP) - GAP + 18
    for number, policy in enumerate(policies):
        parts.append(_key(right, TOP + 10 + 22 * number, COLORS[number % len(COLORS)], policy))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(width: float, height: float, title: str, about: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect x="0" y="0" width="{width}" height="{height}" style="fill:#f6f7f9"/>',
        f'<text class="title" x="24" y="30">{escape(title)}</text>',
        f'<text class="quiet" x="24" y="50">{escape(about)}</text>',
    ]


def _share(sizes: Sequence[int], gpus: int) -> float:
    first, last = math.log2(sizes[0]), math.log2(sizes[-1])
    return 0.5 if first == last else (math.log2(gpus) - first) / (last - first)


def _axes(left: float, model: str, sizes: Sequence[int], most: int, y) -> list[str]:
    parts = [f'<text class="name" x="{left}" y="{TOP - 8}">{escape(model)}</text>']
    for gain in range(0, most + 1, 1 if most <= 8 else 2):
        parts.append(f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y(gain):.1f}" y2="{y(gain):.1f}"/>')
        parts.append(f'<text class="quiet right" x="{left - 8}" y="{y(gain) + 4:.1f}">{gain}</text>')
    for gpus in sizes:
        x = left + _share(sizes, gpus) * PANEL
        parts.append(f'<text class="quiet middle" x="{x:.1f}" y="{TOP + HEIGHT + 20}">{gpus}</text>')
    return parts


def _line(points: Sequence[tuple[float, float]], color: str, told: str) -> list[str]:
    way = " ".join(f"{'L' if place else 'M'}{x:.1f},{y:.1f}" for place, (x, y) in enumerate(points))
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill:{color}"/>' for x, y in points]
    return [f'<path d="{way}" style="stroke:{color}"><title>{escape(told)}</title></path>', *dots]


def _key(x: float, y: float, color: str, name: str) -> str:
    return (
        f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" style="stroke:{color};stroke-width:3"/>'
        f'<text x="{x + 26}" y="{y + 4}">{escape(name)}</text>'
    )


def _bars(cells: Sequence[Cell], title: str) -> str:
    first = cells[0].seconds_per_step
    gains = [first / cell.seconds_per_step for cell in cells]
    width, height = 24 + NAMES + 420 + 140, 70 + len(cells) * (BAR + BAR_GAP) + 16
    parts = _head(width, height, title, f"times as fast as {cells[0].policy}, and seconds a step")
    for place, (cell, gain) in enumerate(zip(cells, gains, strict=True)):
        top = 70 + place * (BAR + BAR_GAP)
        length = 420 * gain / max(gains)
        color = COLORS[place % len(COLORS)]
        parts.append(f'<text class="right" x="{NAMES + 14}" y="{top + 14}">{escape(cell.policy)}</text>')
        parts.append(
            f'<rect x="{NAMES + 24}" y="{top}" width="{length:.1f}" height="{BAR}" rx="3" style="fill:{color}"/>'
        )
        told = f"{gain:.2f}  ({cell.seconds_per_step:.3g} s)"
        parts.append(f'<text class="quiet" x="{NAMES + 32 + length:.1f}" y="{top + 14}">{escape(told)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
