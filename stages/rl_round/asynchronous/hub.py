"""The hub: the event loop between replicas, verifier and trainer. It decides nothing itself and waits for nobody.

What happens next is the coordinator's; who is alive is the fleet's and the trainers'; what has happened is the
journal's. A hub that was killed goes on from the journal and the trainer's last checkpoint.

Below the hub: `Judge` asks the verifier in a thread, so that the verifier holds nobody up, and `NodeVersions` knows
which versions of the weights replicas can load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from stages.engines.distributed.ranked_actors import PatientClock
from stages.engines.pieces import seal
from stages.engines.relays.published_weights import PublishedWeights, weights_folder
from stages.engines.relays.relay import Arrived, RelayChain
from stages.engines.replicas.fleet import Died, Fleet, Reported, Stalled, Started
from stages.engines.replicas.replica import Report
from stages.engines.samplers.protocol import Sample
from stages.foundations.errors import UserError
from stages.observe.progress import progress, say
from stages.rl_round.asynchronous.coordinator import Coordinator, StepBatch
from stages.rl_round.asynchronous.journal import Fault, Journal, Stepped, record_to_json
from stages.rl_round.asynchronous.staleness import (
    Faults,
    Repacked,
    buffer_metrics,
    counted_metrics,
    length_metrics,
    relay_metrics,
    replica_metrics,
    staleness_metrics,
    window_metrics,
)
from stages.rl_round.asynchronous.timeline import BATCH_TAKEN, FAULT, MOVED, PUBLISHED, Timeline
from stages.rl_round.asynchronous.trainers import Trainers
from stages.rl_round.asynchronous.trajectory_pool import Name
from stages.rl_round.loop.round_log import RoundLog
from stages.rl_round.methods import BestFitRepack
from stages.rl_round.params import RlParams
from stages.rl_round.rollouts.group_drawing import RoundVerifier, score_samples
from stages.rl_round.rollouts.records import Rollout
from stages.rl_round.task import Trained

POLL_SECONDS = 0.05
"""A turn of the loop waits at most this long for replicas and trainer."""
FLUSH_SECONDS = 1.0
"""The journal holds every token that is older than this."""
STILL_SECONDS = 60.0
"""After so long without any change, and again and again, the log says what the round waits for."""
MOST_STILL_SECONDS = 600.0
"""After so long in which nobody has had anything to do either, the round is given up."""
MOST_FAILED_PROBES = 3
"""Of one replica in a row; as often again after it was replaced, the weights are wrong and not the replica."""


@dataclass
class HubParts:
    """Everything that the hub stands between."""

    name: str
    steps: int
    checkpoint_every: int
    coordinator: Coordinator
    fleet: Fleet
    versions: NodeVersions
    trainers: Trainers
    judge: Judge
    journal: Journal
    log: RoundLog
    timeline: Timeline
    timeline_path: Path
    batches: dict[int, StepBatch] = field(default_factory=dict)
    """Taken, and not yet in a checkpoint."""
    curve: list[dict[str, float]] = field(default_factory=list)


class Hub:
    """Runs one round to its end."""

    def __init__(self, parts: HubParts) -> None:
        self._parts = parts
        self._coordinator, self._fleet, self._timeline = parts.coordinator, parts.fleet, parts.timeline
        self._flushed_at, self._repacked_at, self._started_at = 0.0, 0.0, time.time()
        self._trainer_free_since = self._step_ended_at = time.time()
        self._failed_probes: dict[int, int] = {}
        self._is_training: int | None = None
        self._seen: set[int] = set()
        self._trainer_idle = "start"
        """Why the trainer waits."""
        self._probe_gaps: list[float] = []
        self._arrived: list[Arrived] = []
        """Since the last step."""
        self._clock = PatientClock()
        self._standing, self._changed_at, self._said_at = "", 0.0, 0.0

    def run(self) -> list[dict[str, float]]:
        """The round's curve, a row a step."""
        parts = self._parts
        done = len(parts.curve)
        for _ in progress(self._steps(), parts.steps, parts.name, "steps", done=done, curve=parts.curve):
            self._coordinator.buffer.check_conservation()
        self._wait_for_trainer()
        return parts.curve

    def _wait_for_trainer(self) -> None:
        """Returns when the trainer has the last weights: an earlier attempt may have told of steps, and been killed,
        that the trainer has to repeat from its checkpoint."""
        trainers = self._parts.trainers
        while trainers.steps_done < self._parts.steps:
            trainers.poll()
            time.sleep(POLL_SECONDS)

    def _steps(self) -> Iterator[int]:
        """Each step as it is done."""
        parts, done = self._parts, len(self._parts.curve)
        while done < parts.steps:
            self._order_replicas()
            for event in self._fleet.poll(POLL_SECONDS, parts.trainers.calls):
                self._take_event(event)
            self._take_judged()
            self._train()
            self._keep_up()
            while done < len(parts.curve):
                done += 1
                yield done

    def _order_replicas(self) -> None:
        for replica in self._fleet.started():
            kept = self._parts.versions.of(self._fleet.node(replica))
            if kept:
                orders = self._coordinator.orders(replica, kept[-1], kept)
                if orders is not None:
                    self._fleet.order(replica, orders)

    def _take_event(self, event: Started | Reported | Died) -> None:
        now, process = time.time(), f"replica/{event.replica}"
        match event:
            case Started():
                if event.replica not in self._seen:  # else it was `dead` until now
                    self._seen.add(event.replica)
                    self._timeline.span(process, "start", self._started_at, now)
                self._coordinator.pool.join(event.replica)
            case Reported(replica, report):
                self._take_report(replica, report)
            case Died(replica, reason):
                is_stalled = isinstance(event, Stalled)
                self._timeline.instant(process, FAULT, now, reason=reason)
                self._timeline.span(process, "dead", now, now)
                self._note_fault("stalled" if is_stalled else "died", process, reason)
                self._coordinator.pool.faults.stalled += is_stalled
                self._coordinator.lose(replica, now)

    def _take_report(self, replica: int, report: Report) -> None:
        named = {
            {"idle": "no_prompts", "orders": "unnamed"}.get(name, name): seconds
            for name, seconds in report.seconds.items()
        }
        self._timeline.report(f"replica/{replica}", report.ended_at, named)
        samples = self._coordinator.receive(replica, report)
        if samples:
            answers = {name: self._coordinator.answer_of(name) for name in samples}
            self._parts.judge.ask(answers, samples)
        self._check_pull(replica, report)  # last: it may end the replica

    def _check_pull(self, replica: int, report: Report) -> None:
        """A version that was gone is no fault; weights that are not the trainer's are."""
        if report.pulled is not None:
            self._failed_probes[replica] = 0
            self._probe_gaps.append(report.probe_gap or 0.0)
        if not report.pull_failed or report.version is not None:
            return
        if not self._parts.versions.of(self._fleet.node(replica)):
            return
        failed = self._failed_probes[replica] = self._failed_probes.get(replica, 0) + 1
        say(f"{self._parts.name}: replica {replica} could not take weights: {report.pull_failed}")
        if failed == MOST_FAILED_PROBES:
            self._take_event(self._fleet.end(replica, report.pull_failed))
        elif failed > 2 * MOST_FAILED_PROBES:
            raise UserError(
                f"{self._parts.name}: no replica agrees with the trainer's weights ({report.pull_failed}). They run at "
                "a precision that rl.weight_sync_check.max_logprob_gap is too tight for, or hold other weights"
            )

    def _take_judged(self) -> None:
        judged = self._parts.judge.judged()
        if judged:
            self._coordinator.write_judged(judged)
            self._parts.journal.flush()  # before anything counts it
            self._coordinator.judged(judged, time.time())

    def _train(self) -> None:
        parts, trainers = self._parts, self._parts.trainers
        restarts = trainers.restarts
        trained = trainers.poll()
        if trainers.restarts > restarts:
            self._timeline.instant("trainer", FAULT, time.time(), reason="lost")
            self._trainer_free_since, self._trainer_idle = time.time(), "dead"
            self._note_fault("died", "trainer", "lost")
        if trained:
            self._note_trained(trained)
        if self._is_training is None and trainers.is_up:
            taken = parts.batches.get(len(parts.curve)) or self._coordinator.next_batch(time.time())
            if taken:
                parts.journal.flush()
                parts.batches[taken.step] = taken
                self._is_training = taken.step
                self._timeline.instant("hub", BATCH_TAKEN, time.time(), step=taken.step)
                trainers.submit(taken.step)

    def _note_trained(self, trained: Trained) -> None:
        parts, now = self._parts, time.time()
        self._is_training = None
        if trained.step != len(parts.curve) or trained.step not in parts.batches:
            raise UserError(
                f"{parts.name}: the last checkpoint is of step {trained.step + 1}, and the journal "
                f"{parts.journal.folder} ends after step {len(parts.curve)}: its end was lost. Put it back, or remove "
                f"the folder {parts.journal.folder.parent} to start the round again"
            )
        taken = parts.batches[trained.step]
        busy = trained.train_seconds + trained.publish_seconds + trained.checkpoint_seconds
        self._timeline.span("trainer", self._trainer_idle, self._trainer_free_since, trained.ended_at - busy)
        self._trainer_idle = "no_groups"
        spent = {"train": trained.train_seconds, "publish": trained.publish_seconds}
        self._timeline.report("trainer", trained.ended_at, spent | {"checkpoint": trained.checkpoint_seconds})
        published = trained.ended_at - trained.checkpoint_seconds
        self._timeline.instant("trainer", PUBLISHED, published, version=trained.step + 1)
        self._trainer_free_since = trained.ended_at
        row = {**trained.row, **self._step_numbers(trained, taken)}
        parts.curve.append(row)
        parts.log.add(trained.step + 1, taken.batch, row, max(1e-9, now - self._step_ended_at))
        self._step_ended_at = now
        self._write(Stepped(trained.step + 1, row))
        parts.journal.flush()
        if (trained.step + 1) % parts.checkpoint_every == 0:
            for step in [step for step in parts.batches if step <= trained.step]:
                del parts.batches[step]
            self._timeline.write(parts.timeline_path)
            seal(parts.timeline_path)

    def _step_numbers(self, trained: Trained, taken: StepBatch) -> dict[str, float]:
        core, now = self._coordinator, time.time()
        pool, buffer = core.pool, core.buffer
        versions = [one.sample.policy_version for group in taken.batch.groups for one in group.rollouts]
        pool.faults.duplicates, buffer.duplicates = buffer.duplicates, 0
        faults, repacked, pool.faults, pool.repacked = pool.faults, pool.repacked, Faults(), Repacked()
        arrived, self._arrived, gaps, self._probe_gaps = self._arrived, [], self._probe_gaps, []
        held = [version for version in pool.versions().values() if version is not None]
        return {
            **staleness_metrics(trained.step, versions),
            **buffer_metrics(now, [now - age for age in taken.ages_seconds]),
            **window_metrics(len(core.window), core.params.problems_per_step, core.loop.window),
            **counted_metrics(repacked, faults),
            **replica_metrics(trained.step + 1, held, [pool.kv_fraction()]),
            **length_metrics(
                (buffer.issued_lengths.tokens, buffer.issued_lengths.responses),
                (buffer.trained_lengths.tokens, buffer.trained_lengths.responses),
            ),
            **({"sync/logprob_gap_max": max(gaps)} if gaps else {}),
            **self._timeline.metrics(self._step_ended_at, now),
            **relay_metrics([trained.publish_seconds], [one.fetched.seconds for one in arrived if one.fetched.bytes]),
        }

    def _keep_up(self) -> None:
        """What is due by the clock."""
        now, core = time.time(), self._coordinator
        nodes = {self._fleet.node(replica) for replica in self._fleet.started()}
        self._arrived += [one for one in self._parts.versions.look(nodes) if one.fetched]
        if now - self._flushed_at > FLUSH_SECONDS:
            core.write_partials()
            self._parts.journal.flush()
            self._timeline.counter("hub", "ready groups", now, core.window.ready)
            self._timeline.counter("hub", "outstanding groups", now, len(core.window))
            self._timeline.counter("hub", "kv used", now, core.pool.kv_fraction())
            self._flushed_at = now
            self._clock.look()
            self._check_standing(self._clock.now)
        repack = core.loop.repack
        if isinstance(repack, BestFitRepack) and now - self._repacked_at > repack.every_seconds:
            self._repacked_at = now
            newest = len(self._parts.curve)
            if core.pool.plan_repack(newest, core.window.may_begin(newest)):
                self._timeline.instant("hub", MOVED, now)

    def _check_standing(self, now: float) -> None:
        """Says where everything stands when nothing changes; RuntimeError when nothing can change any more."""
        parts, pool, trainers = self._parts, self._coordinator.pool, self._parts.trainers
        started, flights = self._fleet.started(), [flight for _, flight in pool.flights()]
        standing = (
            f"the trainer {'starts' if not trainers.is_up else 'works' if trainers.calls else 'waits'} behind step "
            f"{trainers.steps_done}, {len(started)} replicas hold weights {list(pool.versions().values())}, "
            f"{len(flights)} responses are under way with {sum(len(one.token_ids) for one in flights)} tokens, "
            f"{self._coordinator.window.ready} groups are ready for step {len(parts.curve) + 1}"
        )
        if standing != self._standing:
            self._standing, self._changed_at, self._said_at = standing, now, now
        still = now - self._changed_at
        if now - self._said_at > STILL_SECONDS:
            self._said_at = now
            say(f"{parts.name}: nothing has changed for {still:.0f} s: {standing}")
        is_idle = started and not trainers.calls and not any(map(pool.is_busy, started))
        if is_idle and still > MOST_STILL_SECONDS:
            raise RuntimeError(
                f"{parts.name} stands still, and nobody has anything to do: {standing}. That is a fault of Retrace: "
                f"please report it with {parts.journal.folder}. Remove {parts.journal.folder.parent} to start the "
                "round again"
            )

    def _note_fault(self, what: str, process: str, reason: str) -> None:
        self._coordinator.pool.faults.restarts += 1
        self._write(Fault(what, {"process": process, "reason": reason}))

    def _write(self, record) -> None:
        self._parts.journal.append(record_to_json(record))


