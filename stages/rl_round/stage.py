"""Definition of stage `rl_round`: its inputs and outputs, and the data about it that other modules use."""

from __future__ import annotations

from collections.abc import Mapping

from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.params import TrainerParams
from stages.engines.verifier.params import VerifierParams
from stages.foundations.params import PromptParams
from stages.foundations.stage import About, Sections, Stage, unknown_sources
from stages.rl_round.contradictions import round_contradictions, section_contradictions
from stages.rl_round.params import RlParams, RoundParams, reward_contradictions

TEACHERS = "data/teachers"
"""Has a folder for each round with a teacher, from stage `teacher`."""
STAGE = Stage(
    sections={
        "seed": int,
        "prompt": PromptParams,
        "sampler": SamplerParams,
        "trainer": TrainerParams,
        "verifier": VerifierParams,
        "rl": RlParams,
        "rl_rounds": dict[str, RoundParams],
    },
    inputs={
        "policy": "data/policies/${item.start_from}",
        "problems": "data/${item.problems}.parquet",
        "validation": "data/problems/validation.parquet",  # for rl.evaluation
    },
    outputs={
        "out": "data/policies/${key}",
        "rollouts": "data/rollouts/${key}.parquet",
        "schedule": "data/schedules/${key}",
        "curves": "data/curves/rl_round/${key}.csv",
        "metrics": "data/metrics/rl_round/${key}.json",
        "headline": "data/headline/rl_round/${key}.json",
    },
    # Empty for a round without a teacher: a dependency of DVC cannot be left out where a setting is absent.
    also_depends_on=(f"{TEACHERS}/${{key}}",),
    foreach="rl_rounds",
    is_launched=True,
    depends_on_ranks=True,
    quick_imports=True,
)


def _contradictions(sections: Sections) -> list[str]:
    rl, found = sections["rl"], section_contradictions(sections["rl"], sections, sections["launch"].ranks)
    for name, this_round in sections["rl_rounds"].items():
        own, of_reward = this_round.of(rl), list[str]()
        # A round's reward is outside section `rl`, so the model of `rl` cannot check it when it loads.
        if this_round.reward is not None:
            of_reward = [f"rl_rounds.{name}.reward: {sentence}" for sentence in reward_contradictions(own)]
        of_round = round_contradictions(own, this_round.steps, sections["prompt"])
        found += [*of_reward, *(f"rl_rounds.{name}: {sentence}" for sentence in of_round)]
    wanted = rl.evaluation.problems if rl.evaluation else 0
    if "curate" in sections and (rows := sections["curate"].validation_rows) < wanted:
        found.append(
            f"curate.validation_rows {rows} is less than rl.evaluation.problems {wanted}: raise it, or lower that"
        )
    return [*found, *_unknown_sources(sections), *_without_teacher(sections)]


def _unknown_sources(sections: Sections) -> list[str]:
    train = [name for name, source in sections.get("sources", {}).items() if source.role == "train"]
    web = sections["collect_web"].sources if "collect_web" in sections else {}
    tables = {"problems/train": (train, "`sources` with role train"), "web/solutions": (web, "`collect_web.sources`")}
    return [
        sentence
        for name, this_round in sections["rl_rounds"].items()
        for sentence in unknown_sources(
            f"rl_rounds.{name}.sources", this_round.sources or (), *tables[this_round.problems]
        )
    ]


def _without_teacher(sections: Sections) -> list[str]:
    rounds, teachers = sections["rl_rounds"], sections.get("teachers", {})
    return [
        f"teachers.{name} names a teacher, and rl_rounds has no {name} with `distillation`: set "
        f"rl_rounds.{name}.distillation: {{coefficient: 1.0}}, or leave it out"
        for name in teachers
        if name not in rounds or rounds[name].distillation is None
    ] + [
        f"rl_rounds.{name}.distillation has no teacher: name a policy, `teachers: {{{name}: POLICY}}`"
        for name, this_round in rounds.items()
        if this_round.distillation and name not in teachers
    ]


def _warnings(name: str, metrics: Mapping[str, float]) -> list[str]:
    """Returns a warning for problems left out, and one with the reason if a round did not change the weights."""
    count = metrics.get("prompts/too_long", 0)
    left_out = [f"{name} left out {count:,.0f} problems: prompt and response do not fit the model"][: count > 0]
    return [*left_out, *_without_training(name, metrics)]


def _without_training(name: str, metrics: Mapping[str, float]) -> list[str]:
    steps = metrics.get("progress/steps", 0)
    # Groups that were taken but gave no update had only undecided responses: the verifier failed.
    if steps and metrics.get("progress/steps_without_update") == steps:
        if metrics.get("groups/trained"):
            return [
                f"no step of {name} trained: the verifier failed on every response. Look at the verdicts in "
                f"data/rollouts/{name}.parquet, or raise the limits in section verifier"
            ]
        reason = f"none of the {metrics.get('groups/drawn', 0):,.0f} groups had both correct and wrong responses"
    elif steps and metrics.get("optim/gradient_norm_mean") == 0:
        reason = "every gradient was 0, because the responses of each group had equal rewards"
    else:
        return []
    # Without signal, groups are all right or all wrong, and the advice depends on which of the two.
    accuracy = metrics.get("accuracy/mean_last", 0.0)
    remedy = "harder problems" if accuracy > 0.5 else "easier problems, a better prompt or more SFT"
    return [
        f"no step of {name} trained: {reason} (accuracy in its last step: {accuracy:.1%}). Try {remedy}, a larger "
        "rl.group_size or a higher rl.temperature"
    ]


ABOUT = About(
    description="One round of reinforcement learning, from one named policy to the next.",
    plot=("accuracy/mean", "RL round ${key}"),
    headline=("accuracy/mean_last", "accuracy {:.1%} of training samples"),
    contradictions=_contradictions,
    runs_model=lambda params: True,
    named_after=("policy", "round"),
    warnings=_warnings,
    is_varied=True,
)
