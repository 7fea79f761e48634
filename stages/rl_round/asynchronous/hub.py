"""The hub: the event loop between replicas, verifier and trainer. It makes no decisions and never blocks on a process.

The coordinator decides what happens next; fleet and trainers know which processes are alive; the journal records what
has happened. A killed hub resumes from the journal and the trainer's last checkpoint.

Below the hub: `Judge` calls the verifier in a thread, so that the verifier delays no process, and `NodeVersions` knows
which versions of the weights replicas can load. Then the numbers of a step, from plain data;
docs/explanation/asynchronous-loop.md explains their names. A function leaves out numbers that it cannot compute (a mean
of nothing), so no curve shows a zero that was not measured. Counts of things that did not happen are 0.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue

from stages.engines.distributed.waiting import MOST_BUSY_SECONDS, MOST_IDLE_SECONDS, StuckError, Watch, watched
from stages.engines.pieces import seal
from stages.engines.relays.published_weights import PublishedWeights, weights_folder
from stages.engines.relays.relay import Arrived, RelayChain
from stages.engines.replicas.fleet import Died, Fleet, Reported, Stalled, Started
from stages.engines.replicas.replica import Report
from stages.engines.samplers.protocol import Sample
from stages.foundations.errors import UserError
from stages.observe.progress import progress, say
from stages.rl_round.asynchronous.coordinator import Coordinator, Lengths, StepBatch
from stages.rl_round.asynchronous.journal import Fault, Journal, Stepped, record_to_json
from stages.rl_round.asynchronous.timeline import BATCH_TAKEN, FAULT, MOVED, PUBLISHED, Timeline
from stages.rl_round.asynchronous.trainers import Trainers
from stages.rl_round.asynchronous.trajectory_pool import Faults, Name, Repacked
from stages.rl_round.drawing import CustomRewards, RoundVerifier, score_samples
from stages.rl_round.loop.evaluation import is_over, tell
from stages.rl_round.loop.round_log import RolloutLog
from stages.rl_round.methods import BestFitRepack
from stages.rl_round.params import RlParams
from stages.rl_round.records import Problem, Rollout
from stages.rl_round.round import Round, Trained

# Short compared to a report (`rl.loop.report_seconds`), so ended responses are judged at once.
POLL_SECONDS = 0.05
"""A turn of the loop waits at most this long for replicas and trainer."""
# Reports come several times a second from each replica: writing them one by one would be a call for a few tokens.
FLUSH_SECONDS = 1.0
"""The journal contains every token that is older than this."""
# Few, because a replica serves nothing after a failed pull until the next one.
MOST_FAILED_PROBES = 3
"""Failures of one replica in a row; if they repeat after it was replaced, the weights are wrong and not the replica."""


@dataclass
class Hub:
    """Runs one round to its end. First the parts that it connects, then its state."""

    this_round: Round
    coordinator: Coordinator
    fleet: Fleet
    versions: NodeVersions
    trainers: Trainers
    judge: Judge
    journal: Journal
    log: RolloutLog
    timeline: Timeline
    timeline_path: Path
    batches: dict[int, StepBatch]
    """Batches taken, and not yet in a checkpoint."""
    curve: list[dict[str, float]]

    _flushed_at: float = 0.0
    _repacked_at: float = -math.inf
    _repacked_version: int = 0
    """The newest weights at the last check of repack."""
    _started_at: float = field(default_factory=time.time)
    _trainer_free_since: float = field(default_factory=time.time)
    _trainer_idle: str = "start"
    """The reason why the trainer waits."""
    _step_ended_at: float = field(default_factory=time.time)
    _failed_probes: Counter[int] = field(default_factory=Counter)
    """Failures in a row, by replica."""
    _is_training: int | None = None
    _told_step: float = -1
    """The step of the last evaluation that was logged."""
    _seen: set[int] = field(default_factory=set)
    """Replicas that have started once."""
    _probe_gaps: list[float] = field(default_factory=list)
    """Since the last step."""
    _arrived: list[Arrived] = field(default_factory=list)
    """Since the last step."""
    _watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = Watch(self.name)

    @property
    def name(self) -> str:
        return self.this_round.name

    def run(self) -> None:
        """Runs until the curve has the round's last step, or until patience with the held-out accuracy is over."""
        # The row of a step is logged before the journal has the step.
        self._told_step = len(self.curve) or -1
        done, last = len(self.curve), self.this_round.settings.steps
        for _ in progress(self._steps(), last, self.name, "steps", done=done, curve=self.curve):
            self.coordinator.check_conservation()
        # An earlier attempt may have reported steps and been killed before their checkpoint: the trainer repeats them.
        while self.trainers.steps_done < len(self.curve):
            self._wait()

    def save_model(self, folder: Path) -> None:
        """Has the trainer write the policy, and waits for it. A trainer that dies meanwhile is replaced."""
        self.trainers.save_model(folder)
        while not self.trainers.has_saved:
            self._wait()

    def _steps(self) -> Iterator[int]:
        done = len(self.curve)
        while done < self.this_round.settings.steps and not self._is_over():
            self._order_replicas()
            self._wait()
            self._repack(time.monotonic())
            while done < len(self.curve):
                done += 1
                yield done

    def _wait(self) -> None:
        """Waits for the next event, at most `POLL_SECONDS`, and looks after every process. The hub waits nowhere else.

        RuntimeError when nothing has changed for too long.
        """
        for event in self.fleet.poll(POLL_SECONDS, self.trainers.calls):
            self._take_event(event)
        self._take_judged()
        self._train()
        self._keep_up()

    def _is_over(self) -> bool:
        """Returns True when patience ends the round; a batch that was taken is trained on all the same."""
        is_taken = len(self.curve) in self.batches
        return not is_taken and is_over(self.trainers.evaluations, self.this_round.params.evaluation)

    def _order_replicas(self) -> None:
        for replica in self.fleet.started():
            kept = self.versions.of(self.fleet.node(replica))
            if kept:
                # The newest version on its node: a relay may be behind, and is not waited for.
                orders = self.coordinator.orders(replica, kept[-1], kept)
                if orders is not None:
                    self.fleet.order(replica, orders)

    def _take_event(self, event: Started | Reported | Died) -> None:
        now, process = time.time(), f"replica/{event.replica}"
        match event:
            case Started():
                # A replaced replica was `dead` until now; the timeline records that.
                if event.replica not in self._seen:
                    self._seen.add(event.replica)
                    self.timeline.span(process, "start", self._started_at, now)
                self.coordinator.pool.join(event.replica)
            case Reported(replica, report):
                self._take_report(replica, report)
            case Died(replica, reason):
                is_stalled = isinstance(event, Stalled)
                self.timeline.instant(process, FAULT, now, reason=reason)
                self.timeline.span(process, "dead", now, now)
                self._note_fault("stalled" if is_stalled else "died", process, reason)
                self.coordinator.pool.faults.stalled += is_stalled
                self.coordinator.lose(replica, now)

    def _take_report(self, replica: int, report: Report) -> None:
        # A replica only knows that it was idle; the hub knows why: the window allowed no start. The time between
        # two calls belongs to no activity, so `orders` becomes the timeline's word for that.
        named = {
            {"idle": "no_prompts", "orders": "unnamed"}.get(name, name): seconds
            for name, seconds in report.seconds.items()
        }
        self.timeline.report(f"replica/{replica}", report.ended_at, named)
        samples = self.coordinator.receive(replica, report)
        if samples:
            self.judge.ask({name: (self.coordinator.problem_of(name), sample) for name, sample in samples.items()})
        # Last, because it may end the replica, whose samples count all the same.
        self._check_pull(replica, report)

    def _check_pull(self, replica: int, report: Report) -> None:
        """Counts a fault when weights differ from the trainer's; a missing version is not a fault."""
        if report.pulled is not None:
            self._failed_probes[replica] = 0
            self._probe_gaps.append(report.probe_gap or 0.0)
        # It still serves the previous weights: the version was gone when it arrived, as happens to slow replicas.
        if not report.pull_failed or report.version is not None:
            return
        # Its node has no version yet, so this is not a fault.
        if not self.versions.of(self.fleet.node(replica)):
            return
        self._failed_probes[replica] += 1
        failed = self._failed_probes[replica]
        say(f"{self.name}: replica {replica} could not take weights: {report.pull_failed}")
        if failed == MOST_FAILED_PROBES:
            self._take_event(self.fleet.end(replica, report.pull_failed))
        # The count continues over a replacement, so here a fresh process has failed as often as the one before it.
        elif failed > 2 * MOST_FAILED_PROBES:
            raise UserError(f"{self.name}: no replica agrees with the trainer's weights: {report.pull_failed}")

    def _take_judged(self) -> None:
        judged = self.judge.judged()
        if judged:
            # Journalled before it counts: no step may train on a response that a resumed hub would generate again.
            self.coordinator.write_judged(judged)
            self.journal.flush()
            self.coordinator.judged(judged, time.time())

    def _train(self) -> None:
        trainers = self.trainers
        restarts = trainers.restarts
        trained = trainers.poll()
        if trainers.restarts > restarts:
            self.timeline.instant("trainer", FAULT, time.time(), reason="lost")
            self._trainer_free_since, self._trainer_idle = time.time(), "dead"
            self._note_fault("died", "trainer", "lost")
        for row in trainers.evaluations:
            if row["step"] > self._told_step:
                tell(row, self.this_round)
                self._told_step = row["step"]
        if trained:
            self._note_trained(trained)
        # A trainer that repeats steps may come to an evaluation that ends the round.
        has_all = trainers.is_up and trainers.steps_done >= len(self.curve)
        if self._is_training is None and has_all and not self._is_over():
            # A resumed hub may have taken this batch in an earlier attempt: the same groups are trained on again.
            taken = self.batches.get(len(self.curve)) or self.coordinator.next_batch(time.time())
            if taken:
                self.journal.flush()
                self.batches[taken.step] = taken
                # The flush came first: no weights may come from a batch that the journal does not have.
                self._is_training = taken.step
                self.timeline.instant("hub", BATCH_TAKEN, time.time(), step=taken.step)
                trainers.submit(taken.step)

    def _note_trained(self, trained: Trained) -> None:
        now = time.time()
        self._is_training = None
        # One step beyond the curve: its row and its batch would be missing for ever.
        if trained.step != len(self.curve) or trained.step not in self.batches:
            raise UserError(
                f"{self.name}: the last checkpoint is of step {trained.step + 1}, and the journal "
                f"{self.journal.folder} ends after step {len(self.curve)}: its end was lost. Put it back, or remove "
                f"the folder {self.journal.folder.parent} to start the round again"
            )
        taken = self.batches[trained.step]
        after = trained.evaluate_seconds + trained.checkpoint_seconds
        busy = trained.train_seconds + trained.publish_seconds + after
        self.timeline.span("trainer", self._trainer_idle, self._trainer_free_since, trained.ended_at - busy)
        # Until its next batch is taken the trainer waits for groups; its other activities are in the report below.
        self._trainer_idle = "no_groups"
        spent = {"train": trained.train_seconds, "publish": trained.publish_seconds}
        spent |= {"evaluate": trained.evaluate_seconds} if trained.evaluate_seconds else {}
        self.timeline.report("trainer", trained.ended_at, spent | {"checkpoint": trained.checkpoint_seconds})
        # Evaluation and checkpoint came last, while replicas could load the version already.
        published = trained.ended_at - after
        self.timeline.instant("trainer", PUBLISHED, published, version=trained.step + 1)
        self._trainer_free_since = trained.ended_at
        row = {**trained.row, **self._step_numbers(trained, taken)}
        self.curve.append(row)
        # A step of an earlier attempt is reported at once, and its rates divide by its seconds.
        self.log.add(trained.step + 1, taken.batch, row, max(1e-9, now - self._step_ended_at))
        self._step_ended_at = now
        # After the log: a step that the journal marks as done has its rollouts in a file.
        self._write(Stepped(trained.step + 1, row))
        self.journal.flush()
        is_last = trained.step + 1 == self.this_round.settings.steps
        if (trained.step + 1) % self.this_round.params.checkpoint_every_steps == 0 and not is_last:
            # These steps are in the trainer's checkpoint: it will not request their batches again.
            for step in [step for step in self.batches if step <= trained.step]:
                del self.batches[step]
            self.timeline.write(self.timeline_path)
            seal(self.timeline_path)

    def _step_numbers(self, trained: Trained, taken: StepBatch) -> dict[str, float]:
        core, now = self.coordinator, time.time()
        pool = core.pool
        versions = [one.sample.policy_version for group in taken.batch.groups for one in group.rollouts]
        # Read and reset in one line: later events belong to the next step.
        faults, repacked, pool.faults, pool.repacked = pool.faults, pool.repacked, Faults(), Repacked()
        arrived, self._arrived, gaps, self._probe_gaps = self._arrived, [], self._probe_gaps, []
        held = [version for version in pool.versions().values() if version is not None]
        return {
            **staleness_metrics(trained.step, versions),
            **buffer_metrics(len(taken.batch.groups), taken.ages_seconds),
            **window_metrics(len(core.window), core.params.problems_per_step, core.loop.window),
            **counted_metrics(repacked, faults),
            **replica_metrics(trained.step + 1, held, pool.kv_fraction()),
            **length_metrics(core.complete_lengths, core.trained_lengths),
            **({"sync/logprob_gap_max": max(gaps)} if gaps else {}),
            **self.timeline.metrics(self._step_ended_at, now),
            **relay_metrics(trained.publish_seconds, [one.fetched.seconds for one in arrived if one.fetched.bytes]),
        }

    def _keep_up(self) -> None:
        now, core = time.monotonic(), self.coordinator
        nodes = {self.fleet.node(replica) for replica in self.fleet.started()}
        self._arrived += [one for one in self.versions.look(nodes) if one.fetched]
        if now - self._flushed_at > FLUSH_SECONDS:
            core.write_partials()
            self.journal.flush()
            for name, count in (
                ("ready groups", core.window.ready),
                ("outstanding groups", len(core.window)),
                ("kv used", core.pool.kv_fraction()),
            ):
                self.timeline.counter("hub", name, time.time(), count)
            self._flushed_at = now
            self._check_progress()

    def _repack(self, now: float) -> None:
        """Plans moves, at intervals and right after each update of the weights (Laminar, section 5.1)."""
        core, repack = self.coordinator, self.coordinator.loop.repack
        if not isinstance(repack, BestFitRepack):
            return
        # A version is published before the trainer has evaluated it, written its checkpoint and reported its step.
        newest = max(len(self.curve), self.versions.newest)
        if now - self._repacked_at <= repack.every_seconds and newest == self._repacked_version:
            return
        self._repacked_at, self._repacked_version = now, newest
        # Freeing a replica is useful only if it could load newer weights or start a group: the pool decides by both
        # numbers.
        if core.pool.plan_repack(newest, core.window.may_begin(newest)):
            self.timeline.instant("hub", MOVED, time.time())

    def _check_progress(self) -> None:
        """Logs the state while nothing changes; RuntimeError at the limit of the wait."""
        core, trainers, started = self.coordinator, self.trainers, self.fleet.started()
        flights = [flight for _, flight in core.pool.flights()]
        standing = (
            f"the trainer {trainers.activity} behind step {trainers.steps_done} after {trainers.restarts} restarts, "
            f"{len(started)} replicas hold weights {list(core.pool.versions().values())}, {len(flights)} responses are "
            f"under way with {sum(len(one.token_ids) for one in flights)} tokens, {core.judging} are judged, "
            f"{core.window.ready} groups are ready for step {len(self.curve) + 1}"
        )
        is_busy = not started or core.judging or any(map(core.pool.is_busy, started))
        limit = MOST_BUSY_SECONDS if is_busy else MOST_IDLE_SECONDS
        try:
            # Fleet and trainers replace a process that does not answer in time, which changes the state first.
            self._watch.look(standing, limit + trainers.patience)
        except StuckError as stuck:
            raise RuntimeError(
                f"{stuck}. That is a fault of Retrace: please report it with {self.journal.folder}. Remove "
                f"{self.journal.folder.parent} to start the round again"
            ) from stuck

    def _note_fault(self, what: str, process: str, reason: str) -> None:
        self.coordinator.pool.faults.restarts += 1
        self._write(Fault(what, {"process": process, "reason": reason}))

    def _write(self, record) -> None:
        self.journal.append(record_to_json(record))


