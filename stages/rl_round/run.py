"""Wires the `rl_round` stage: a policy and problems in; the next policy, its rollouts, metrics and curves out."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.engines.policies.tokenizers import encode_prompt, load_tokenizer
from stages.foundations.errors import UserError
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.tables import PROBLEM, read_table, require_rows
from stages.observe.quick_imports import quick_imports
from stages.observe.tracking import track
from stages.rl_round.methods import AsynchronousLoop, ReplayLoop, SynchronousLoop
from stages.rl_round.params import (
    RlParams,
    RoundParams,
    loop_contradictions,
    reward_contradictions,
    sampler_contradictions,
)
from stages.rl_round.rollouts.dynamic_sampling import slice_problems
from stages.rl_round.rollouts.records import Problem
from stages.rl_round.schedule import find_rollouts, find_schedule
from stages.rl_round.task import RoundTask

BYTES_OF_A_LOGPROB = 4
"""Samplers keep whole distributions in float32."""


def main(job: Job) -> None:
    """Reads the inputs, runs the round and writes the outputs, metrics last."""
    paths = job.paths
    this_round: RoundParams = job.sections["rl_rounds"]
    params = this_round.of(job.sections["rl"])
    sections = {name: job.sections[name] for name in ("trainer", "sampler", "verifier", "prompt")}
    _refuse_contradictions(paths, params, sections)
    settings = {"rl": params.model_dump(), "round": this_round.model_dump()}
    settings |= {name: section.model_dump() for name, section in sections.items()}
    inputs = {"policy": paths.policy, "problems": paths.problems, **_recorded(job, params)}
    tokenizer = load_tokenizer(paths.policy)
    problems = _problems_of_round(job, params, this_round, tokenizer)
    _refuse_large_distributions(params, len(tokenizer))
    attempt = job.attempt(settings, inputs, policy=job.item, round=job.item)
    with track(attempt) as run:
        task = RoundTask(paths, params, this_round, job.item, job.seed, sections, problems, tokenizer, attempt, run)
        match chosen("rl.loop", params.loop):
            case SynchronousLoop():
                with quick_imports():
                    from stages.rl_round.loop.in_process import run_in_process

                run_in_process(task)
            case ReplayLoop():
                with quick_imports():
                    from stages.rl_round.loop.in_process import run_in_process

                run_in_process(task)
            case AsynchronousLoop() as loop:
                from stages.rl_round.asynchronous.round import run_asynchronous_round

                run_asynchronous_round(task, loop)


def _recorded(job: Job, params: RlParams) -> dict[str, Path]:
    """The files that a replay reads; empty for other loops. UserError where the round would write over them."""
    if not isinstance(params.loop, ReplayLoop):
        return {}
    schedule = find_schedule(Path(params.loop.schedule), job.item)
    rollouts = find_rollouts(schedule, job.item)
    own = {job.paths.schedule.resolve(): schedule.parent, job.paths.rollouts.resolve(): rollouts}
    for output, file in own.items():
        if file.resolve() == output:
            raise UserError(
                f"rl.loop.schedule {params.loop.schedule} reads {file}, which this round writes: copy schedule and "
                "rollouts elsewhere and name the copy"
            )
    return {"schedule": schedule, "rollouts": rollouts}


def _refuse_contradictions(paths: Namespace, params: RlParams, sections: Mapping[str, Any]) -> None:
    found = sampler_contradictions(params, sections["sampler"])
    found += loop_contradictions(params, sections["sampler"], sections["trainer"])
    found += reward_contradictions(params)
    if found:
        raise UserError(f"{paths.params} is not usable:\n" + "\n".join(f"  {line}" for line in found))


def _refuse_large_distributions(params: RlParams, vocabulary: int) -> None:
    kept = params.rollout_distributions
    if kept is None:
        return
    tokens = params.problems_per_step * params.group_size * params.max_response_tokens
    gib = tokens * vocabulary * BYTES_OF_A_LOGPROB / 2**30
    if gib > kept.max_gib:
        raise UserError(
            f"rl.study.rollout_distributions may need {gib:.2g} GiB for a batch ({tokens} tokens over a "
            f"vocabulary of {vocabulary}), more than max_gib {kept.max_gib} allows: raise it, lower "
            "rl.problems_per_step, rl.group_size or rl.max_response_tokens, or set rl.rollout_correction.divergence "
            "sampled and leave rl.study.rollout_distributions out"
        )


def _problems_of_round(job: Job, params: RlParams, this_round: RoundParams, tokenizer) -> list[Problem]:
    """This round's slice of the problem table. UserError when it cannot fill a step."""
    path, prompt = job.paths.problems, job.sections["prompt"]
    frame = require_rows(read_table(path, PROBLEM), path, "loosen the rules of curate or filter_web")
    if this_round.sources is not None:
        frame = frame[frame["source"].isin(this_round.sources)]
    problems = [
        Problem(row["problem_id"], encode_prompt(tokenizer, prompt, row["problem"]), row["answer"])
        for row in frame.to_dict("records")
    ]
    problems = slice_problems(problems, this_round.problem_slice, job.seed)
    if len(problems) < params.problems_per_step:
        named = "" if this_round.sources is None else f" of {', '.join(this_round.sources)}"
        raise UserError(
            f"rl_rounds.{job.item}.problem_slice holds {len(problems)} problems{named}, fewer "
            f"than rl.problems_per_step {params.problems_per_step}: use fewer slices or collect more problems"
        )
    return problems
