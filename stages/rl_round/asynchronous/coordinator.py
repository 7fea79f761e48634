"""What happens next in an asynchronous round: the decisions, without the processes that carry them out.

Groups are begun as far as the window allows, ended trajectories are judged, complete groups wait in the order of issue,
a step takes its batch. A group is complete when every member is judged or has failed for good. Complete groups that
nothing can be learned from are left out, and others are begun in their place: work is never dropped because it took
long.

Every change of state is written to the journal before anything depends on it, so that a hub that was killed goes on
from there. No Ray, no torch; the clock is the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stages.algorithms.rollout_schedule import ExperienceWindow
from stages.engines.replicas.replica import Orders, Report
from stages.engines.samplers.protocol import Sample, Trajectory
from stages.rl_round.asynchronous.journal import Failed, Finished, Issued, LeftOut, Partial, Record, Trained
from stages.rl_round.asynchronous.trajectory_pool import Flight, Name, ReplicaId, TrajectoryPool
from stages.rl_round.methods import AsynchronousLoop, DynamicSampling
from stages.rl_round.params import RlParams
from stages.rl_round.rollouts.dynamic_sampling import SMALLEST_SIGNAL_FRACTION, Batch, signal_fraction
from stages.rl_round.rollouts.group_drawing import (
    ProblemDraw,
    make_group,
    make_rollout,
    sampling_settings,
    stop_when_undecided,
    trajectories_of,
)
from stages.rl_round.rollouts.records import Group, Rollout

DrawOf = Callable[[int], ProblemDraw]
"""The draw of a group by its number: the round's problems in their endless order."""


@dataclass(frozen=True)
class StepBatch:
    """What a step trains on."""

    step: int
    """From 0."""
    batch: Batch
    numbers: tuple[int, ...]
    """Of the groups."""
    ages_seconds: tuple[float, ...] = ()
    """Since each group was complete."""


@dataclass
class _SinceLastStep:
    completed: list[Group] = field(default_factory=list)
    left_out: list[Group] = field(default_factory=list)


