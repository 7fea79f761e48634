"""Wires the `rl_round` stage: a policy and problems in; the next policy, its rollouts, metrics and curves out."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from stages.engines.policies.language_model import language_model
from stages.engines.policies.policy_folders import encode_prompt, load_tokenizer
from stages.engines.policies.reference import ReferencePolicy
from stages.engines.samplers.build import build_sampler
from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainerParams
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.attempt import attempt_at
from stages.foundations.errors import UserError
from stages.foundations.metrics import write_curves, write_metrics
from stages.foundations.params import chosen, load_section, load_value
from stages.foundations.prompts import PromptParams
from stages.foundations.tables.problem import PROBLEM
from stages.foundations.tables.rollout import ROLLOUT
from stages.foundations.tables.table import read_table, require_rows, write_table
from stages.observe.tracking import track
from stages.rl_round.loop.batch_source import ReceivedBatches, RolloutParts, SampledBatches
from stages.rl_round.loop.context import RoundContext
from stages.rl_round.loop.round_log import RolloutLog, SilentLog
from stages.rl_round.loop.synchronous import run_synchronous_round
from stages.rl_round.loop.weight_sync import SamplerSync, SyncWithRankZero
from stages.rl_round.params.drawing import PassRateSelection
from stages.rl_round.params.loop_contradictions import process_contradictions
from stages.rl_round.params.rl import RlParams, RoundParams, sampler_contradictions
from stages.rl_round.params.update import NoReferenceKl
from stages.rl_round.params.verifier import ModelVerifier
from stages.rl_round.rollouts.dynamic_sampling import slice_problems
from stages.rl_round.rollouts.prompt_selection import (
    PassCount,
    count_passes,
    forget_passes,
    select_by_pass_rate,
    selection_metrics,
)
from stages.rl_round.rollouts.records import Problem
from stages.rl_round.rollouts.round_verifier import RoundVerifier

BYTES_OF_A_LOGPROB = 4


def run_rl_round(paths: Namespace) -> None:
    """Reads the inputs, runs the round and writes the outputs, metrics last."""
    params = load_section(paths.params, "rl", RlParams)
    this_round = load_section(paths.params, f"rl_rounds.{paths.round}", RoundParams)
    sections = {name: load_section(paths.params, name, model) for name, model in _SHARED.items()}
    _refuse_contradictions(paths, params, sections)
    seed = load_value(paths.params, "seed")
    settings = {"rl": params.model_dump(), "round": this_round.model_dump()}
    settings |= {name: section.model_dump() for name, section in sections.items()}
    inputs = {"policy": paths.policy, "problems": paths.problems}
    tokenizer = load_tokenizer(paths.policy)
    problems = _problems_of_round(paths, params, this_round, sections["prompt"], tokenizer, seed)
    _refuse_large_distributions(params, len(tokenizer))
    trainer_params = sections["trainer"]
    with ExitStack() as stack:
        trainer = stack.enter_context(
            closing(
                build_trainer(
                    trainer_params,
                    params.optimizer,
                    params.max_gradient_norm,
                    language_model(paths.policy, trainer_params),
                )
            )
        )
        attempt = attempt_at("rl_round", settings, inputs, seed=seed, policy=paths.round, round=paths.round)
        run = stack.enter_context(track(attempt))
        reference = None
        if not isinstance(params.reference_kl, NoReferenceKl):
            reference = stack.enter_context(
                closing(ReferencePolicy.from_folder(paths.policy, trainer_params.dtype, trainer.device))
            )
        tokens = trainer_params.micro_batch_tokens
        context = RoundContext(
            params, this_round, paths.round, seed, tokens, trainer, reference, attempt.scratch, run
        )
        if trainer.rank == 0:
            _lead(stack, paths, context, sections, problems, tokenizer)
        else:
            _follow(paths, context, problems)


def _lead(
    stack: ExitStack,
    paths: Namespace,
    context: RoundContext,
    sections: Mapping[str, Any],
    problems: Sequence[Problem],
    tokenizer: object,
) -> None:
    """Rank 0's side: it samples, judges, keeps the rollouts, and writes what the round has made."""
    params, run, known = context.params, context.run, dict[str, float]()
    sampler = stack.enter_context(closing(build_sampler(sections["sampler"], paths.policy, params.mismatch)))
    verifier: RoundVerifier = stack.enter_context(Verifier(sections["verifier"]))
    match chosen("rl.verifier", params.verifier):
        case ModelVerifier() as model:
            from stages.rl_round.rollouts.judging import open_judge

            answers = [problem.answer for problem in problems]
            judged = answers, verifier, context.scratch, context.seed, context.name
            verifier, known = stack.enter_context(open_judge(model, sections, paths.policy, *judged))
            run.log(known, step=0)
    parts = RolloutParts(
        problems, sampler, verifier, tokenizer, sections["verifier"].abort_undecided_fraction
    )
    if isinstance(context.round.prompt_selection, PassRateSelection):
        kept, selected = _select(context, problems, _count_passes(context, parts))
        parts, known = replace(parts, problems=kept), known | selected
        run.log(selected, step=0)
    log = RolloutLog(context)
    source, weights = SampledBatches(context, parts), SamplerSync(context, sampler, parts.problems)
    state = run_synchronous_round(context, source, weights, log)
    _save_policy(paths, context.trainer)
    frame = log.frame()
    metrics = round_metrics(state.curve) | known
    metrics |= {"rollouts/drawn": len(frame), "rollouts/trained": int(frame["is_trained"].sum())}
    write_table(frame, paths.rollouts, ROLLOUT)
    write_curves(paths.curves, state.curve)
    run.summary(metrics)
    write_metrics(paths.metrics, metrics, {paths.headline: {"accuracy": "accuracy/mean_last"}})
    Checkpoints(context.scratch).clear()
    log.clear()
    forget_passes(context.scratch)


