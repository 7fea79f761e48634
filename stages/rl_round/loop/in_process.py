"""A round in one program: the synchronous loop, or a replay. With `torchrun` every rank runs this."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing

from stages.engines.policies.language_model import ReferencePolicy, language_model
from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.build import drawing_share
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import replace_folder_together
from stages.engines.verifier.verifier import Verifier
from stages.foundations.params import chosen
from stages.rl_round.loop.batch_source import BatchSource, NoBatches, RolloutParts, SampledBatches
from stages.rl_round.loop.round_log import RolloutLog, RoundLog, SilentLog, identity_of, write_outputs
from stages.rl_round.loop.synchronous import run_synchronous_round
from stages.rl_round.loop.weight_sync import RoundState, SamplerSync
from stages.rl_round.methods import ModelVerifier, NoReferenceKl, PassRateSelection, ReplayLoop, SynchronousLoop
from stages.rl_round.rollouts.dynamic_sampling import (
    count_passes,
    forget_passes,
    select_by_pass_rate,
    selection_metrics,
)
from stages.rl_round.rollouts.group_drawing import GroupDrawing, RoundVerifier
from stages.rl_round.rollouts.records import Problem
from stages.rl_round.task import RoundContext, RoundTask


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
        context = RoundContext(params, task.round, task.name, task.seed, tokens, trainer, reference, scratch, task.run)
        _run(stack, task, context)


def _run(stack: ExitStack, task: RoundTask, context: RoundContext) -> None:
    """The round; rank 0 keeps the rollouts, and writes what the round has made."""
    is_first = context.trainer.rank == 0
    log = RolloutLog(context) if is_first else SilentLog()
    match chosen("rl.loop", context.params.loop):
        case SynchronousLoop():
            state, known = _sample_and_train(stack, task, context, log)
        case ReplayLoop():
            from stages.rl_round.loop.replayed import NoWeightSync, open_replay

            source: BatchSource = NoBatches()
            if is_first:
                recorded = task.attempt.inputs["schedule"], task.attempt.inputs["rollouts"]
                source = open_replay(context, *recorded, identity_of(task), task.problems)
            state, known = run_synchronous_round(context, source, NoWeightSync(), log), {}
    with replace_folder_together(context.trainer, task.paths.out) as folder:
        context.trainer.save_model(folder)
    if is_first:
        write_outputs(task, log, state.curve, known)
        Checkpoints(context.scratch).clear()
        log.clear()
        forget_passes(context.scratch)


def _sample_and_train(
    stack: ExitStack, task: RoundTask, context: RoundContext, log: RoundLog
) -> tuple[RoundState, dict[str, float]]:
    """The synchronous loop with a sampler and a verifier in every rank; also what was found before the first step."""
    params, run, known = context.params, context.run, dict[str, float]()
    problems, sections = task.problems, task.sections
    share = drawing_share(sections["sampler"], context.trainer)
    sampler = stack.enter_context(closing(build_sampler(sections["sampler"], task.paths.policy, params.mismatch)))
    verifier: RoundVerifier = stack.enter_context(Verifier(sections["verifier"]))
    match chosen("rl.verifier", params.verifier):
        case ModelVerifier() as model:
            from stages.rl_round.rollouts.judging import open_judge

            answers = [problem.answer for problem in problems]
            judged = answers, verifier, context.scratch, context.seed, context.name
            verifier, known = stack.enter_context(open_judge(model, sections, task.paths.policy, *judged))
            run.log(known, step=0)
    drawing = GroupDrawing(sampler, verifier, task.tokenizer, share)
    if isinstance(context.round.prompt_selection, PassRateSelection):
        problems, selected = _select(context, problems, drawing)
        known = known | selected
        run.log(selected, step=0)
    parts = RolloutParts(problems, drawing, sections["verifier"].abort_undecided_fraction)
    source, weights = SampledBatches(context, parts), SamplerSync(context, sampler, problems)
    return run_synchronous_round(context, source, weights, log), known


def _select(
    context: RoundContext, problems: Sequence[Problem], drawing: GroupDrawing
) -> tuple[list[Problem], dict[str, float]]:
    """The problems that `prompt_selection` keeps, and what is to be told about them; collective.

    Asks the policy that the sampler was built with: it must come before learning. Every rank selects, so that all of
    them stop where too few problems are left.
    """
    selection = context.round.prompt_selection
    with context.run.phase("select"):
        counts = count_passes(
            problems, selection.samples, context.params, drawing, context.scratch, context.seed, context.name
        )
    counts = context.trainer.broadcast(counts)
    kept = select_by_pass_rate(problems, counts, selection, context.params.problems_per_step)
    return kept, selection_metrics(counts, len(kept))