class Coordinator:
    """The whole state of the hub's side of a round."""

    def __init__(
        self,
        params: RlParams,
        loop: AsynchronousLoop,
        steps: int,
        replicas: int,
        kv_capacity: int,
        seed_parts: Sequence[int | str],
        abort_fraction: float,
        draw_of: DrawOf,
        write: Callable[[Record], None],
    ) -> None:
        """`write` puts a record into the journal. `abort_fraction` of responses may stay without a verdict."""
        self.params, self.loop, self.steps, self._abort_fraction = params, loop, steps, abort_fraction
        self._seed_parts, self._draw_of, self._write = tuple(seed_parts), draw_of, write
        self.window = ExperienceWindow(params.problems_per_step, loop.window, steps)
        needs_signal = isinstance(params.dynamic_sampling, DynamicSampling)
        self.buffer = ExperienceBuffer(params.group_size, needs_signal)
        share = -(-loop.replica_share * params.problems_per_step // replicas)
        self.pool = TrajectoryPool(loop, max(1, int(share)), kv_capacity, sampling_settings(params))
        self.next_number = 0
        self._versions: dict[int, int] = {}
        """The version that each outstanding group was begun with."""
        self._since = _SinceLastStep()
        self._judging: set[Name] = set()

    # What replicas do.

    def orders(self, replica: ReplicaId, newest: int, kept: Collection[int]) -> Orders | None:
        """What the replica is to do next; None when there is nothing for it."""
        return self.pool.orders(replica, newest, kept, self._begin)

    def _begin(self, version: int, most: int) -> dict[Name, Trajectory]:
        begun: dict[Name, Trajectory] = {}
        for _ in range(min(most, self.window.may_begin(version))):
            number, self.next_number = self.next_number, self.next_number + 1
            draw = self._draw_of(number)
            self._write(Issued(number, draw.number, draw.problem.problem_id, version))
            self._issue(number, draw, version)
            begun |= {(number, member): one for member, one in enumerate(self._trajectories(draw))}
        return begun

    def _issue(self, number: int, draw: ProblemDraw, version: int) -> None:
        self.window.begin(number, version)
        self.buffer.begin(number, draw)
        self._versions[number] = version

    def _trajectories(self, draw: ProblemDraw) -> list[Trajectory]:
        return trajectories_of(draw, self.params.group_size, *self._seed_parts)

    def receive(self, replica: ReplicaId, report: Report) -> dict[Name, Sample]:
        """Takes a report in; the samples that are to be judged now."""
        ended = self.pool.receive(replica, report)
        wanted = {
            name: sample for name, sample in ended.items() if self.buffer.is_open(*name) and name not in self._judging
        }
        self.buffer.duplicates += len(report.ended) - len(wanted)
        self._judging |= wanted.keys()
        return wanted

    def lose(self, replica: ReplicaId, now: float) -> None:
        """The replica is gone."""
        self.pool.lose(replica)
        for number, member in self.pool.given_up:
            self._write(Failed(number, member, "replicas died with it"))
            self.buffer.fail(number, member)
            self._complete_if_so(number, now)
        self.pool.given_up.clear()

    # What the verifier does.

    def answer_of(self, name: Name) -> str:
        """The gold answer that the member's response is judged by."""
        return self.buffer.draw(name[0]).problem.answer

    def write_judged(self, judged: Mapping[Name, Rollout]) -> None:
        """Journals what the verifier said; `judged` may be counted once the journal is flushed."""
        for (number, member), rollout in judged.items():
            self._write(Finished(number, member, 1, rollout.sample, rollout.response, rollout.verdict))

    def judged(self, judged: Mapping[Name, Rollout], now: float) -> None:
        """Counts what the verifier said."""
        for name, rollout in judged.items():
            self._judging.discard(name)
            if self.buffer.add(*name, rollout):
                self._complete_if_so(name[0], now)

    def _complete_if_so(self, number: int, now: float) -> None:
        if number in self.buffer and self.buffer.is_complete(number):
            self._note_complete(number, now)
            self._decide(number)

    def _note_complete(self, number: int, now: float) -> None:
        """A complete group is ready, unless it is to be left out: that is journalled before it counts."""
        if self.buffer.is_complete(number):
            self.buffer.complete(number, now)
            if self.buffer.reason_to_leave_out(number) is None:
                self.window.mark_ready(number)
                self._since.completed.append(self.buffer.group(number))

    def _decide(self, number: int) -> None:
        reason = self.buffer.reason_to_leave_out(number)
        if reason is not None:
            self._write(LeftOut(number, reason.value))
            self._leave_out(number, reason)

    def _leave_out(self, number: int, reason: Reason) -> None:
        self.window.leave_out(number)
        del self._versions[number]
        group = self.buffer.leave_out(number, reason)
        if group is not None:
            self._since.completed.append(group)
            self._since.left_out.append(group)

    # What the trainer does.

    def next_batch(self, now: float) -> StepBatch | None:
        """What the next step trains on; None while it has to wait. UserError when the verifier failed too often."""
        if self.window.steps_done >= self.steps:
            return None
        numbers = self.window.next_batch() or self._short_batch()
        if numbers is None:
            return None
        # Before it is written: the next attempt, whose journal says the same, must stop here too.
        stop_when_undecided(self._since.completed, self._abort_fraction, self.params.verifier)
        step = self.window.steps_done
        self._write(Trained(step + 1, step, tuple(numbers)))  # version `step` trains
        ages = tuple(now - self.buffer.completed_at(number) for number in numbers)
        return self._take(step, numbers, ages)

    def _short_batch(self) -> list[int] | None:
        """After as many groups in vain as a synchronous step would have drawn at most: what there is."""
        sampling = self.params.dynamic_sampling
        if not isinstance(sampling, DynamicSampling):
            return None
        most = sampling.max_draws * self.params.problems_per_step / SMALLEST_SIGNAL_FRACTION
        return self.window.short_batch() if len(self._since.left_out) >= most else None

    def _take(self, step: int, numbers: Sequence[int], ages: tuple[float, ...]) -> StepBatch:
        self.window.take(numbers)
        groups = self.buffer.train(numbers)
        for number in numbers:
            del self._versions[number]
        since, self._since = self._since, _SinceLastStep()
        completed, left_out = since.completed, since.left_out
        signal = signal_fraction(completed, 1.0)
        batch = Batch(groups, completed, left_out, 1, 0, self.window.ready, signal, step)
        return StepBatch(step, batch, tuple(numbers), ages)

    def leftover(self) -> list[Group]:
        """Groups that were decided behind the last step, or that no step has taken."""
        complete = [number for number in self.buffer.numbers() if self.buffer.is_complete(number)]
        return [*self._since.left_out, *(self.buffer.group(number) for number in complete)]

    # What outlives the hub.

    def write_partials(self) -> None:
        """Journals the tokens of every trajectory in flight that has new ones."""
        for (number, member), flight in self.pool.flights():
            start = flight.written
            if flight.version is None or start == len(flight.token_ids):
                continue
            flight.written = len(flight.token_ids)
            fresh = flight.token_ids[start:], flight.logprobs[start:]
            self._write(Partial(number, member, start, flight.version, *fresh))

    def restore(self, records: Iterable[Record]) -> list[StepBatch]:
        """Goes on from a journal: the batches of the steps that were taken, in order.

        Trajectories that had not ended wait for a replica, behind the tokens that were journalled. Groups are left out
        in the order in which they were completed, as before the kill; their records may come later in the journal.
        """
        taken: list[StepBatch] = []
        unwritten: dict[int, Reason] = {}
        """Groups that were left out and whose record has not come."""
        unfinished: dict[Name, Flight] = {}
        for record in records:
            match record:
                case Issued(number, _, _, version):
                    draw = self._draw_of(number)
                    self._check_draw(record, draw)
                    self._issue(number, draw, version)
                    self.next_number = number + 1
                    for member, trajectory in enumerate(self._trajectories(draw)):
                        unfinished[number, member] = Flight(trajectory, None, version)
                case Partial(number, member, start, version, token_ids, logprobs):
                    flight = unfinished[number, member]
                    flight.version = version
                    flight.token_ids[start:], flight.logprobs[start:] = token_ids, logprobs
                    flight.written = len(flight.token_ids)
                case Finished(number, member, _, sample, response, verdict):
                    unfinished.pop((number, member), None)
                    rollout = make_rollout(sample, response, verdict, self.params)
                    if self.buffer.add(number, member, rollout):
                        unwritten |= self._settle(number)
                case Failed(number, member):
                    unfinished.pop((number, member), None)
                    self.buffer.fail(number, member)
                    unwritten |= self._settle(number)
                case LeftOut(number, reason):
                    if unwritten.pop(number, None) is None:
                        self._leave_out(number, Reason(reason))
                case Trained(step, _, numbers):
                    taken.append(self._take(step - 1, numbers, ()))
        self.pool.waiting |= {name: flight for name, flight in unfinished.items() if self.buffer.is_open(*name)}
        # A kill may have come between a group's last member and the word that it was left out.
        for number, reason in unwritten.items():
            self._write(LeftOut(number, reason.value))
        return taken

    def _settle(self, number: int) -> dict[int, Reason]:
        """Counts a group of the journal that may be complete now; why it was left out, where it was."""
        if number not in self.buffer or not self.buffer.is_complete(number):
            return {}
        self._note_complete(number, now=0.0)
        reason = self.buffer.reason_to_leave_out(number)
        if reason is None:
            return {}
        self._leave_out(number, reason)
        return {number: reason}

    def _check_draw(self, issued: Issued, draw: ProblemDraw) -> None:
        """The journal lies in a folder that is named after the work, so another problem means a damaged project."""
        if (draw.number, draw.problem.problem_id) != (issued.draw, issued.problem_id):
            raise RuntimeError(
                f"the journal's group {issued.group} is of problem {issued.problem_id}, this round's of "
                f"{draw.problem.problem_id}: remove the stage's scratch folder under state/ and run again"
            )


class ExperienceBuffer:
    """The outstanding groups of a round by number, and the fates of the others."""

    def __init__(self, group_size: int, needs_signal: bool) -> None:
        self.group_size, self.needs_signal = group_size, needs_signal
        self._groups: dict[int, _Begun] = {}
        self.issued = 0
        self.trained = 0
        self.left_out: Counter[Reason] = Counter()
        self.duplicates = 0
        """Results that came after the first for their member, or after their group was complete."""
        self.issued_lengths, self.trained_lengths = Lengths(), Lengths()
        """Of complete groups, whatever became of them, and of those that were trained on."""

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, number: int) -> bool:
        return number in self._groups

    def numbers(self) -> Iterable[int]:
        """Outstanding groups, in the order of issue."""
        return self._groups.keys()

    def begin(self, number: int, draw: ProblemDraw) -> None:
        """A group is issued. ValueError when its number was used."""
        if number in self._groups:
            raise ValueError(f"group {number} was issued before")
        self._groups[number] = _Begun(draw, self.group_size)
        self.issued += 1

    def draw(self, number: int) -> ProblemDraw:
        """What the group was begun for."""
        return self._groups[number].draw

    def open_members(self, number: int) -> list[int]:
        """Samples that the group still waits for."""
        group = self._groups[number]
        return [one for one in range(group.members) if one not in group.rollouts and one not in group.failed]

    def is_open(self, number: int, member: int) -> bool:
        """True while a result for this member would count."""
        group = self._groups.get(number)
        return group is not None and member not in group.rollouts and member not in group.failed

    def add(self, number: int, member: int, rollout: Rollout) -> bool:
        """A member was judged; False, and counted, when it was no longer waited for."""
        if not self.is_open(number, member):
            self.duplicates += 1
            return False
        self._groups[number].rollouts[member] = rollout
        return True

    def fail(self, number: int, member: int) -> None:
        """A member will never end; nothing happens when it is not waited for."""
        if self.is_open(number, member):
            self._groups[number].failed.add(member)

    def is_complete(self, number: int) -> bool:
        """True when nothing of the group is waited for."""
        group = self._groups[number]
        return len(group.rollouts) + len(group.failed) == group.members

    def group(self, number: int) -> Group:
        """The rollouts of a complete group, in the order of their sample numbers."""
        found = self._groups[number]
        return make_group(found.draw, [found.rollouts[one] for one in sorted(found.rollouts)])

    def reason_to_leave_out(self, number: int) -> Reason | None:
        """Why a complete group teaches nothing; None when it does."""
        rollouts = self._groups[number].rollouts.values()
        if sum(rollout.is_decided for rollout in rollouts) < min(2, self.group_size):
            return Reason.TOO_FEW_DECIDED
        if self.needs_signal and not self.group(number).has_signal:
            return Reason.NO_SIGNAL
        return None

    def complete(self, number: int, now: float) -> None:
        """Notes when the group was complete, and counts its tokens."""
        group = self._groups[number]
        group.completed_at = now
        self.issued_lengths.add(group.rollouts.values())

    def completed_at(self, number: int) -> float:
        """When `complete` was told."""
        return self._groups[number].completed_at

    def leave_out(self, number: int, reason: Reason) -> Group | None:
        """Nothing is learned from the group; its rollouts, None where it has none."""
        group = self.group(number) if self._groups[number].rollouts else None
        del self._groups[number]
        self.left_out[reason] += 1
        return group

    def train(self, numbers: Iterable[int]) -> list[Group]:
        """A step trains on these groups."""
        groups = [self.group(number) for number in numbers]
        for number, group in zip(numbers, groups, strict=True):
            del self._groups[number]
            self.trained_lengths.add(group.rollouts)
        self.trained += len(groups)
        return groups

    def check_conservation(self) -> None:
        """RuntimeError unless issued = trained + left out + outstanding."""
        accounted = self.trained + self.left_out.total() + len(self._groups)
        if self.issued != accounted:
            raise RuntimeError(
                f"{self.issued} groups were issued and {accounted} are accounted for ({self.trained} trained, "
                f"{dict(self.left_out)} left out, {len(self._groups)} outstanding): this is a fault of the loop"
            )


@dataclass
class _Begun:
    draw: ProblemDraw
    members: int
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    completed_at: float = 0.0


class Reason(StrEnum):
    """Why nothing was learned from a group."""

    NO_SIGNAL = "no_signal"
    """All decided responses are right, or none is (dynamic sampling)."""
    TOO_FEW_DECIDED = "too_few_decided"
    """The verifier or the replicas failed on so many members that too few are left to compare."""


@dataclass
class Lengths:
    """Response tokens of many responses."""

    tokens: int = 0
    responses: int = 0

    def add(self, rollouts: Iterable[Rollout]) -> None:
        """Counts these too."""
        for rollout in rollouts:
            self.tokens += len(rollout.sample.token_ids)
            self.responses += 1