def _follow(paths: Namespace, context: RoundContext, problems: Sequence[Problem]) -> None:
    """The side of every other rank: it trains its share."""
    if isinstance(context.round.prompt_selection, PassRateSelection):
        _select(context, problems, counts=None)
    source, weights = ReceivedBatches(context), SyncWithRankZero(context)
    run_synchronous_round(context, source, weights, SilentLog())
    _save_policy(paths, context.trainer)


def _save_policy(paths: Namespace, trainer: Trainer) -> None:
    with replace_folder_together(trainer, paths.out) as folder:
        trainer.save_model(folder)


_SHARED = {
    "trainer": TrainerParams,
    "sampler": SamplerParams,
    "verifier": VerifierParams,
    "prompt": PromptParams,
}


def _refuse_contradictions(paths: Namespace, params: RlParams, sections: Mapping[str, Any]) -> None:
    found = sampler_contradictions(params, sections["sampler"])
    found += process_contradictions(params, sections["sampler"], sections["trainer"])
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


def _problems_of_round(
    paths: Namespace, params: RlParams, this_round: RoundParams, prompt: PromptParams, tokenizer, seed: int
) -> list[Problem]:
    """This round's slice of the problem table. UserError when it cannot fill a step."""
    frame = require_rows(
        read_table(paths.problems, PROBLEM), paths.problems, "loosen the rules of curate or filter_web"
    )
    problems = [
        Problem(row["problem_id"], encode_prompt(tokenizer, prompt, row["problem"]), row["answer"])
        for row in frame.to_dict("records")
    ]
    problems = slice_problems(problems, this_round.problem_slice, seed)
    if len(problems) < params.problems_per_step:
        raise UserError(
            f"rl_rounds.{paths.round}.problem_slice holds {len(problems)} problems, fewer than rl.problems_per_step "
            f"{params.problems_per_step}: use fewer slices or collect more problems"
        )
    return problems


def _count_passes(context: RoundContext, parts: RolloutParts) -> list[PassCount]:
    """Asks the policy that the sampler was built with: it must come before learning."""
    with context.run.phase("select"):
        return count_passes(
            parts.problems,
            context.round.prompt_selection.samples,
            context.params,
            parts.sampler,
            parts.verifier,
            parts.tokenizer,
            context.scratch,
            context.seed,
            context.name,
        )


def _select(
    context: RoundContext, problems: Sequence[Problem], counts: list[PassCount] | None
) -> tuple[list[Problem], dict[str, float]]:
    """The problems that `prompt_selection` keeps, and what is to be told about them; collective.

    Rank 0 brings the counts. Every rank selects, so that all of them stop where too few problems are left.
    """
    counts = context.trainer.broadcast(counts)
    kept = select_by_pass_rate(
        problems, counts, context.round.prompt_selection, context.params.problems_per_step
    )
    return kept, selection_metrics(counts, len(kept))


MEAN_DIAGNOSTICS = (
    "advantage/variance",
    "importance/effective_sample_fraction",
    "logprob_gap/k3",
    "logprob_gap/mean",
    "mask/fraction_dropped",
    "optim/gradient_norm",
    "pruning/outside_fraction",
    "reference_kl/k3",
    "repetition/token_fraction",
    "trust_region/acceptance_rate",
    "trust_region/error_bound",
    "verdict/false_correct_fraction",
    "verdict/false_wrong_fraction",
    "verdict/rule_agreement_fraction",
    "variance_proxy/noise",
    "variance_proxy/power",
)


def round_metrics(curve: list[dict[str, float]]) -> dict[str, float]:
    """`<name>_first` and `<name>_last` of what a round should move, means of diagnostics, the worst gap, and totals."""
    moved = (
        "accuracy/mean",
        "reward/mean",
        "entropy/mean",
        "length/response_tokens_mean",
        "length/truncated_fraction",
    )
    metrics = {f"{name}_first": curve[0][name] for name in moved if name in curve[0]}
    metrics |= {f"{name}_last": curve[-1][name] for name in moved if name in curve[-1]}
    for name in MEAN_DIAGNOSTICS:
        values = [row[name] for row in curve if name in row]
        metrics |= {f"{name}_mean": sum(values) / len(values)} if values else {}
    for worst in ("logprob_gap/token_max", "sync/logprob_gap_max", "verdict/undecided_fraction"):
        metrics[worst] = max(row.get(worst, 0.0) for row in curve)
    for total in ("groups/drawn", "groups/trained", "groups/too_stale", "tokens/sampled", "tokens/trained"):
        metrics[total] = sum(row[total] for row in curve)
    metrics["progress/steps"] = len(curve)
    metrics["progress/steps_without_update"] = sum("loss/policy" not in row for row in curve)
    return metrics
