"""A round in one program: the synchronous loop, or a replay. With `torchrun` every rank runs this."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from stages.engines.policies.language_model import language_model
from stages.engines.policies.reference import ReferencePolicy
from stages.engines.replicas.build import build_sampler
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import replace_folder_together
from stages.engines.verifier.verifier import Verifier
from stages.foundations.params import chosen
from stages.rl_round.loop.batch_source import ReceivedBatches, RolloutParts, SampledBatches
from stages.rl_round.loop.context import RoundContext
from stages.rl_round.loop.outputs import identity_of, write_outputs
from stages.rl_round.loop.round_checkpoints import RoundState
from stages.rl_round.loop.round_log import RolloutLog, SilentLog
from stages.rl_round.loop.synchronous import run_synchronous_round
from stages.rl_round.loop.weight_sync import SamplerSync, SyncWithRankZero
from stages.rl_round.params.drawing import PassRateSelection
from stages.rl_round.params.loop import ReplayLoop, SynchronousLoop
from stages.rl_round.params.update import NoReferenceKl
from stages.rl_round.params.verifier import ModelVerifier
from stages.rl_round.rollouts.prompt_selection import (
    PassCount,
    count_passes,
    forget_passes,
    select_by_pass_rate,
    selection_metrics,
)
from stages.rl_round.rollouts.records import Problem
from stages.rl_round.rollouts.round_verifier import RoundVerifier
from stages.rl_round.task import RoundTask


def run_in_process(task: RoundTask) -> None:
    """Runs the round and writes its outputs."""
    params, trainer_params = task.params, task.sections["trainer"]
    with ExitStack() as stack:
        model = language_model(task.paths.policy, trainer_params)
        trainer = stack.enter_context(
            closing(build_trainer(trainer_params, params.optimizer, params.max_gradient_norm, model))
        )
        reference = None
        if not isinstance(params.reference_kl, NoReferenceKl):
            reference = stack.enter_context(
                closing(ReferencePolicy.from_folder(task.paths.policy, trainer_params.dtype, trainer.device))
            )
        tokens, scratch = trainer_params.micro_batch_tokens, task.scratch
        context = RoundContext(
            params, task.round, task.name, task.seed, tokens, trainer, reference, scratch, task.run
        )
        if trainer.rank == 0:
            _lead(stack, task, context)
        else:
            _follow(task, context)


def _lead(stack: ExitStack, task: RoundTask, context: RoundContext) -> None:
    """Rank 0's side: it runs the round, keeps the rollouts, and writes what the round has made."""
    log = RolloutLog(context)
    match chosen("rl.loop", context.params.loop):
        case SynchronousLoop():
            state, known = _sample_and_train(stack, task, context, log)
        case ReplayLoop():
            from stages.rl_round.loop.replayed import NoWeightSync, open_replay

            recorded = task.attempt.inputs["schedule"], task.attempt.inputs["rollouts"]
            source = open_replay(context, *recorded, identity_of(task), task.problems)
            state, known = run_synchronous_round(context, source, NoWeightSync(), log), {}
    _save_policy(task, context)
    write_outputs(task, log, state.curve, known)
    Checkpoints(context.scratch).clear()
    log.clear()
    forget_passes(context.scratch)


def _sample_and_train(
    stack: ExitStack, task: RoundTask, context: RoundContext, log: RolloutLog
) -> tuple[RoundState, dict[str, float]]:
    """The synchronous loop with its sampler and verifier; also what was found before the first step."""
    params, run, known = context.params, context.run, dict[str, float]()
    problems, sections = task.problems, task.sections
    sampler = stack.enter_context(
        closing(build_sampler(sections["sampler"], task.paths.policy, params.mismatch, may_be_virtual=True))
    )
    verifier: RoundVerifier = stack.enter_context(Verifier(sections["verifier"]))
    match chosen("rl.verifier", params.verifier):
        case ModelVerifier() as model:
            from stages.rl_round.rollouts.judging import open_judge

            answers = [problem.answer for problem in problems]
            judged = answers, verifier, context.scratch, context.seed, context.name
            verifier, known = stack.enter_context(open_judge(model, sections, task.paths.policy, *judged))
            run.log(known, step=0)
    parts = RolloutParts(
        problems, sampler, verifier, task.tokenizer, sections["verifier"].abort_undecided_fraction
    )
    if isinstance(context.round.prompt_selection, PassRateSelection):
        kept, selected = _select(context, problems, _count_passes(context, parts))
        parts, known = replace(parts, problems=kept), known | selected
        run.log(selected, step=0)
    source, weights = SampledBatches(context, parts), SamplerSync(context, sampler, parts.problems)
    return run_synchronous_round(context, source, weights, log), known


def _follow(task: RoundTask, context: RoundContext) -> None:
    """The side of every other rank: it trains its share."""
    source = ReceivedBatches(context)
    match chosen("rl.loop", context.params.loop):
        case SynchronousLoop():
            if isinstance(context.round.prompt_selection, PassRateSelection):
                _select(context, task.problems, counts=None)
            run_synchronous_round(context, source, SyncWithRankZero(context), SilentLog())
        case ReplayLoop():
            from stages.rl_round.loop.replayed import NoWeightSync

            run_synchronous_round(context, source, NoWeightSync(), SilentLog())
    _save_policy(task, context)


def _save_policy(task: RoundTask, context: RoundContext) -> None:
    with replace_folder_together(context.trainer, task.paths.out) as folder:
        context.trainer.save_model(folder)


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
