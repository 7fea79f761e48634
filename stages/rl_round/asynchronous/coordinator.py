"""The decisions of an asynchronous round, without the processes that carry them out.

Groups start as far as the window allows, ended trajectories are judged, complete groups wait in the order of issue,
a step takes its batch. A group is complete when every member is judged or has failed for good. A complete group without
a learning signal is dropped, and another starts in its place: work is never dropped because it took long.

Every change of state is written to the journal before anything depends on it, so that a hub that was killed resumes
from there. No Ray, no torch; the caller supplies the time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from enum import StrEnum
from functools import cached_property

from stages.algorithms.rollout_schedule import ExperienceWindow
from stages.engines.replicas.replica import Orders, Report
from stages.engines.samplers.protocol import Sample, Trajectory
from stages.rl_round.asynchronous.journal import Failed, Finished, Issued, LeftOut, Partial, Record, Trained
from stages.rl_round.asynchronous.trajectory_pool import InFlightTrajectory, Name, ReplicaId, TrajectoryPool
from stages.rl_round.drawing import (
    SMALLEST_SIGNAL_FRACTION,
    abort_on_verifier_failures,
    make_group,
    recorded_rollout,
    sampling_settings,
    signal_fraction,
    trajectories_of,
)
from stages.rl_round.methods import AsynchronousLoop, DynamicSampling
from stages.rl_round.problem_order import ProblemCursor, ProblemDraw, problems_at
from stages.rl_round.records import Batch, Group, Problem, Rollout
from stages.rl_round.round import Round


@dataclass(frozen=True)
class StepBatch:
    step: int
    """From 0."""
    batch: Batch
    numbers: tuple[int, ...]
    """Numbers of the groups."""
    ages_seconds: tuple[float, ...] = ()
    """Seconds since each group was complete; without those restored from a journal."""


@dataclass
class _SinceLastStep:
    completed: list[Group] = field(default_factory=list)
    left_out: list[Group] = field(default_factory=list)


class Coordinator:
    """The complete state of the hub's side of a round."""

    def __init__(self, this_round: Round, loop: AsynchronousLoop, write: Callable[[Record], None]) -> None:
        params, sampler, replicas = this_round.params, this_round.sampler_params, this_round.sampler_params.replicas
        self.params, self.loop, self.steps = params, loop, this_round.settings.steps
        self._round, self._write, self._seed_parts = this_round, write, (this_round.seed, this_round.name)
        self.window = ExperienceWindow(params.problems_per_step, loop.window, self.steps)
        # Rounded up: the shares together make a whole batch, and no share is empty.
        share = math.ceil(loop.replica_share * params.problems_per_step / replicas.count)
        longest_prompt = max(len(problem.prompt) for problem in this_round.problems)
        # The most that a replica's slots could hold. vLLM's cache may hold less, and its replicas report how much.
        kv_capacity = sampler.max_sequences * (longest_prompt + params.max_response_tokens)
        self.pool = TrajectoryPool(loop, share, kv_capacity, sampling_settings(params))
        self.groups: dict[int, OutstandingGroup] = {}
        """Groups neither trained on nor dropped, in the order of issue."""
        self.next_number, self._cursor = 0, ProblemCursor()
        self.trained = 0
        self.left_out: Counter[Reason] = Counter()
        self.complete_lengths, self.trained_lengths = Lengths(), Lengths()
        """Response lengths of all complete groups, and of those that were trained on."""
        self._since = _SinceLastStep()
        self._judging: set[Name] = set()

    # Orders to replicas.

    def orders(self, replica: ReplicaId, newest: int, kept: Collection[int]) -> Orders | None:
        """Returns the next orders for the replica; None when there are none."""
        return self.pool.orders(replica, newest, kept, self._begin)

    def _begin(self, version: int, most: int) -> dict[Name, Trajectory]:
        begun: dict[Name, Trajectory] = {}
        for _ in range(min(most, self.window.may_begin(version))):
            number, self.next_number = self.next_number, self.next_number + 1
            draw = self._next_draw()
            # Written first: a replica must never generate a group that the journal of a killed hub does not know.
            self._write(Issued(number, draw.number, draw.problem.problem_id, version))
            self._issue(number, draw, version)
            begun |= {(number, member): one for member, one in enumerate(self._trajectories(draw))}
        return begun

    def _next_draw(self) -> ProblemDraw:
        """Returns the problem of the next group: the round's problems in their endless order."""
        places = self._cursor.advance(1, self._round.problems, *self._seed_parts)
        return problems_at(self._round.problems, places, *self._seed_parts)[0]

    def _issue(self, number: int, draw: ProblemDraw, version: int) -> None:
        self.window.begin(number, version)
        self.groups[number] = OutstandingGroup(draw, self.params.group_size)

    def _trajectories(self, draw: ProblemDraw) -> list[Trajectory]:
        return trajectories_of(draw, self.params.group_size, *self._seed_parts)

    def receive(self, replica: ReplicaId, report: Report) -> dict[Name, Sample]:
        """Processes a report; returns the samples to judge now."""
        ended = self.pool.receive(replica, report)
        wanted = {name: sample for name, sample in ended.items() if self._waits_for(name) and name not in self._judging}
        # A replaced replica may still report, and a trajectory that continued elsewhere may end twice: each member
        # counts once.
        self.pool.faults.duplicates += len(report.ended) - len(wanted)
        self._judging |= wanted.keys()
        return wanted

    def _waits_for(self, name: Name) -> bool:
        """Returns True while a result for this member would count."""
        return name[0] in self.groups and name[1] in self.groups[name[0]].open

    def lose(self, replica: ReplicaId, now: float) -> None:
        self.pool.lose(replica)
        for number, member in self.pool.given_up:
            self._write(Failed(number, member, "replicas died with it"))
            if self._waits_for((number, member)):
                self._end_member(number, member, None, now)
        self.pool.given_up.clear()

    # Verdicts.

    @property
    def judging(self) -> int:
        """Returns the number of responses that wait for a verdict."""
        return len(self._judging)

    def problem_of(self, name: Name) -> Problem:
        """Returns the problem that the member's response answers."""
        return self.groups[name[0]].draw.problem

    def write_judged(self, judged: Mapping[Name, Rollout]) -> None:
        """Journals the verdicts; `judged` may be counted once the journal is flushed."""
        for (number, member), rollout in judged.items():
            self._write(Finished(number, member, rollout.sample, rollout.response, rollout.verdict, rollout.custom))

    def judged(self, judged: Mapping[Name, Rollout], now: float) -> None:
        for name, rollout in judged.items():
            # A second result may have been judged meanwhile, or the group dropped.
            self._judging.discard(name)
            if self._waits_for(name):
                self._end_member(*name, rollout, now)
            else:
                self.pool.faults.duplicates += 1

    def _end_member(self, number: int, member: int, rollout: Rollout | None, now: float) -> None:
        """Ends a member: judged, or with None given up. After the last member, decides on the group."""
        reason = self._settle(number, member, rollout, now)
        if reason is not None:
            self._write(LeftOut(number, reason.value))
            self._leave_out(number, reason)

    def _settle(self, number: int, member: int, rollout: Rollout | None, now: float | None) -> Reason | None:
        """Adds a member. A complete group is ready, unless there is a reason to drop it: see `_leave_out`."""
        group = self.groups[number]
        group.open.remove(member)
        if rollout is not None:
            group.rollouts[member] = rollout
        if group.open:
            return None
        group.completed_at = now
        self.complete_lengths.add(group.rollouts.values())
        # Here, where a restored journal comes by as well: it must pass over the same problems.
        self._cursor.count([group.whole], self._round.settings.prompt_selection)
        reason = self._reason_to_leave_out(group)
        if reason is None:
            self.window.mark_ready(number)
            self._since.completed.append(group.whole)
        return reason

    def _reason_to_leave_out(self, group: OutstandingGroup) -> Reason | None:
        """Returns why a complete group gives no learning signal; None when it does."""
        # Two are the fewest that can be compared. A group of one is trained on by its reward alone, so there one is
        # enough.
        if sum(rollout.is_decided for rollout in group.rollouts.values()) < min(2, self.params.group_size):
            return Reason.TOO_FEW_DECIDED
        if isinstance(self.params.dynamic_sampling, DynamicSampling) and not group.whole.has_signal:
            return Reason.NO_SIGNAL
        return None

    def _leave_out(self, number: int, reason: Reason) -> None:
        self.window.leave_out(number)
        group = self.groups.pop(number)
        self.left_out[reason] += 1
        if group.rollouts:  # otherwise every member has failed, and there is nothing to keep
            self._since.completed.append(group.whole)
            self._since.left_out.append(group.whole)

    # Batches of the trainer.

    def next_batch(self, now: float) -> StepBatch | None:
        """Returns the batch of the next step; None while it must wait. UserError when the verifier failed too often."""
        if self.window.steps_done >= self.steps:
            return None
        numbers = self.window.next_batch() or self._short_batch()
        if numbers is None:
            return None
        # Before it is written: the next attempt, with the same journal, must stop here too.
        abort_on_verifier_failures(
            self._since.completed, self._round.verifier_params.abort_undecided_fraction, self.params.verifier
        )
        step = self.window.steps_done
        self._write(Trained(step + 1, step, tuple(numbers)))  # version `step` trains
        completed = [self.groups[number].completed_at for number in numbers]
        ages = tuple(now - at for at in completed if at is not None)
        return self._take(step, numbers, ages)

    def _short_batch(self) -> list[int] | None:
        """Returns all ready groups once a synchronous step would have reached its limit of groups without result."""
        sampling = self.params.dynamic_sampling
        if not isinstance(sampling, DynamicSampling):
            return None
        # A synchronous step samples at most `max_draws` times, each at most 1 / SMALLEST_SIGNAL_FRACTION batches.
        most = sampling.max_draws * self.params.problems_per_step / SMALLEST_SIGNAL_FRACTION
        return self.window.short_batch() if len(self._since.left_out) >= most else None

    def _take(self, step: int, numbers: Sequence[int], ages: tuple[float, ...]) -> StepBatch:
        self.window.take(numbers)
        groups = [self.groups.pop(number).whole for number in numbers]
        self.trained += len(groups)
        for group in groups:
            self.trained_lengths.add(group.rollouts)
        since, self._since = self._since, _SinceLastStep()
        batch = Batch(
            groups,
            since.completed,
            since.left_out,
            # Groups start one by one here, so a step has no draws to count.
            draws=1,
            too_stale=0,  # the window prevents groups that would become too stale
            carried=self.window.ready,
            signal_fraction=signal_fraction(since.completed, 1.0),
            newest_version=step,
        )
        return StepBatch(step, batch, tuple(numbers), ages)

    def leftover(self) -> list[Group]:
        """Returns groups that were decided after the last step, or that no step has taken."""
        # Groups dropped since the last step belong to no step, and every rollout is in the table once.
        return [*self._since.left_out, *(group.whole for group in self.groups.values() if not group.open)]

    def check_conservation(self) -> None:
        """Raises RuntimeError unless issued = trained + left out + outstanding."""
        accounted = self.trained + self.left_out.total() + len(self.groups)
        # Checked after every step, where it costs nothing: otherwise a lost group would go unnoticed.
        if self.next_number != accounted:
            raise RuntimeError(
                f"{self.next_number} groups were issued and {accounted} are accounted for ({self.trained} trained, "
                f"{dict(self.left_out)} left out, {len(self.groups)} outstanding): this is a fault of the loop"
            )

    # Persistence beyond the hub.

    def write_partials(self) -> None:
        """Journals the tokens of every trajectory in flight that has new ones."""
        for (number, member), flight in self.pool.flights():
            # Only new tokens: a response is journalled once over its life, however often this is called.
            start = flight.written
            if flight.version is None or start == len(flight.token_ids):
                continue
            flight.written = len(flight.token_ids)
            fresh = flight.token_ids[start:], flight.logprobs[start:]
            self._write(Partial(number, member, start, flight.version, *fresh, flight.observed))

    def restore(self, records: Iterable[Record]) -> list[StepBatch]:
        """Resumes from a journal; returns the batches of the steps that were taken, in order.

        Trajectories that had not ended wait for a replica, with their journalled tokens. Groups are dropped in the
        order in which they were completed, as before the kill; their records may come later in the journal.
        """
        # Records are replayed through the functions that made them, so the state cannot differ from before the kill.
        taken: list[StepBatch] = []
        unwritten: dict[int, Reason] = {}
        """Groups that were dropped and whose record has not come."""
        unfinished: dict[Name, InFlightTrajectory] = {}
        for record in records:
            match record:
                case Issued(number, _, _, version):
                    draw = self._next_draw()
                    self._check_draw(record, draw)
                    self._issue(number, draw, version)
                    self.next_number = number + 1
                    for member, trajectory in enumerate(self._trajectories(draw)):
                        unfinished[number, member] = InFlightTrajectory(trajectory, None, version)
                case Partial(number, member, start, version, token_ids, logprobs, observed):
                    flight = unfinished[number, member]
                    flight.version, flight.observed = version, observed
                    # A slice from `start`: a trajectory that began again (start 0) loses the tokens of an older
                    # version.
                    flight.token_ids[start:], flight.logprobs[start:] = token_ids, logprobs
                    flight.written = len(flight.token_ids)
                case Finished(number, member, sample, response, verdict, custom):
                    unfinished.pop((number, member), None)
                    rollout = recorded_rollout(sample, response, verdict, self.params, custom)
                    unwritten |= self._restore_member(number, member, rollout)
                case Failed(number, member):
                    unfinished.pop((number, member), None)
                    unwritten |= self._restore_member(number, member, None)
                case LeftOut(number, reason):
                    if unwritten.pop(number, None) is None:
                        self._leave_out(number, Reason(reason))
                # Without ages: they would mix the clocks of two attempts.
                case Trained(step, _, numbers):
                    taken.append(self._take(step - 1, numbers, ()))
        # As waiting, not as lost: no replica of this attempt has died with them.
        self.pool.waiting |= {name: flight for name, flight in unfinished.items() if self._waits_for(name)}
        # A kill may have come between a group's last member and the record that it was dropped.
        for number, reason in unwritten.items():
            self._write(LeftOut(number, reason.value))
        return taken

    def _restore_member(self, number: int, member: int, rollout: Rollout | None) -> dict[int, Reason]:
        """Adds a member from the journal; returns why its group was dropped, if it was the last member."""
        if not self._waits_for((number, member)):
            return {}
        # Not `_end_member`, which would write its record again.
        reason = self._settle(number, member, rollout, now=None)
        if reason is None:
            return {}
        self._leave_out(number, reason)
        return {number: reason}

    def _check_draw(self, issued: Issued, draw: ProblemDraw) -> None:
        """Compares the problem. The journal's folder is named after the work, so a mismatch means a damaged project."""
        if (draw.number, draw.problem.problem_id) != (issued.draw, issued.problem_id):
            raise RuntimeError(
                f"the journal's group {issued.group} is of problem {issued.problem_id}, this round's of "
                f"{draw.problem.problem_id}: remove the stage's scratch folder under state/ and run again"
            )


@dataclass
class OutstandingGroup:
    draw: ProblemDraw
    size: InitVar[int]
    open: set[int] = field(init=False)
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    completed_at: float | None = None
    """None while a member is open, and for a group of an earlier attempt: its journal has no times."""

    def __post_init__(self, size: int) -> None:
        self.open = set(range(size))

    @cached_property
    def whole(self) -> Group:
        """Returns its rollouts in the order of their sample numbers, once no member is open."""
        return make_group(self.draw, [self.rollouts[member] for member in sorted(self.rollouts)])


class Reason(StrEnum):
    """The reason why a group gave no learning signal."""

    NO_SIGNAL = "no_signal"
    """All decided responses are correct, or none is (dynamic sampling)."""
    TOO_FEW_DECIDED = "too_few_decided"
    """The verifier or the replicas failed on so many members that too few remain to compare."""


@dataclass
class Lengths:
    """Response tokens of many responses."""

    tokens: int = 0
    responses: int = 0

    def add(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            self.tokens += rollout.sample.policy_tokens
            self.responses += 1
