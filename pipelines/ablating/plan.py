"""Determines the runs of an ablation, the finished ones among them, and the order of the rest.

Runs of one seed share the stages before RL. The first run of each such prefix runs alone. The others start when it has
ended and find those stages in DVC's run cache, so that data, base and SFT run once for each seed.

The parameter file of each variant and seed is checked before anything runs (`check_ablation`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.ablating.definition import POLICY, Ablation, Metric, Score, resolve
from pipelines.graph.recipes import read_recipe, with_changes
from pipelines.graph.schema import check_values
from stages.foundations.errors import UserError
from stages.foundations.files import stable_hash
from stages.foundations.machine import PROJECT
from stages.foundations.stage import about
from stages.foundations.stage_graph import Definitions, GraphStage, read_definitions, stages_of, written_outs


@dataclass(frozen=True)
class PlannedRun:
    """One variant with one seed."""

    variant: str
    seed: int
    # Runs are keys of dictionaries, and a mapping has no hash. `params_hash` represents it.
    params: Mapping[str, Any] = field(compare=False)
    targets: tuple[str, ...]
    params_hash: str
    """Parameters that stages with metrics read; those that only pages read are left out."""
    prefix: str
    """Equal for runs that share every stage before the first one that variants change."""

    @property
    def name(self) -> str:
        return f"{self.variant}-{self.seed}"


def plan_runs(
    root: Path, ablation: Ablation, variants: Sequence[str] | None, seeds: Sequence[int] | None
) -> list[PlannedRun]:
    """The runs of the chosen variants and seeds (None: all), in the file's order. UserError on an unknown one."""
    for what, chosen, known in (("variant", variants, list(ablation.variants)), ("seed", seeds, ablation.seeds)):
        unknown = [str(one) for one in chosen or [] if one not in known]
        if unknown:
            raise UserError(
                f"ablation {ablation.name} has no {what} {', '.join(unknown)}: there are {', '.join(map(str, known))}"
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
    # A finished run stays valid when a section changes that only pages read.
    own = _read_by(params, (stage for stage in stages if stage.metrics))
    # Stages declare whether an ablation varies them. The others decide which runs can share their outputs.
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
    """Returns the first run of each prefix, the baseline's of all seeds before others.

    Prefixes of one seed often share some stages, which later runs find in the cache.
    """
    first: dict[str, PlannedRun] = {}
    # A stable sort: the baseline's runs first, the others in the order of the file.
    for run in sorted(runs, key=lambda run: run.variant != baseline):
        first.setdefault(run.prefix, run)
    return list(first.values())


def next_run(
    waiting: Sequence[PlannedRun], running: Collection[PlannedRun], ended: Collection[str]
) -> PlannedRun | None:
    """Returns the first waiting run whose prefix exists or is not being made; `ended` are prefixes that were tried."""
    # Two runs that make the same stages at once would both compute them: DVC shares results, not work in progress.
    busy = {run.prefix for run in running} - set(ended)
    return next((run for run in waiting if run.prefix not in busy), None)


def expected_seconds(
    ablation: Ablation, left: Sequence[PlannedRun], jobs: int, measured: Sequence[float], made: Collection[str]
) -> float:
    """Estimates the wall time: each run, and the shared stages once for each prefix that is not among `made`.

    `measured` are times of finished runs that found their shared stages; they replace the file's figure.
    """
    each = sum(measured) / len(measured) if measured else ablation.expected_seconds.run
    # A prefix that was made is in the run cache of DVC, and takes no time again.
    shared = len({run.prefix for run in left} - set(made)) * ablation.expected_seconds.shared
    return (shared + len(left) * each) / max(1, min(jobs, len(left)))


def describe_plan(
    ablation: Ablation, runs: Sequence[PlannedRun], is_done: Callable[[PlannedRun], bool], baseline: str
) -> list[str]:
    """Returns the plan as lines: finished runs, the order of the others, and the changes of each variant."""
    lines = [f"{ablation.name}: {ablation.title}", ""]
    for variant in dict.fromkeys(run.variant for run in runs):
        own = ablation.variants[variant]
        builds = f" (on {own.builds_on})" if own.builds_on else ""
        lines.append(f"  {variant}{builds}: {own.says}")
        lines += [f"      {name}: {value}" for name, value in own.changes.items()]
    lines.append("")
    leaders = leading([run for run in runs if not is_done(run)], baseline)
    for run in [*(run for run in runs if is_done(run)), *in_order([r for r in runs if not is_done(r)], baseline)]:
        state = "done" if is_done(run) else "runs first and makes what the others share" if run in leaders else "runs"
        lines.append(f"  {run.variant} seed {run.seed}: {state}")
    return lines


def params_of(root: Path, ablation: Ablation, variant: str, seed: int) -> dict[str, Any]:
    """The whole parameter file. UserError names a dotted change that leads through a value that is no mapping."""
    recipe = read_recipe(root, ablation.recipe)
    changes = {**ablation.changes_of(variant), "seed": seed}
    # One by one, so that the error names the key that is wrong.
    for name, value in changes.items():
        try:
            recipe = with_changes(recipe, {name: value})
        except KeyError:
            raise UserError(
                f"ablation {ablation.name}, variant {variant}: {name}: recipe {ablation.recipe} has no such key"
            ) from None
    return recipe


def check_ablation(root: Path, ablation: Ablation) -> dict[str, dict[str, Any]]:
    """Checks every variant's parameters and metrics; returns the variants' parameters with the first seed.

    UserError lists all mistakes, each with ablation, variant and key.
    """
    all_params, problems = {}, []
    for variant in ablation.variants:
        try:
            # One seed is enough: seeds differ in a number that every recipe takes.
            params = params_of(root, ablation, variant, ablation.seeds[0])
            sections = check_values(params, "params.yaml")
            problems += [
                f"ablation {ablation.name}, variant {variant}: {line}"
                for line in _wrong_metrics(ablation, variant, params, sections)
            ]
            all_params[variant] = params
        except UserError as error:
            problems += _error_lines(error, f"ablation {ablation.name}, variant {variant}: ")
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    return all_params


def _error_lines(error: UserError, prefix: str) -> list[str]:
    lines = str(error).splitlines()
    # The first line of such an error only names the file. The others have the keys.
    return lines if lines[0].startswith("ablation ") else [prefix + line.strip() for line in lines[1:]]


def made_files(metric: Metric, params: Mapping[str, Any]) -> dict[str, GraphStage]:
    """The metric files (or curves) of a parameter file, as metrics name them, each with the stage that makes it."""
    folder, ending = _place(metric)
    return {
        path.removeprefix(folder).removesuffix(ending): stage
        for stage in stages_of(graph(), params)
        for path in stage.outs
        if path.startswith(folder) and path.endswith(ending)
    }


@cache
def graph() -> Definitions:
    """Returns the stages of this project, whose code checks and runs an ablation."""
    return read_definitions(PROJECT / "dvc.yaml")


def _place(metric: Metric) -> tuple[str, str]:
    return ("data/metrics/", ".json") if isinstance(metric, Score) else ("data/curves/", ".csv")


def applies(metric: Metric, policy: str, params: Mapping[str, Any]) -> bool:
    """False where a stage makes such a file for its policies, and this policy is none of them."""
    if POLICY not in metric.file or resolve(metric.file, policy) in made_files(metric, params):
        return True
    # A variant without RL has no curve of its policy, and is not wrong: other policies have such a file.
    start = _place(metric)[0] + metric.file.partition(POLICY)[0]
    return not any(path.startswith(f"{start}${{") for path in written_outs(graph()))


def scores_policy(metric: Metric, policy: str, params: Mapping[str, Any]) -> bool:
    """True for a score that verdicts give for each problem."""
    stage = made_files(metric, params).get(resolve(metric.file, policy))
    return isinstance(metric, Score) and stage is not None and about(stage.name).score_keys is not None


def _wrong_metrics(
    ablation: Ablation, variant: str, params: Mapping[str, Any], sections: Mapping[str, Any]
) -> list[str]:
    policy, found = ablation.policy_of(variant), []
    measured = [*sections.get("policies", []), *sections.get("refl_rounds", {})]
    if policy not in measured:
        found.append(f"policy {policy!r} is not measured; policies are {', '.join(measured)}")
    for name, metric in ablation.metrics.items():
        if applies(metric, policy, params):
            wrong = _wrong_metric(metric, policy, params, sections)
            found += [f"metrics.{name}.{wrong}"] if wrong else []
    return found


def _wrong_metric(metric: Metric, policy: str, params: Mapping[str, Any], sections: Mapping[str, Any]) -> str | None:
    """Before a run only the keys of scores are known."""
    made, file = made_files(metric, params), resolve(metric.file, policy)
    if file not in made:
        return f"file: there is no {file!r}; there are {', '.join(made)}"
    keys = about(made[file].name).score_keys
    if keys is None or not isinstance(metric, Score):
        return None
    benchmark, _, quantity = metric.key.partition("/")
    # The keys of a curve or of a loss are known only after a run. Those of scores follow from the parameters.
    benchmarks = [name for name, source in sections["sources"].items() if source.role == "benchmark"]
    known = keys(sections)
    if benchmark in benchmarks and quantity in known:
        return None
    return f"key: there is no {metric.key!r}; there are {', '.join(benchmarks)} with {', '.join(known)}"


def targets_of(ablation: Ablation, variant: str, params: Mapping[str, Any]) -> list[str]:
    """Returns DVC's names of the stages that make the variant's metrics; DVC also makes the stages they need."""
    policy = ablation.policy_of(variant)
    return sorted(
        {
            made_files(metric, params)[resolve(metric.file, policy)].address
            for metric in ablation.metrics.values()
            if applies(metric, policy, params)
        }
    )
