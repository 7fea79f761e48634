"""Wires the `rl_round` stage: a policy and problems in; the next policy, its rollouts, metrics and curves out."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.algorithms.problem_text import normalise_problem
from stages.engines.policies.tokenizers import encode_prompt, load_tokenizer, refuse_lost_marks
from stages.engines.samplers.build import context_tokens
from stages.engines.turns import problem_columns, problem_texts
from stages.engines.verifier.params import VerifierParams
from stages.foundations.errors import UserError
from stages.foundations.job import Job
from stages.foundations.params import ChatPrompt, MarkedCalls, PlainPrompt, ToolsEnvironment, chosen
from stages.foundations.tables import PROBLEM, read_table, require_rows
from stages.observe.progress import say
from stages.observe.quick_imports import quick_imports
from stages.observe.tracking import track
from stages.rl_round.contradictions import round_contradictions, section_contradictions
from stages.rl_round.methods import AsynchronousLoop, ReplayLoop, SynchronousLoop, function_rewards
from stages.rl_round.params import RlParams, RoundParams, reward_contradictions
from stages.rl_round.problem_order import slice_problems
from stages.rl_round.records import Problem
from stages.rl_round.round import Round
from stages.rl_round.schedule import find_rollouts, find_schedule
from stages.rl_round.stage import TEACHERS

FUNCTION_COLUMNS = ("problem", "source", "solution")
"""Columns of a problem's row that a custom function may read, besides id and answer."""
PROBLEMS_NAMED = 5
BYTES_OF_A_LOGPROB = 4
"""Samplers keep whole distributions in float32."""


def main(job: Job) -> None:
    """Reads the inputs, runs the round and writes the outputs, metrics last."""
    # Checks come first, cheapest first: parameters, tokenizer, table.
    paths = job.paths
    settings: RoundParams = job.sections["rl_rounds"]
    params = settings.of(job.sections["rl"])
    sections = {name: job.sections[name] for name in ("trainer", "sampler", "verifier", "prompt")}
    _refuse_contradictions(paths, params, settings, sections)
    shown = {"rl": params, "round": settings, **sections}
    inputs = {"policy": paths.policy, "problems": paths.problems, **_recorded(job, params)}
    inputs |= {"validation": paths.validation} if params.evaluation else {}
    tokenizer = load_tokenizer(paths.policy)
    refuse_lost_marks(tokenizer, _marks(sections["prompt"], sections["verifier"]))
    teacher = _teacher(job.item, tokenizer) if settings.distillation else None
    inputs |= {"teacher": teacher} if teacher else {}
    problems, too_long = _problems_of_round(job, params, settings, tokenizer)
    held_out = _held_out_problems(job, params, tokenizer) if params.evaluation else ()
    _refuse_large_distributions(params, len(tokenizer))
    shown = {name: section.model_dump() for name, section in shown.items()}
    attempt = job.attempt(shown, inputs, policy=job.item, round=job.item)
    with track(attempt) as run:
        this_round = Round(
            name=job.item,
            seed=job.seed,
            params=params,
            settings=settings,
            trainer_params=sections["trainer"],
            sampler_params=sections["sampler"],
            verifier_params=sections["verifier"],
            prompt=sections["prompt"],
            paths=paths,
            attempt=attempt,
            problems=problems,
            too_long=too_long,
            held_out=held_out,
            tokenizer=tokenizer,
            teacher_folder=teacher,
            run=run,
        )
        # Two cases with one body: a fingerprint matches a case by one class, and counts `A() | B()` for every loop.
        match chosen("rl.loop", params.loop):
            case SynchronousLoop():
                with quick_imports():
                    from stages.rl_round.loop.in_process import run_in_process

                run_in_process(this_round)
            case ReplayLoop():
                with quick_imports():
                    from stages.rl_round.loop.in_process import run_in_process

                run_in_process(this_round)
            case AsynchronousLoop() as loop:
                from stages.rl_round.asynchronous.round import run_asynchronous_round

                run_asynchronous_round(this_round, loop)


def _teacher(name: str, tokenizer) -> Path:
    """Returns the folder of the round's teacher; UserError when there is none, or when it has another vocabulary."""
    folder = Path(TEACHERS) / name / "policy"
    if not folder.exists():
        raise UserError(f"{folder} does not exist: `dvc repro` makes it of the policy that `teachers.{name}` names")
    if load_tokenizer(folder).get_vocab() != tokenizer.get_vocab():
        raise UserError(
            f"the policy that `teachers.{name}` names has another tokenizer than rl_rounds.{name}.start_from, so its "
            "log-probs are of other tokens: name one of the same base"
        )
    return folder


def _recorded(job: Job, params: RlParams) -> dict[str, Path]:
    """Returns the files that a replay reads; empty for other loops. UserError when the round would overwrite them."""
    if not isinstance(params.loop, ReplayLoop):
        return {}
    schedule = find_schedule(Path(params.loop.schedule), job.item)
    rollouts = find_rollouts(schedule, job.item)
    # Started by hand, outputs still exist at the start: the round would read the schedule that it replaces at its end.
    read = {job.paths.schedule.resolve(): schedule.parent, job.paths.rollouts.resolve(): rollouts}
    for output, file in read.items():
        if file.resolve() == output:
            raise UserError(
                f"rl.loop.schedule {params.loop.schedule} reads {file}, which this round writes: copy schedule and "
                "rollouts to another folder and name the copy"
            )
    return {"schedule": schedule, "rollouts": rollouts}


