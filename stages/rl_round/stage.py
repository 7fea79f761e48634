"""Wires the `rl_round` stage: a policy and problems in; the next policy, its rollouts, metrics and curves out."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.engines.policies.policy_folders import encode_prompt, load_tokenizer
from stages.engines.policies.reference import ReferencePolicy
from stages.engines.samplers.build import build_sampler
from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TorchTrainerParams, TrainerParams
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.engines.verifier.model_judge import ModelJudge, WordJudge
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.foundations.metrics import write_curves, write_metrics
from stages.foundations.params import load_section, load_value
from stages.foundations.prompts import PromptParams
from stages.foundations.seeds import derive_seed
from stages.foundations.tables.problem import PROBLEM
from stages.foundations.tables.rollout import ROLLOUT
from stages.foundations.tables.table import read_table, require_rows, write_table
from stages.observe.tracking import Run, track
from stages.rl_round.loop.state import RolloutLog, RoundState
from stages.rl_round.loop.synchronous import Learner, learn
from stages.rl_round.params.drawing import PassRateSelection
from stages.rl_round.params.rl import RlParams, RoundParams, sampler_contradictions
from stages.rl_round.params.update import NoReferenceKl
from stages.rl_round.params.verifier import MadePairs, ModelVerifier
from stages.rl_round.rollouts.dynamic_sampling import slice_problems
from stages.rl_round.rollouts.judging import (
    CheckedJudge,
    build_judge,
    evaluate_judge,
    forget_judge,
    taught_judge,
)
from stages.rl_round.rollouts.prompt_selection import (
    count_passes,
    forget_passes,
    select_by_pass_rate,
    selection_metrics,
)
from stages.rl_round.rollouts.rollouts import Problem

BYTES_OF_A_LOGPROB = 4


def run_rl_round(paths: Namespace) -> None:
    """Reads the inputs, runs the round and writes the outputs, metrics last."""
    params = load_section(paths.params, "rl", RlParams)
    this_round = load_section(paths.params, f"rl_rounds.{paths.round}", RoundParams)
    sections = {name: load_section(paths.params, name, model) for name, model in _SHARED.items()}
    _refuse_contradictions(paths, params, sections["sampler"])
    seed = load_value(paths.params, "seed")
    shown = {"rl": params.model_dump(), "round": this_round.model_dump()}
    shown |= {name: section.model_dump() for name, section in sections.items()}
    inputs = {"policy": paths.policy, "problems": paths.problems}
    tokenizer = load_tokenizer(paths.policy)
    problems = _problems_of_round(paths, params, this_round, sections["prompt"], tokenizer, seed)
    _refuse_large_distributions(params, len(tokenizer))
    trainer_params = sections["trainer"]
    with ExitStack() as stack:
        trainer = stack.enter_context(
            closing(build_trainer(trainer_params, params.optimizer, params.max_gradient_norm, paths.policy))
        )
        run = stack.enter_context(
            track("rl_round", shown, inputs, seed=seed, policy=paths.round, round=paths.round)
        )
        sampler = verifier = reference = None
        known: dict[str, float] = {}
        if not isinstance(params.reference_kl, NoReferenceKl):
            reference = stack.enter_context(
                closing(ReferencePolicy.from_folder(paths.policy, trainer_params.dtype, trainer.device))
            )
        if trainer.rank == 0:
            sampler = stack.enter_context(
                closing(build_sampler(sections["sampler"], paths.policy, params.mismatch))
            )
            verifier = stack.enter_context(Verifier(sections["verifier"]))
            if isinstance(params.verifier, ModelVerifier):
                judge, known = _make_judge(paths, params.verifier, sections, problems, run.scratch, seed)
                verifier = stack.enter_context(CheckedJudge(judge, verifier))
                run.log(known, step=0)
        learner = Learner(
            params,
            this_round,
            paths.round,
            seed,
            trainer_params.micro_batch_tokens,
            sections["verifier"].abort_undecided_fraction,
            problems,
            trainer,
            sampler,
            verifier,
            tokenizer,
            run,
            reference,
        )
        learner, selected = _with_selected_problems(learner)
        _write(paths, trainer, learn(learner), run, known | selected)


_SHARED = {
    "trainer": TrainerParams,
    "sampler": SamplerParams,
    "verifier": VerifierParams,
    "prompt": PromptParams,
}


def _refuse_contradictions(paths: Namespace, params: RlParams, sampler: SamplerParams) -> None:
    found = sampler_contradictions(params, sampler)
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


def _make_judge(
    paths: Namespace,
    params: ModelVerifier,
    sections: Mapping[str, Any],
    problems: Sequence[Problem],
    scratch: Path,
    seed: int,
) -> tuple[ModelJudge | WordJudge, dict[str, float]]:
    """The judge made of the round's starting policy, and what it was found to know."""
    answers, policy, prompt = [problem.answer for problem in problems], paths.policy, sections["prompt"]
    names = seed, paths.round
    if isinstance(params.teaching, MadePairs):
        if not isinstance(sections["trainer"], TorchTrainerParams):
            raise UserError(
                f"rl.verifier.teaching.kind made_pairs trains in one process, and trainer.kind is "
                f"{sections['trainer'].kind}: set trainer.kind torch, or teaching.kind none"
            )
        policy = taught_judge(params.teaching, sections["trainer"], prompt, policy, answers, scratch, *names)
    judge = build_judge(params, sections["sampler"], prompt, policy, derive_seed(*names, "judge"))
    return judge, evaluate_judge(judge, answers, *names)


def _with_selected_problems(learner: Learner) -> tuple[Learner, dict[str, float]]:
    """The learner on the problems that `prompt_selection` keeps, and what is to be told about them; collective.

    Must come before learning: it asks the policy that the sampler was built with.
    """
    selection, params = learner.round.prompt_selection, learner.params
    if not isinstance(selection, PassRateSelection):
        return learner, {}
    counts = None
    if learner.sampler is not None:
        with learner.run.phase("select"):
            counts = count_passes(
                learner.problems,
                selection.samples,
                params,
                learner.sampler,
                learner.verifier,
                learner.tokenizer,
                learner.run.scratch,
                learner.seed,
                learner.name,
            )
    counts = learner.trainer.broadcast(counts)
    kept = select_by_pass_rate(learner.problems, counts, selection, params.problems_per_step)
    metrics = selection_metrics(counts, len(kept))
    learner.run.log(metrics, step=0)
    return replace(learner, problems=kept), metrics


def _write(
    paths: Namespace, trainer: Trainer, state: RoundState, run: Run, selected: dict[str, float]
) -> None:
    with replace_folder_together(trainer, paths.out) as folder:
        trainer.save_policy(folder)
    if trainer.rank != 0:
        return
    rollouts = RolloutLog(run.scratch)
    frame = rollouts.frame()
    metrics = round_metrics(state.curve) | selected
    metrics |= {"rollouts/drawn": len(frame), "rollouts/trained": int(frame["is_trained"].sum())}
    write_table(frame, paths.rollouts, ROLLOUT)
    write_curves(paths.curves, state.curve)
    run.summary(metrics)
    write_metrics(paths.metrics, metrics)
    Checkpoints(run.scratch).clear()
    rollouts.clear()
    forget_passes(run.scratch)
    forget_judge(run.scratch)


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