class Judge:
    """A thread that asks the verifier; a context manager ends it."""

    def __init__(self, verifier: RoundVerifier, tokenizer, params: RlParams) -> None:
        self._verifier, self._tokenizer, self._params = verifier, tokenizer, params
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._judged: SimpleQueue[dict[Name, Rollout] | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)

    def __enter__(self) -> Judge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.put(None)
        self._thread.join()

    def ask(self, answers: Mapping[Name, str], samples: Mapping[Name, Sample]) -> None:
        """To be judged: samples by name, with the gold answers of their problems."""
        self._asked.put(_Asked(answers, samples))

    def judged(self) -> dict[Name, Rollout]:
        """What has been judged since the last call; raises what the verifier raised."""
        found: dict[Name, Rollout] = {}
        while not self._judged.empty():
            one = self._judged.get()
            if isinstance(one, BaseException):
                raise one
            found |= one
        return found

    def _work(self) -> None:
        try:
            while asked := self._asked.get():
                names = list(asked.samples)
                answers = [asked.answers[name] for name in names]
                samples = [asked.samples[name] for name in names]
                rollouts = score_samples(answers, samples, self._verifier, self._tokenizer, self._params)
                self._judged.put(dict(zip(names, rollouts, strict=True)))
        except BaseException as error:  # handed to the hub, which raises it
            self._judged.put(error)


@dataclass(frozen=True)
class _Asked:
    answers: Mapping[Name, str]
    samples: Mapping[Name, Sample]


class NodeVersions:
    """On the trainer's node, which is the hub's, a version is there once published; elsewhere a relay brings it."""

    def __init__(self, run: str, node: str, chain: RelayChain) -> None:
        self.folder = weights_folder(run, node)
        self._published = PublishedWeights(self.folder)
        self._node, self._chain = node, chain
        self._here: list[int] = []

    def of(self, node: str) -> list[int]:
        """Those that a replica on this node can load, oldest first."""
        return self._here if node == self._node else self._chain.have.get(node, [])

    def look(self, nodes: Iterable[str]) -> list[Arrived]:
        """Looks again, and lets relays fetch what is new for `nodes`; what has arrived since. Waits for nobody."""
        here = self._published.versions()
        self._chain.ensure([self._node, *nodes])
        if here != self._here:
            self._here = here
            self._chain.announce(here[-1])
        return self._chain.poll()