class Judge:
    """A thread that asks the verifier and custom rewards; a context manager ends it."""

    def __init__(self, verifier: RoundVerifier, tokenizer, params: RlParams, functions: CustomRewards) -> None:
        self._verifier, self._tokenizer, self._params, self._functions = verifier, tokenizer, params, functions
        self._waiting: SimpleQueue[Mapping[Name, tuple[Problem, Sample]] | None] = SimpleQueue()
        self._judged: SimpleQueue[dict[Name, Rollout] | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)

    def __enter__(self) -> Judge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)
        # Waits for the current verdict: the verifier is closed next, and must not be in use then.
        with watched("rl_round", "the verifier's last verdict", MOST_BUSY_SECONDS):
            self._thread.join()

    def ask(self, samples: Mapping[Name, tuple[Problem, Sample]]) -> None:
        """Queues samples to judge: problem and sample by name; at least one."""
        self._waiting.put(samples)

    def judged(self) -> dict[Name, Rollout]:
        """Returns the verdicts since the last call; raises errors of the verifier."""
        rollouts: dict[Name, Rollout] = {}
        while not self._judged.empty():
            one = self._judged.get()
            if isinstance(one, BaseException):
                raise one
            rollouts |= one
        return rollouts

    def _work(self) -> None:
        try:
            while waiting := self._waiting.get():
                problems, samples = zip(*waiting.values(), strict=True)
                answers = [problem.answer for problem in problems]
                judges = self._verifier, self._tokenizer, self._params, self._functions
                rollouts = score_samples(answers, samples, *judges, problems)
                self._judged.put(dict(zip(waiting, rollouts, strict=True)))
        # Any error: if the thread died silently, the hub would wait for verdicts, so the hub raises it.
        except BaseException as error:
            self._judged.put(error)