def _refuse_contradictions(
    paths: Namespace, params: RlParams, settings: RoundParams, sections: Mapping[str, Any]
) -> None:
    # `retrace use` rejects the same settings, but the parameter file may have been edited since.
    lines = [
        *section_contradictions(params, sections),
        *reward_contradictions(params),
        *round_contradictions(params, settings.steps, sections["prompt"]),
    ]
    if lines:
        raise UserError(f"{paths.params} is not usable:\n" + "\n".join(f"  {line}" for line in lines))


def _marks(prompt: PlainPrompt | ChatPrompt, verifier: VerifierParams) -> dict[str, str]:
    """Returns the texts that verifier and environment look for in a response, by the parameter that sets each."""
    marks = {}
    if verifier.thought:
        marks |= {f"verifier.thought.{name}": mark for name, mark in verifier.thought.model_dump().items()}
    if isinstance(prompt.environment, ToolsEnvironment) and isinstance(prompt.environment.calls, MarkedCalls):
        calls = prompt.environment.calls
        marks |= {"prompt.environment.calls.call": calls.call, "prompt.environment.calls.answer": calls.answer}
    return marks


def _refuse_large_distributions(params: RlParams, vocabulary: int) -> None:
    kept = params.rollout_distributions
    if kept is None:
        return
    # Assumes that every response is as long as allowed: otherwise the round could run out of memory in the middle.
    tokens = params.problems_per_step * params.group_size * params.max_response_tokens
    kept_columns = 2 * params.likeliest or vocabulary  # an id takes as much as a log-prob
    gib = tokens * kept_columns * BYTES_OF_A_LOGPROB / 2**30
    if gib > kept.max_gib:
        raise UserError(
            f"rl.study.rollout_distributions may need {gib:.2g} GiB for a batch ({tokens} tokens over a "
            f"vocabulary of {vocabulary}), more than max_gib {kept.max_gib} allows: raise it, lower "
            "rl.problems_per_step, rl.group_size or rl.max_response_tokens, or set rl.rollout_correction.divergence "
            "sampled and leave rl.study.rollout_distributions out"
        )


def _problems_of_round(job: Job, params: RlParams, settings: RoundParams, tokenizer) -> tuple[list[Problem], int]:
    """Returns this round's slice of the problem table, and the number of its problems that do not fit.

    UserError when the slice cannot fill a step.
    """
    path = job.paths.problems
    frame = require_rows(read_table(path, PROBLEM), path, "loosen the rules of curate or filter_web")
    if settings.sources is not None:
        # Before slicing, so that rounds with the same sources and different slices share no problem.
        frame = frame[frame["source"].isin(settings.sources)]
    columns = FUNCTION_COLUMNS if function_rewards(params.reward) else ()
    problems = _encoded(frame.to_dict("records"), job, tokenizer, columns)
    problems = slice_problems(problems, settings.problem_slice, job.seed)
    # After slicing, so that a different limit moves no problem into another round.
    room = _room(job, params)
    too_long = [problem.problem_id for problem in problems if len(problem.prompt) > room]
    if too_long:
        problems = [problem for problem in problems if len(problem.prompt) <= room]
        say(
            f"{job.item}: {len(too_long)} problems are left out, as their prompts have more than {room} tokens and a "
            f"response may have {params.max_response_tokens}: {', '.join(too_long[:PROBLEMS_NAMED])}"
        )
    if len(problems) < params.problems_per_step:
        named = "" if settings.sources is None else f" of {', '.join(settings.sources)}"
        raise UserError(
            f"rl_rounds.{job.item}.problem_slice holds {len(problems)} problems{named}, fewer "
            f"than rl.problems_per_step {params.problems_per_step}: use fewer slices or collect more problems"
        )
    return problems, len(too_long)


def _held_out_problems(job: Job, params: RlParams, tokenizer) -> list[Problem]:
    """Returns the first validation problems of curate, as many as `rl.evaluation` sets, without prompts that do not
    fit."""
    path, wanted = job.paths.validation, params.evaluation.problems
    # Web problems were compared with benchmarks but not with this split, so one of them may be in it.
    trained = {normalise_problem(text) for text in read_table(job.paths.problems, PROBLEM)["problem"]}
    rows = [
        row for row in read_table(path, PROBLEM).to_dict("records") if normalise_problem(row["problem"]) not in trained
    ]
    if len(rows) < wanted:
        raise UserError(
            f"{path} has {len(rows)} problems to hold out, fewer than rl.evaluation.problems {wanted}: lower it, or "
            "raise curate.validation_rows"
        )
    return [one for one in _encoded(rows[:wanted], job, tokenizer) if len(one.prompt) <= _room(job, params)]


def _encoded(rows: list[dict[str, Any]], job: Job, tokenizer, columns: Sequence[str] = ()) -> list[Problem]:
    prompt = job.sections["prompt"]
    return [
        Problem(
            row["problem_id"],
            encode_prompt(tokenizer, prompt, text),
            row["answer"],
            {name: row[name] for name in columns},
            problem_columns(prompt, row),
        )
        for row, text in zip(rows, problem_texts(prompt, rows), strict=True)
    ]


def _room(job: Job, params: RlParams) -> float:
    return context_tokens(job.sections["sampler"], job.paths.policy) - params.max_response_tokens
