"""An asynchronous round: starts the processes around the hub, resumes an earlier attempt, and writes the outputs.

This process is the hub and imports no torch. Replicas, relays and the trainer are Ray's, on this machine or on the
cluster at RAY_ADDRESS; they end with it.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from pathlib import Path

from stages.engines.distributed.ray_session import ray_session, this_node, total_gpus
from stages.engines.pieces import are_whole, remove_piece, seal
from stages.engines.relays.relay import RelayChain
from stages.engines.replicas.fleet import Fleet, gpus_each, spec_of
from stages.engines.replicas.replicated_sampler import PACKAGES, ReplicatedSampler
from stages.engines.samplers.build import DrawingShare
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.one_rank import OneRank
from stages.engines.verifier.verifier import Verifier
from stages.foundations.files import replace_folder
from stages.observe.progress import say
from stages.rl_round.asynchronous.coordinator import Coordinator
from stages.rl_round.asynchronous.hub import Hub, Judge, NodeVersions, round_totals
from stages.rl_round.asynchronous.journal import Journal, Stepped, record_from_json, record_to_json
from stages.rl_round.asynchronous.timeline import Timeline
from stages.rl_round.asynchronous.trainers import Trainers
from stages.rl_round.drawing import CustomRewards, GroupDrawing
from stages.rl_round.loop.evaluation import sum_up
from stages.rl_round.loop.round_log import RolloutLog, write_outputs
from stages.rl_round.methods import AsynchronousLoop, PassRateSelection
from stages.rl_round.prompt_selection import delete_pass_counts, select_problems
from stages.rl_round.round import Round

TIMELINE = "timeline.json"


def run_asynchronous_round(this_round: Round, loop: AsynchronousLoop) -> None:
    """Runs the round and writes its outputs.

    UserError when Ray cannot start, when the replicas or a version of the weights do not fit, or when a process dies
    repeatedly. Finished work is kept for the next attempt.
    """
    log = RolloutLog(this_round)
    with Journal(this_round.scratch / "journal") as journal:
        _run_from(journal, log, this_round, loop)
        # Only when every process has ended: until then, the outputs must be reproducible after a kill.
        # The journal first: the next attempt clears remains without a journal. The loops in one program have no
        # journal; there the checkpoints go first, without which no attempt reads the other files.
        journal.clear()
        _clear_but_journal(this_round.scratch, log)
        delete_pass_counts(this_round.scratch)


def _run_from(journal: Journal, log: RolloutLog, this_round: Round, loop: AsynchronousLoop) -> None:
    scratch, sampler, replicas = this_round.scratch, this_round.sampler_params, this_round.sampler_params.replicas
    policy = this_round.paths.policy
    with ExitStack() as stack:
        verifier = stack.enter_context(Verifier(this_round.verifier_params))
        functions = stack.enter_context(closing(CustomRewards(this_round.params.reward, this_round.verifier_params)))
        # Ray begins before anything that lives in it, so it ends last: the exit stack unwinds in reverse.
        run = stack.enter_context(ray_session(replicas.count * getattr(sampler, "threads", 1), PACKAGES))
        known = {}
        if isinstance(this_round.settings.prompt_selection, PassRateSelection):
            with closing(ReplicatedSampler(sampler, policy, this_round.prompt)) as drawing_sampler:
                judges = verifier, this_round.tokenizer, DrawingShare(OneRank()), functions
                drawing = GroupDrawing(drawing_sampler, *judges)
                this_round, known = select_problems(this_round, drawing)
        # Selected already: the coordinator numbers its groups over the remaining problems.
        coordinator = Coordinator(this_round, loop, lambda record: journal.append(record_to_json(record)))
        records = [record_from_json(stored) for stored in journal.records()]
        taken = coordinator.restore(records)
        curve = [record.row for record in records if isinstance(record, Stepped)]
        if records:
            say(f"rl_round: resuming from step {len(curve)}, with {len(coordinator.groups)} groups under way")
        else:
            # An attempt was killed during cleanup, after writing its outputs: its checkpoints belong to no journal.
            _clear_but_journal(scratch, log)
        # Only steps that the journal marks as done: the batch after them is trained on again, and logged then.
        log.restore(one.batch for one in taken[: len(curve)])
        are_whole(scratch / TIMELINE)  # removes a damaged one: the timeline then starts here
        timeline = Timeline.resumed(scratch / TIMELINE, time.time())
        is_cluster = "RAY_ADDRESS" in os.environ
        chain = stack.enter_context(closing(RelayChain(run, loop.relay.keep, loop.stalled_seconds, is_cluster)))
        versions = NodeVersions(run, this_node(), chain)
        batches = {one.step: one for one in taken}
        gpus = gpus_each(sampler, replicas.count, loop.trainer_ranks, total_gpus())
        is_on_cpu = getattr(this_round.trainer_params, "device", "auto") == "cpu"
        # Each rank gets as much of a GPU as a replica, at most one; all available ones where replicas use none.
        of_trainer = 0.0 if is_on_cpu else min(1.0, gpus or total_gpus())
        trainers = Trainers(this_round, versions.folder, loop.trainer_ranks, of_trainer, batches, len(curve))
        # The trainer starts before the replicas: they cannot generate until it has published a version.
        stack.enter_context(closing(trainers))
        spec = spec_of(sampler, policy, run, gpus, prompt=this_round.prompt)
        fleet = Fleet(spec, replicas.count, loop.stalled_seconds, loop.report_seconds)
        stack.enter_context(closing(fleet))
        judge = stack.enter_context(Judge(verifier, this_round.tokenizer, this_round.params, functions))
        hub = Hub(
            this_round=this_round,
            coordinator=coordinator,
            fleet=fleet,
            versions=versions,
            trainers=trainers,
            judge=judge,
            journal=journal,
            log=log,
            timeline=timeline,
            timeline_path=scratch / TIMELINE,
            batches=batches,
            curve=curve,
        )
        hub.run()
        # Training is complete. The processes are still up, because the trainer writes the policy.
        log.finish(len(curve), coordinator.leftover())
        with replace_folder(this_round.paths.out) as folder:
            hub.save_model(folder)
        # Written before the outputs: the schedule's folder takes a copy of it.
        timeline.write(scratch / TIMELINE)
        seal(scratch / TIMELINE)
        known |= round_totals(curve) | sum_up(this_round, trainers.evaluations, len(curve))
        write_outputs(this_round, log, curve, known, scratch / TIMELINE, evaluations=trainers.evaluations)


def _clear_but_journal(scratch: Path, log: RolloutLog) -> None:
    Checkpoints(scratch).clear()
    log.clear()
    remove_piece(scratch / TIMELINE)