class NodeVersions:
    """Versions on each node: on the hub's, where the trainer publishes, at once; elsewhere when a relay brings them."""

    def __init__(self, run: str, node: str, chain: RelayChain) -> None:
        self.folder = weights_folder(run, node)
        self._published = PublishedWeights(self.folder)
        self._node, self._chain = node, chain
        self._here: list[int] = []

    @property
    def newest(self) -> int:
        """Returns the newest version that has been published; 0 before the first."""
        return self._here[-1] if self._here else 0

    def of(self, node: str) -> list[int]:
        """Returns the versions that a replica on this node can load, oldest first."""
        return self._here if node == self._node else self._chain.have.get(node, [])

    def look(self, nodes: Iterable[str]) -> list[Arrived]:
        """Looks again, and lets relays fetch new versions for `nodes`; returns arrivals since. Never waits."""
        here = self._published.versions()
        # The trainer's node first: the chain begins where versions are published.
        self._chain.ensure([self._node, *nodes])
        if here != self._here:
            self._here = here
            self._chain.announce(here[-1])
        return self._chain.poll()


# Twice the cut of the rates by staleness (OLDEST in update.py), which cost sums in every micro-batch; bars are
# counted once per step.
TOP = 8
"""Responses this stale and staler ones share the last bar of the histogram."""


