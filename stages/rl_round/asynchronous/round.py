"""An asynchronous round: starts the processes around the hub, goes on from what an earlier attempt has left, writes.

This process is the hub and imports no torch. Replicas, relays and the trainer are Ray's, on this machine or on the
cluster at RAY_ADDRESS; they end with it.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from stages.engines.distributed.ray_session import ray_session, this_node, total_gpus
from stages.engines.pieces import are_whole, remove_piece, seal
from stages.engines.relays.relay import RelayChain
from stages.engines.replicas.fleet import Fleet, gpus_each, spec_of
from stages.engines.replicas.replicated_sampler import PACKAGES, ReplicatedSampler
from stages.engines.samplers.build import DrawingShare
from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.one_rank import OneRank
from stages.engines.verifier.verifier import Verifier
from stages.foundations.files import replace_folder
from stages.observe.progress import say
from stages.rl_round.asynchronous.coordinator import Coordinator, StepBatch
from stages.rl_round.asynchronous.hub import Hub, HubParts, Judge, NodeVersions
from stages.rl_round.asynchronous.journal import Journal, Record, Stepped, record_from_json, record_to_json
from stages.rl_round.asynchronous.staleness import round_totals
from stages.rl_round.asynchronous.timeline import Timeline
from stages.rl_round.asynchronous.trainers import Trainers
from stages.rl_round.loop.round_log import RolloutLog, write_outputs
from stages.rl_round.methods import AsynchronousLoop, PassRateSelection
from stages.rl_round.rollouts.dynamic_sampling import (
    count_passes,
    forget_passes,
    problems_in_order,
    select_by_pass_rate,
    selection_metrics,
)
from stages.rl_round.rollouts.group_drawing import GroupDrawing, ProblemDraw, RoundVerifier
from stages.rl_round.task import RoundTask, TrainerTask

TIMELINE = "timeline.json"


def run_asynchronous_round(task: RoundTask, loop: AsynchronousLoop) -> None:
    """Runs the round and writes its outputs.

    UserError when Ray cannot start, when the replicas or a version of the weights find no room, or when a process dies
    again and again; what was done until then is kept for the next attempt.
    """
    log = RolloutLog(task)
    with Journal(task.scratch / "journal") as journal:
        _run_from(journal, log, task, loop)
        # Only when every process has ended: until then a kill must find what it takes to write the outputs again.
        journal.clear()  # first: what is left without it is cleared by the next attempt
        _clear_but_journal(task.scratch, log)
        forget_passes(task.scratch)


def _run_from(journal: Journal, log: RolloutLog, task: RoundTask, loop: AsynchronousLoop) -> None:
    """Goes on from the journal, writes the outputs and ends the processes."""
    scratch, sampler = task.scratch, task.sections["sampler"]
    with ExitStack() as stack:
        verifier = stack.enter_context(Verifier(task.sections["verifier"]))
        cpus = sampler.replicas.count * getattr(sampler, "threads", 1)
        run = stack.enter_context(ray_session(cpus, PACKAGES))
        task, known = _with_selected_problems(task, verifier)
        coordinator = _coordinator(task, loop, journal)
        records = [record_from_json(stored) for stored in journal.records()]
        taken, curve = coordinator.restore(records), _curve(records)
        if records:
            say(f"rl_round: going on from step {len(curve)}, with {len(coordinator.buffer)} groups under way")
        else:
            # An attempt that was killed while it cleared up, its outputs written: its checkpoints are of no journal.
            _clear_but_journal(scratch, log)
        log.restore(one.batch for one in taken[: len(curve)])
        are_whole(scratch / TIMELINE)  # removes one that a disk has damaged: the timeline then starts here
        timeline = Timeline.resumed(scratch / TIMELINE, time.time())
        is_cluster = "RAY_ADDRESS" in os.environ
        chain = stack.enter_context(closing(RelayChain(run, loop.relay.keep, loop.stalled_seconds, is_cluster)))
        versions = NodeVersions(run, this_node(), chain)
        batches = {one.step: one for one in taken}
        gpus = gpus_each(sampler, sampler.replicas.count, loop.trainer_ranks, total_gpus())
        own = 0.0 if getattr(task.sections["trainer"], "device", "auto") == "cpu" else min(1.0, gpus or total_gpus())
        trainers = _trainers(task, loop, own, versions.folder, batches, len(curve))
        stack.enter_context(closing(trainers))
        spec = spec_of(sampler, task.paths.policy, run, gpus)
        fleet = Fleet(spec, sampler.replicas.count, loop.stalled_seconds, loop.report_seconds)
        stack.enter_context(closing(fleet))
        judge = stack.enter_context(Judge(verifier, task.tokenizer, task.params))
        hub = Hub(
            HubParts(
                name=task.name,
                steps=task.round.steps,
                checkpoint_every=task.params.checkpoint_every_steps,
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
        )
        curve = hub.run()
        log.finish(task.round.steps, coordinator.leftover())
        with replace_folder(task.paths.out) as folder:
            trainers.save_model(folder)
        timeline.write(scratch / TIMELINE)
        seal(scratch / TIMELINE)
        write_outputs(task, log, curve, known | round_totals(curve), scratch / TIMELINE)


def _clear_but_journal(scratch: Path, log: RolloutLog) -> None:
    Checkpoints(scratch).clear()
    log.clear()
    remove_piece(scratch / TIMELINE)


def _with_selected_problems(task: RoundTask, verifier: RoundVerifier) -> tuple[RoundTask, dict[str, float]]:
    """The task with the problems that `prompt_selection` keeps, and what is to be told of them."""
    selection = task.round.prompt_selection
    if not isinstance(selection, PassRateSelection):
        return task, {}
    with task.run.phase("select"), closing(ReplicatedSampler(task.sections["sampler"], task.paths.policy)) as sampler:
        drawing = GroupDrawing(sampler, verifier, task.tokenizer, DrawingShare(OneRank()))
        asked = task.problems, selection.samples, task.params, drawing, task.scratch
        counts = count_passes(*asked, task.seed, task.name)
    kept = select_by_pass_rate(task.problems, counts, selection, task.params.problems_per_step)
    told = selection_metrics(counts, len(kept))
    task.run.log(told, step=0)
    return replace(task, problems=kept), told


def _coordinator(task: RoundTask, loop: AsynchronousLoop, journal: Journal) -> Coordinator:
    sampler: SamplerParams = task.sections["sampler"]
    seed_parts = task.seed, task.name

    def draw_of(number: int) -> ProblemDraw:
        return problems_in_order(task.problems, number, 1, *seed_parts)[0]

    def write(record: Record) -> None:
        journal.append(record_to_json(record))

    longest_prompt = max(len(problem.prompt) for problem in task.problems)
    kv_capacity = sampler.max_sequences * (longest_prompt + task.params.max_response_tokens)
    replicas = sampler.replicas.count
    fraction = task.sections["verifier"].abort_undecided_fraction
    return Coordinator(task.params, loop, task.round.steps, replicas, kv_capacity, seed_parts, fraction, draw_of, write)


def _curve(records: list[Record]) -> list[dict[str, float]]:
    return [record.row for record in records if isinstance(record, Stepped)]


def _trainers(
    task: RoundTask, loop: AsynchronousLoop, gpus: float, weights: Path, batches: dict[int, StepBatch], steps_known: int
) -> Trainers:
    every, steps = task.params.checkpoint_every_steps, task.round.steps
    trainer_task = TrainerTask(
        rl=task.params,
        round=task.round,
        name=task.name,
        seed=task.seed,
        trainer=task.sections["trainer"],
        policy=task.paths.policy.resolve(),
        scratch=task.scratch,
        weights=weights,
    )
    return Trainers(
        trainer_task,
        loop.trainer_ranks,
        gpus,
        steps_known,
        batch_of=lambda step: batches[step].batch,
        saves=lambda step: (step + 1) % every == 0 and step + 1 < steps,
    )
