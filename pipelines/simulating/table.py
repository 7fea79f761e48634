"""What people read: seconds a step of each policy, the ratios that the paper publishes, one sentence for a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.simulating.cells import Cell
from pipelines.simulating.constants import PUBLISHED
from pipelines.simulating.outcome import mean
from pipelines.simulating.policies import OURS

BASELINES = ("synchronous", "one_step", "stream", "partial")
PAPER = "asynchronous_repack"


def ratios(cells: Sequence[Cell], policy: str = PAPER) -> dict[str, float]:
    """`policy` over the paper's baselines, as the paper means them; only those whose cells are there.

    mean, largest: over all settings. largest scale: mean over the largest settings of each model and all baselines.
    """
    seconds = {
        (cell.setting.model.name, cell.setting.gpus, cell.policy): cell.seconds_per_step for cell in cells
    }
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
        line += [
            f"{row['synchronous'].seconds_per_step / row[policy].seconds_per_step:.2f}" for policy in last
        ]
        table.append(line)
    return aligned(table)


def policy_lines(cells: Sequence[Cell]) -> list[str]:
    """A row a policy, of one setting."""
    first = cells[0].seconds_per_step
    heads = [
        "policy",
        "s a step",
        f"{cells[0].policy} / it",
        "rollout GPUs",
        "training GPUs",
        "KV used",
        "tokens/s",
    ]
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
            table.append(
                [name, f"{PUBLISHED[name]:.2f}", f"{value:.2f}", f"{value / PUBLISHED[name] - 1:+.0%}"]
            )
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
        f"{min(gains):.2f} to {max(gains):.2f} times the paper's schedule in {len(gains)} settings; "
        if gains
        else ""
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


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, names to the left and figures to the right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def as_rows(changes: Mapping[str, Mapping[str, float]], heads: Sequence[str]) -> list[str]:
    """A line a change, its ratios in the order of `heads`."""
    table = [["change", *heads]]
    table += [[name, *(f"{found[head]:.2f}" for head in heads)] for name, found in changes.items()]
    return aligned(table)
