"""A round in one program: the synchronous loop, or a replay. With `torchrun` every rank runs this."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial

from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.build import drawing_share
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import replace_folder_together
from stages.engines.trainers.training_loop import save_kept
from stages.engines.verifier.verifier import Verifier
from stages.foundations.params import chosen
from stages.rl_round.drawing import CustomRewards, GroupDrawing, RoundVerifier
from stages.rl_round.learners import with_trainer
from stages.rl_round.loop.batch_source import BatchSource, SampledBatches
from stages.rl_round.loop.evaluation import evaluate_if_due, sum_up
from stages.rl_round.loop.round_log import RolloutLog, write_outputs
from stages.rl_round.loop.synchronous import run_synchronous_round
from stages.rl_round.loop.weight_sync import RoundState, SamplerSync, WeightSync
from stages.rl_round.methods import ModelVerifier, ReplayLoop, SynchronousLoop
from stages.rl_round.prompt_selection import delete_pass_counts, select_problems
from stages.rl_round.round import Round


def run_in_process(this_round: Round) -> None:
    """Runs the round and writes its outputs. Rank 0 keeps the rollouts and writes the files."""
    with ExitStack() as stack:
        this_round = with_trainer(this_round)
        stack.callback(this_round.close)
        is_first = this_round.trainer.rank == 0
        log = RolloutLog(this_round) if is_first else None
        match chosen("rl.loop", this_round.params.loop):
            case SynchronousLoop():
                state, known = _sample_and_train(stack, this_round, log)
            case ReplayLoop():
                from stages.rl_round.loop.replayed import open_replay

                # The other ranks do not read the recording: every step sends them their share of it.
                source = open_replay(this_round) if is_first else BatchSource()
                state, known = run_synchronous_round(this_round, source, WeightSync(), log), {}
        # The policy before the metrics: metrics are written last and mark the outputs as complete.
        with replace_folder_together(this_round.trainer, this_round.paths.out) as folder:
            is_current = state.best_step in (None, state.step)
            save_kept(this_round.trainer, Checkpoints(this_round.scratch), folder, is_current)
        if log:
            known |= sum_up(this_round, state.evaluations, state.step)
            write_outputs(this_round, log, state.curve, known, evaluations=state.evaluations)
            # Checkpoints first: after a kill in between, the next attempt finds no state to resume from. The
            # asynchronous loop removes its journal first, for the same reason.
            Checkpoints(this_round.scratch).clear()
            log.clear()
            delete_pass_counts(this_round.scratch)


def _sample_and_train(
    stack: ExitStack, this_round: Round, log: RolloutLog | None
) -> tuple[RoundState, dict[str, float]]:
    """Runs the synchronous loop with a sampler and a verifier in every rank; returns its state and the metrics measured
    before the first step."""
    params, policy, known = this_round.params, this_round.paths.policy, dict[str, float]()
    share = drawing_share(this_round.sampler_params, this_round.trainer)
    sampler = build_sampler(this_round.sampler_params, policy, params.mismatch, this_round.prompt)
    stack.enter_context(closing(sampler))
    # A judge model needs the rules too: it is compared with them.
    verifier: RoundVerifier = stack.enter_context(Verifier(this_round.verifier_params))
    match chosen("rl.verifier", params.verifier):
        case ModelVerifier():
            from stages.rl_round.judging import open_judge

            verifier, known = stack.enter_context(open_judge(this_round, verifier))
            this_round.run.log(known, step=0)
    functions = stack.enter_context(closing(CustomRewards(params.reward, this_round.verifier_params)))
    drawing = GroupDrawing(sampler, verifier, this_round.tokenizer, share, functions)
    # Samples from the policy that the sampler was built with, so it must come before training.
    this_round, selected = select_problems(this_round, drawing)
    source, weights = SampledBatches(this_round, drawing), SamplerSync(this_round, sampler)
    evaluate = partial(evaluate_if_due, this_round=this_round, drawing=drawing)
    return run_synchronous_round(this_round, source, weights, log, evaluate), known | selected
