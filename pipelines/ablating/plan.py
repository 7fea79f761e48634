"""Which runs an ablation needs, what is done already, and in which order the rest goes.

Runs of one seed share the stages before RL. The first run of each such prefix goes alone; the others start when it
has ended and find those stages in DVC's run cache, so that data, base and SFT run once for each seed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.ablating.definition import Ablation
from pipelines.ablating.settings import graph, params_of, targets_of
from stages.foundations.errors import UserError
from stages.foundations.hashing import stable_hash
from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage, stages_of


@dataclass(frozen=True)
class PlannedRun:
    """One variant with one seed."""

    variant: str
    seed: int
    params: Mapping[str, Any] = field(compare=False)
    targets: tuple[str, ...]
    params_hash: str
    """Of what stages with metrics read: what a page says is none of it."""
    prefix: str
    """Equal for runs that share every stage before the first that variants vary."""

    @property
    def name(self) -> str:
        return f"{self.variant}-{self.seed}"


def plan_runs(
    root: Path, ablation: Ablation, variants: Sequence[str] | None, seeds: Sequence[int] | None
) -> list[PlannedRun]:
    """Runs of the chosen variants and seeds (None: all), in the order of the file. UserError on an unknown one."""
    for what, chosen, known in (
        ("variant", variants, list(ablation.variants)),
        ("seed", seeds, ablation.seeds),
    ):
        unknown = [str(one) for one in chosen or [] if one not in known]
        if unknown:
            raise UserError(
                f"ablation {ablation.name} has no {what} {', '.join(unknown)}: "
                f"there are {', '.join(map(str, known))}"
            )
    return [
        planned(root, ablation, variant, seed)
        for seed in ablation.seeds
        for variant in ablation.variants
        if variant in (variants or [variant]) and seed in (seeds or [seed])
    ]


def planned(root: Path, ablation: Ablation, variant: str, seed: int) -> PlannedRun:
    """The run of one variant and seed."""
    params = params_of(root, ablation, variant, seed)
    targets = tuple(targets_of(ablation, variant, params))
    stages = stages_of(graph(), params)
    own = _read_by(params, (stage for stage in stages if stage.metrics))
    shared = _read_by(params, (stage for stage in stages if not about(stage.name).is_varied))
    params_hash = stable_hash({"params": own, "targets": targets})
    return PlannedRun(variant, seed, params, targets, params_hash, stable_hash(shared))


def _read_by(params: Mapping[str, Any], stages: Iterable[GraphStage]) -> dict[str, Any]:
    read = {section for stage in stages for section in stage.reads}
    return {name: section for name, section in params.items() if name in read}


def in_order(runs: Sequence[PlannedRun], baseline: str) -> list[PlannedRun]:
    """The run that makes each shared prefix first (the baseline's where it has that prefix), then the others."""
    leaders = leading(runs, baseline)
    return leaders + [run for run in runs if run not in leaders]


def leading(runs: Sequence[PlannedRun], baseline: str) -> list[PlannedRun]:
    """The first run of each prefix, the baseline's of all seeds before others.

    Prefixes of one seed often share some stages, which those that start later find made.
    """
    first: dict[str, PlannedRun] = {}
    for run in sorted(runs, key=lambda run: run.variant != baseline):
        first.setdefault(run.prefix, run)
    return list(first.values())


def next_run(
    waiting: Sequence[PlannedRun], running: Collection[PlannedRun], ended: Collection[str]
) -> PlannedRun | None:
    """The first waiting run whose prefix exists or is made by nobody now; `ended` are prefixes that were tried."""
    busy = {run.prefix for run in running} - set(ended)
    return next((run for run in waiting if run.prefix not in busy), None)


def expected_seconds(
    ablation: Ablation,
    left: Sequence[PlannedRun],
    jobs: int,
    measured: Sequence[float],
    made: Collection[str],
) -> float:
    """Estimate of the wall time: each run, and the shared stages once for each prefix that is not among `made`.

    `measured` are times of finished runs that found their shared stages; they replace the file's figure.
    """
    each = sum(measured) / len(measured) if measured else ablation.expected_seconds.run
    shared = len({run.prefix for run in left} - set(made)) * ablation.expected_seconds.shared
    return (shared + len(left) * each) / max(1, min(jobs, len(left)))


def told_plan(
    ablation: Ablation, runs: Sequence[PlannedRun], is_done: Callable[[PlannedRun], bool], baseline: str
) -> list[str]:
    """The plan as lines: what is done, what runs and in which order, what each variant changes."""
    lines = [f"{ablation.name}: {ablation.title}", ""]
    for variant in dict.fromkeys(run.variant for run in runs):
        own = ablation.variants[variant]
        builds = f" (on {own.builds_on})" if own.builds_on else ""
        lines.append(f"  {variant}{builds}: {own.says}")
        lines += [f"      {name}: {value}" for name, value in own.changes.items()]
    lines.append("")
    leaders = leading([run for run in runs if not is_done(run)], baseline)
    for run in [
        *(run for run in runs if is_done(run)),
        *in_order([r for r in runs if not is_done(r)], baseline),
    ]:
        state = (
            "done"
            if is_done(run)
            else "runs first, makes what the others share"
            if run in leaders
            else "runs"
        )
        lines.append(f"  {run.variant} seed {run.seed}: {state}")
    return lines
