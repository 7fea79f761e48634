"""Checks a whole parameter file with the models of the stages that own its sections, and across sections.

Each stage checks its own section when it runs; this finds a mistake before the first stage starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.params import StrictParams, read_yaml, validate_section


class LaunchParams(StrictParams):
    """Section `launch`."""

    train: str
    """Command that starts the training stages: `python`, or `torchrun` with its flags."""


def section_models() -> dict[str, Any]:
    """Top-level section -> what it must be; the stages' modules are imported here, which takes two seconds."""
    from stages.base.params import BaseParams
    from stages.collect.params import CollectParams, SourceParams
    from stages.collect_web.params import CollectWebParams
    from stages.curate.params import CurateParams
    from stages.demonstrate.params import DemonstrateParams
    from stages.engines.samplers.params import SamplerParams
    from stages.engines.trainers.params import TrainerParams
    from stages.engines.verifier.params import VerifierParams
    from stages.extract_web.params import ExtractWebParams
    from stages.filter_web.params import FilterWebParams
    from stages.foundations.prompts import PromptParams
    from stages.grade.params import GradeParams
    from stages.report.params import ReportParams
    from stages.respond.params import RespondParams
    from stages.rl_round.params.rl import RlParams, RoundParams
    from stages.sft.params import SftParams

    return {
        "seed": int,
        "launch": LaunchParams,
        "policies": list[str],
        "prompt": PromptParams,
        "sampler": SamplerParams,
        "trainer": TrainerParams,
        "verifier": VerifierParams,
        "base": BaseParams,
        "collect": CollectParams,
        "sources": dict[str, SourceParams],
        "collect_web": CollectWebParams,
        "curate": CurateParams,
        "extract_web": ExtractWebParams,
        "filter_web": FilterWebParams,
        "demonstrate": DemonstrateParams,
        "sft": SftParams,
        "rl": RlParams,
        "rl_rounds": dict[str, RoundParams],
        "respond": RespondParams,
        "grade": GradeParams,
        "report": ReportParams,
    }


def check_params(path: Path) -> dict[str, Any]:
    """The validated sections; UserError tells every section that is missing, unknown or wrong."""
    given, models = read_yaml(path), section_models()
    problems = [
        f"  {name}: unknown section; remove it or correct its spelling"
        for name in given
        if name not in models
    ]
    problems += [
        f"  {name}: missing section; the recipes under pipelines/recipes have one"
        for name in models
        if name not in given
    ]
    sections: dict[str, Any] = {}
    for name in models:
        if name in given:
            try:
                sections[name] = validate_section(given[name], name, models[name], path)
            except UserError as error:
                problems += str(error).splitlines()[1:]
    if not problems:
        problems = [f"  {line}" for line in _contradictions(sections)]
    if problems:
        raise UserError(f"{path} is not usable:\n" + "\n".join(problems))
    return sections


def _contradictions(sections: dict[str, Any]) -> list[str]:
    from stages.rl_round.params.rl import sampler_contradictions

    rounds, policies = sections["rl_rounds"], sections["policies"]
    known = ["base", "sft", *rounds]
    found = [
        f"policies: there is no policy {name!r}; there are {', '.join(known)}"
        for name in policies
        if name not in known
    ]
    for name, this_round in rounds.items():
        if this_round.start_from not in known or this_round.start_from == name:
            found.append(f"rl_rounds.{name}.start_from: there is no earlier policy {this_round.start_from!r}")
    if not any(source.role == "benchmark" for source in sections["sources"].values()):
        found.append("sources: none has role `benchmark`, so nothing could be measured")
    if sections["report"].baseline_policy not in policies:
        found.append(f"report.baseline_policy {sections['report'].baseline_policy!r} must be one of policies")
    found += sampler_contradictions(sections["rl"], sections["sampler"])
    too_many = [k for k in sections["grade"].pass_at_k if k > sections["respond"].samples]
    if too_many:
        found.append(f"grade.pass_at_k {too_many} exceeds respond.samples {sections['respond'].samples}")
    is_distributed = sections["launch"].train != "python"
    if is_distributed and sections["trainer"].kind == "torch":
        found.append(
            "launch.train starts several ranks, but trainer.kind torch has one: set trainer.kind deepspeed"
        )
    return found