def staleness_metrics(version: int, versions: Iterable[int]) -> dict[str, float]:
    """Staleness of the rollouts of a step: `version` is its starting version, `versions` those that generated each.

    Mean, largest, 99th percentile, and the count of each staleness (`staleness/count_0`, ...).
    """
    ages = sorted(version - drawn_by for drawn_by in versions)
    if not ages:
        return {}
    counts = Counter(min(max(age, 0), TOP) for age in ages)
    return {
        "staleness/mean": sum(ages) / len(ages),
        "staleness/max": ages[-1],
        # Nearest rank: of 100 responses the 99th, so one straggler in a hundred does not show and two do.
        "staleness/p99": ages[math.ceil(0.99 * len(ages)) - 1],
        **{f"staleness/count_{age}": counts[age] for age in range(max(counts) + 1)},
    }


def buffer_metrics(groups: int, ages_seconds: Sequence[float]) -> dict[str, float]:
    """Counts groups that waited for the step, and their waiting time, as far as it is known."""
    # The clock is the time of day, which may be set back.
    ages = sorted(max(0.0, age) for age in ages_seconds)
    if not ages:
        return {"buffer/groups": groups}
    return {
        "buffer/groups": groups,
        "buffer/age_seconds_p50": ages[(len(ages) - 1) // 2],
        "buffer/age_seconds_max": ages[-1],
    }


def window_metrics(outstanding: int, groups_per_step: int, window: int | None) -> dict[str, float]:
    """`window/used`: groups started and not trained on, over the most that the window allows; none without a window."""
    if window is None:
        return {"window/outstanding": outstanding}
    return {"window/outstanding": outstanding, "window/used": outstanding / ((window + 1) * groups_per_step)}


def counted_metrics(repacked: Repacked, faults: Faults) -> dict[str, float]:
    """Returns `repack/...` and `fault/...`."""
    named = {"repack": asdict(repacked), "fault": asdict(faults)}
    return {f"{kind}/{name}": value for kind, values in named.items() for name, value in values.items()}


def replica_metrics(version: int, versions: Sequence[int], kv_used: float) -> dict[str, float]:
    """Returns, for the replicas at work, how full their key-value caches are and how far they are behind `version`."""
    metrics = {"kv/used_fraction": kv_used}
    if versions:
        metrics["relay/lag_versions"] = version - sum(versions) / len(versions)
    return metrics


def relay_metrics(publish_seconds: float, broadcast_seconds: Sequence[float]) -> dict[str, float]:
    """Returns the trainer's cost of a publication, and the mean time until another node has it."""
    metrics = {"relay/publish_seconds": publish_seconds}
    if broadcast_seconds:
        metrics["relay/broadcast_seconds"] = sum(broadcast_seconds) / len(broadcast_seconds)
    return metrics


def length_metrics(issued: Lengths, trained: Lengths) -> dict[str, float]:
    """Returns the mean tokens of all ended responses and of those trained on: training must not prefer short ones.

    Over the round and not the step: the trajectories issued in a step are not the ones it trains on.
    """
    lengths = {"issued": issued, "trained": trained}
    return {f"length/{name}_mean": one.tokens / one.responses for name, one in lengths.items() if one.responses}


def round_totals(curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the round's metrics of these: totals of counts, the mean and the largest staleness."""
    totals: Counter[str] = Counter()
    for row in curve:
        for name, value in row.items():
            if name.startswith(("repack/", "fault/", "staleness/count_")):
                totals[name] += value
    metrics = {name: totals[name] for name in sorted(totals)}
    counts = {int(name.removeprefix("staleness/count_")): value for name, value in totals.items() if "/count_" in name}
    if counts:
        # Steps train on different numbers of responses, so the mean of their means is not the round's.
        weighed = sum(
            row["staleness/mean"] * sum(row.get(f"staleness/count_{age}", 0) for age in counts)
            for row in curve
            if "staleness/mean" in row
        )
        metrics["staleness/mean"] = weighed / sum(counts.values())
        metrics["staleness/max"] = max(row["staleness/max"] for row in curve if "staleness/max" in row)
    return metrics
