"""The parameter file of each variant and seed, checked before anything runs, and what DVC has to make for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.ablating.definition import POLICY, Ablation, Metric, Score, resolve
from pipelines.graph.overrides import with_changes
from pipelines.graph.resolved_recipes import read_recipe
from pipelines.graph.schema import check_values
from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT
from stages.foundations.stage import about
from stages.foundations.stage_graph import Definitions, GraphStage, read_definitions, stages_of, written_outs


def params_of(root: Path, ablation: Ablation, variant: str, seed: int) -> dict[str, Any]:
    """The whole parameter file. UserError names a dotted change that leads through a value that is no mapping."""
    recipe = read_recipe(root, ablation.recipe)
    changes = {**ablation.changes_of(variant), "seed": seed}
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

    UserError lists all that is wrong, each with ablation, variant and key.
    """
    all_params, problems = {}, []
    for variant in ablation.variants:
        try:
            params = params_of(root, ablation, variant, ablation.seeds[0])
            sections = check_values(params, "params.yaml")
            problems += [
                f"ablation {ablation.name}, variant {variant}: {line}"
                for line in _wrong_metrics(ablation, variant, params, sections)
            ]
            all_params[variant] = params
        except UserError as error:
            problems += _told(error, f"ablation {ablation.name}, variant {variant}: ")
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    return all_params


def _told(error: UserError, prefix: str) -> list[str]:
    lines = str(error).splitlines()
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
    """The stages of this project, which is the one whose code checks and runs an ablation."""
    return read_definitions(PROJECT / "dvc.yaml")


def _place(metric: Metric) -> tuple[str, str]:
    return ("data/metrics/", ".json") if isinstance(metric, Score) else ("data/curves/", ".csv")


def applies(metric: Metric, policy: str, params: Mapping[str, Any]) -> bool:
    """False where some stage makes such a file for policies of its own, and this policy is none of them."""
    if POLICY not in metric.file or resolve(metric.file, policy) in made_files(metric, params):
        return True
    start = _place(metric)[0] + metric.file.partition(POLICY)[0]
    return not any(path.startswith(f"{start}${{") for path in written_outs(graph()))


def scores_policy(metric: Metric, policy: str, params: Mapping[str, Any]) -> bool:
    """True for a score that is known problem by problem, out of verdicts."""
    stage = made_files(metric, params).get(resolve(metric.file, policy))
    return isinstance(metric, Score) and stage is not None and about(stage.name).score_keys is not None


def _wrong_metrics(
    ablation: Ablation, variant: str, params: Mapping[str, Any], sections: Mapping[str, Any]
) -> list[str]:
    policy, found = ablation.policy_of(variant), []
    if policy not in sections["policies"]:
        found.append(f"policy {policy!r} is not measured; policies are {', '.join(sections['policies'])}")
    for name, metric in ablation.metrics.items():
        if applies(metric, policy, params):
            wrong = _wrong_metric(metric, policy, params, sections)
            found += [f"metrics.{name}.{wrong}"] if wrong else []
    return found


def _wrong_metric(
    metric: Metric, policy: str, params: Mapping[str, Any], sections: Mapping[str, Any]
) -> str | None:
    """Of keys only those of scores are known before a run."""
    made, file = made_files(metric, params), resolve(metric.file, policy)
    if file not in made:
        return f"file: there is no {file!r}; there are {', '.join(made)}"
    keys = about(made[file].name).score_keys
    if keys is None or not isinstance(metric, Score):
        return None
    benchmark, _, quantity = metric.key.partition("/")
    benchmarks = [name for name, source in sections["sources"].items() if source.role == "benchmark"]
    known = keys(sections)
    if benchmark in benchmarks and quantity in known:
        return None
    return f"key: there is no {metric.key!r}; there are {', '.join(benchmarks)} with {', '.join(known)}"


def targets_of(ablation: Ablation, variant: str, params: Mapping[str, Any]) -> list[str]:
    """DVC's names of the stages that make the variant's metrics; DVC makes what they need."""
    policy = ablation.policy_of(variant)
    return sorted(
        {
            made_files(metric, params)[resolve(metric.file, policy)].address
            for metric in ablation.metrics.values()
            if applies(metric, policy, params)
        }
    )
