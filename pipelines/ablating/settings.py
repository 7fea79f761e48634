"""The parameter file of each variant and seed, checked before anything runs, and what DVC has to make for it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipelines.ablating.definition import Ablation, Metric, Score, resolve, with_changes
from pipelines.graph.schema import check_params
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml

PLAIN_FILES = ("base", "collect_web", "curate", "extract_web", "filter_web", "demonstrate", "sft")
"""Metric files of stages that run once."""
DESCRIPTIONS = (
    "problems",
    "responses",
    "undecided_fraction",
    "unparsed_fraction",
    "verifier_failed_fraction",
    "response_tokens_mean",
    "truncated_fraction",
    "branching_frequency",
    "coding_rate",
)
"""What grade says of a benchmark beside its accuracies; rates of keywords are named by the parameters."""


def params_of(root: Path, ablation: Ablation, variant: str, seed: int) -> dict[str, Any]:
    """The whole parameter file. UserError names a dotted change whose section does not exist."""
    recipe = read_yaml(root / "pipelines" / "recipes" / f"{ablation.recipe}.yaml")
    changes = {**ablation.changes_of(variant), "seed": seed}
    for name, value in changes.items():
        try:
            recipe = with_changes(recipe, {name: value})
        except KeyError:
            raise UserError(
                f"ablation {ablation.name}, variant {variant}: {name}: recipe {ablation.recipe} has no such section"
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
            sections = _check(params)
            problems += [
                f"ablation {ablation.name}, variant {variant}: {line}"
                for line in _wrong_metrics(ablation, variant, sections)
            ]
            all_params[variant] = params
        except UserError as error:
            problems += _told(error, f"ablation {ablation.name}, variant {variant}: ")
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    return all_params


def _check(params: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        path.write_text(yaml.safe_dump(dict(params), sort_keys=False))
        return check_params(path)


def _told(error: UserError, prefix: str) -> list[str]:
    lines = str(error).splitlines()
    return lines if lines[0].startswith("ablation ") else [prefix + line.strip() for line in lines[1:]]


def applies(metric: Metric, policy: str, rounds: Mapping[str, Any]) -> bool:
    """False where the metric is about an RL round and the policy did not come from one."""
    return (
        not resolve(metric.file, policy).startswith("rl_round/")
        or "{policy}" not in metric.file
        or policy in rounds
    )


def _wrong_metrics(ablation: Ablation, variant: str, sections: Mapping[str, Any]) -> list[str]:
    policy, found = ablation.policy_of(variant), []
    if policy not in sections["policies"]:
        found.append(f"policy {policy!r} is not measured; policies are {', '.join(sections['policies'])}")
    for name, metric in ablation.metrics.items():
        if applies(metric, policy, sections["rl_rounds"]):
            wrong = _wrong_file(metric, policy, sections) or _wrong_key(metric, policy, sections)
            found += [f"metrics.{name}.{wrong}"] if wrong else []
    return found


def _wrong_file(metric: Metric, policy: str, sections: Mapping[str, Any]) -> str | None:
    file = resolve(metric.file, policy)
    folder, _, stem = file.rpartition("/")
    known = {"rl_round": list(sections["rl_rounds"]), "": ["sft"]}
    if isinstance(metric, Score):
        policies = sections["policies"]
        known |= {
            "": list(PLAIN_FILES),
            "grade": policies,
            "respond": policies,
            "collect": list(sections["sources"]),
        }
    if stem in known.get(folder, []):
        return None
    places = [f"{folder}/{stem}".lstrip("/") for folder, stems in known.items() for stem in stems]
    return f"file: there is no {file!r}; there are {', '.join(places)}"


def _wrong_key(metric: Metric, policy: str, sections: Mapping[str, Any]) -> str | None:
    """Only the keys of `grade` are known before a run."""
    if not isinstance(metric, Score) or not resolve(metric.file, policy).startswith("grade/"):
        return None
    benchmark, _, quantity = metric.key.partition("/")
    benchmarks = [name for name, source in sections["sources"].items() if source.role == "benchmark"]
    samples = sections["respond"].samples
    accuracies = [
        f"avg_at_{samples}",
        f"maj_at_{samples}",
        *(f"pass_at_{k}" for k in sections["grade"].pass_at_k),
    ]
    accuracies += ["greedy"] if sections["respond"].is_greedy_included else []
    keywords = [re.sub("[^a-z0-9]+", "_", word.lower()) for word in sections["grade"].emergence_keywords]
    known = [*accuracies, *DESCRIPTIONS, *(f"keyword_rate_{word}" for word in keywords)]
    if benchmark in benchmarks and quantity in known:
        return None
    return f"key: there is no {metric.key!r}; there are {', '.join(benchmarks)} with {', '.join(known)}"


def targets_of(ablation: Ablation, variant: str, params: Mapping[str, Any]) -> list[str]:
    """DVC's names of the stages that make the variant's metrics; DVC makes what they need."""
    policy = ablation.policy_of(variant)
    files = [
        resolve(metric.file, policy)
        for metric in ablation.metrics.values()
        if applies(metric, policy, params["rl_rounds"])
    ]
    return sorted({file.replace("/", "@") for file in files})
