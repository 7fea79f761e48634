"""The experience buffer: what has become of every group of a round, member by member, and which may be trained on.

Its state is a function of the journal's records: whatever happens is a record, which the hub writes down and hands to
`add`. So a hub that was killed builds the buffer of the moment of its last flush again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.experience_window import ExperienceWindow
from stages.rl_round.schedule.records import (
    Failed,
    Fault,
    Finished,
    Issued,
    LeftOut,
    Partial,
    Record,
    Totals,
    Trained,
)

TOO_FEW_DECIDED = "too_few_decided"
NO_SIGNAL = "no_signal"


@dataclass(frozen=True)
class BufferSettings:
    """What decides when a group is whole and when it may be trained on."""

    group_size: int
    groups_per_step: int
    window: int | None
    """Steps by which a group may be stale; None bounds nothing."""
    steps: int
    """Of the round."""
    needs_signal: bool
    """True under dynamic sampling: groups that are all correct or all wrong are left out."""


@dataclass(frozen=True)
class Conservation:
    """Where the issued groups are: nothing may be lost or counted twice."""

    issued: int
    trained: int
    left_out: Mapping[str, int]
    """By reason."""
    carried: int
    """Neither trained on nor left out (yet)."""

    @property
    def holds(self) -> bool:
        """True when issued = trained + left out + carried."""
        return self.issued == self.trained + sum(self.left_out.values()) + self.carried


@dataclass
class GroupProgress:
    """A group that is outstanding, or that a step since the last checkpoint has trained on."""

    issued: Issued
    segment: int
    """Of the journal, in which its records begin."""
    ended: dict[int, Finished | Failed] = field(default_factory=dict)
    """By member."""
    partial: dict[int, Partial] = field(default_factory=dict)
    """All tokens so far of the members that have begun and not ended, with `start` 0."""

    @property
    def finished(self) -> list[Finished]:
        """The whole responses, by sample number."""
        return [one for _, one in sorted(self.ended.items()) if isinstance(one, Finished)]

    @property
    def decided(self) -> list[Finished]:
        """Those that the verifier has an opinion about."""
        return [one for one in self.finished if not one.verdict.is_failure]

    @property
    def has_signal(self) -> bool:
        """True when some decided members are correct and some are not."""
        decided = self.decided
        return 0 < sum(one.verdict is Verdict.CORRECT for one in decided) < len(decided)


class ExperienceBuffer:
    """The groups of a round. Methods other than `add` and `checkpointed` change nothing."""

    def __init__(self, settings: BufferSettings, steps_done: int = 0) -> None:
        self.settings = settings
        self.window = ExperienceWindow(settings.groups_per_step, settings.window, settings.steps, steps_done)
        """Which groups may be begun, which make the next batch: to be asked, not changed."""
        self.duplicates = 0
        """Ends, since this buffer was made, of members that had ended before and of groups that are over."""
        self.faults: Counter[str] = Counter()
        self._outstanding: dict[int, GroupProgress] = {}
        self._unusable: dict[int, str] = {}
        """Whole groups that no step may train on, with the reason, until they are left out."""
        self._trained: dict[int, tuple[Trained, list[GroupProgress]]] = {}
        """Steps since the last checkpoint: what a trainer that has died must repeat."""
        self._totals = Totals(steps_done, 0, 0, {})

    @classmethod
    def from_records(
        cls, settings: BufferSettings, records: Iterable[tuple[int, Record]]
    ) -> ExperienceBuffer:
        """The buffer after the records of a journal, each with the number of its segment.

        ValueError for a record of a group that was never issued. Before the last `Totals` such a group is one whose
        beginning was dropped from the journal because it was over: the totals count it.
        """
        listed = list(records)
        counted = max((place for place, (_, one) in enumerate(listed) if isinstance(one, Totals)), default=-1)
        # The first batch that the journal still tells of, or the totals, say how many came before.
        before = (
            one.step - 1 if isinstance(one, Trained) else one.steps
            for _, one in listed
            if isinstance(one, Trained | Totals)
        )
        buffer = cls(settings, next(before, 0))
        for place, (segment, record) in enumerate(listed):
            if place < counted:
                record = buffer._without_dropped(record)
            if record is not None:
                buffer.add(record, segment)
        return buffer

    def __contains__(self, group: int) -> bool:
        return group in self._outstanding

    @property
    def next_group(self) -> int:
        """Number of the group that is issued next: its place in the round's endless order of problems."""
        return self._totals.issued

    @property
    def steps_done(self) -> int:
        """Steps whose batch was taken."""
        return self.window.steps_done

    @property
    def trained_steps(self) -> list[Trained]:
        """The steps since the last checkpoint, in order."""
        return [self._trained[step][0] for step in sorted(self._trained)]

    def outstanding(self) -> list[GroupProgress]:
        """The groups that are neither trained on nor left out, in the order of issue."""
        return list(self._outstanding.values())

    def progress(self, group: int) -> GroupProgress:
        """Of an outstanding group; KeyError for another."""
        return self._outstanding[group]

    def trained_groups(self, step: int) -> list[GroupProgress]:
        """What a step since the last checkpoint trained on, in its order; KeyError for another step."""
        return self._trained[step][1]

    def unfinished(self, group: int) -> list[int]:
        """The members of an outstanding group that have not ended."""
        ended = self._outstanding[group].ended
        return [member for member in range(self.settings.group_size) if member not in ended]

    def groups_to_leave_out(self) -> list[LeftOut]:
        """The whole groups that no step may train on, each with the reason: to be written down and added."""
        return [LeftOut(number, reason) for number, reason in self._unusable.items()]

    def next_batch(self) -> list[int] | None:
        """The groups that the next step should train on; None while it has to wait."""
        return self.window.next_batch()

    def conservation(self) -> Conservation:
        """Where the issued groups are."""
        totals = self._totals
        return Conservation(totals.issued, totals.trained, totals.left_out, len(self._outstanding))

    def totals(self) -> Totals:
        """The counts so far: to be written at the beginning of a new segment before older ones are dropped."""
        return self._totals

    def add(self, record: Record, segment: int = 0) -> bool:
        """Takes in what has happened; `segment` is where the journal holds it.

        False where it changes nothing, so that it need not be written down: tokens or the end of a member that has
        ended, or of a group that is over. The first end counts. ValueError for what cannot have happened.
        """
        match record:
            case Issued():
                return self._issue(record, segment)
            case Partial():
                return self._extend(record)
            case Finished() | Failed():
                return self._end(record)
            case LeftOut(group=group, reason=reason):
                self._known(group)
                self.window.leave_out(group)
                del self._outstanding[group]
                self._unusable.pop(group, None)
                left_out = {**self._totals.left_out, reason: self._totals.left_out.get(reason, 0) + 1}
                self._count(left_out=left_out)
            case Trained():
                self._train(record)
            case Totals(steps=steps):
                if steps != self.steps_done:
                    raise ValueError(f"totals of {steps} steps cannot follow step {self.steps_done}")
                self._totals = record
            case Fault(what=what):
                self.faults[what] += 1
        return True

    def checkpointed(self, step: int) -> int | None:
        """A checkpoint of `step` is on disk: its batches are forgotten.

        The oldest segment that is still needed, for `Journal.forget`; None when none is.
        """
        self._trained = {later: kept for later, kept in self._trained.items() if later > step}
        kept = [group for _, groups in self._trained.values() for group in groups]
        return min((group.segment for group in [*self._outstanding.values(), *kept]), default=None)

    def _issue(self, record: Issued, segment: int) -> bool:
        if record.group in self._outstanding or record.group < self._totals.issued:
            raise ValueError(f"group {record.group} was issued before")
        self.window.begin(record.group, record.version)
        self._outstanding[record.group] = GroupProgress(record, segment)
        self._count(issued=record.group + 1)
        return True

    def _extend(self, record: Partial) -> bool:
        group = self._known(record.group, may_be_over=True)
        if group is None or record.member in group.ended:
            return False
        if record.start:
            so_far = group.partial.get(record.member)
            if so_far is None or so_far.version != record.version or len(so_far.token_ids) < record.start:
                raise ValueError(
                    f"tokens of group {record.group}, member {record.member} from {record.start} on have no beginning "
                    f"that version {record.version} drew"
                )
            record = Partial(
                record.group,
                record.member,
                0,
                record.version,
                so_far.token_ids[: record.start] + record.token_ids,
                so_far.logprobs[: record.start] + record.logprobs,
            )
        group.partial[record.member] = record
        return True

    def _end(self, record: Finished | Failed) -> bool:
        group = self._known(record.group, may_be_over=True)
        if not 0 <= record.member < self.settings.group_size:
            raise ValueError(f"group {record.group} has no member {record.member}")
        if group is None or record.member in group.ended:
            self.duplicates += 1
            return False
        group.ended[record.member] = record
        group.partial.pop(record.member, None)
        if len(group.ended) == self.settings.group_size:
            reason = self._why_unusable(group)
            if reason:
                self._unusable[record.group] = reason
            else:
                self.window.mark_ready(record.group)
        return True

    def _train(self, record: Trained) -> None:
        if record.step != self.steps_done + 1:
            raise ValueError(f"step {record.step} cannot follow step {self.steps_done}")
        for number in record.groups:
            self._known(number)
        self.window.take(record.groups)
        self._trained[record.step] = record, [self._outstanding.pop(number) for number in record.groups]
        self._count(steps=record.step, trained=self._totals.trained + len(record.groups))

    def _why_unusable(self, group: GroupProgress) -> str | None:
        if len(group.decided) < min(2, self.settings.group_size):
            return TOO_FEW_DECIDED
        return NO_SIGNAL if self.settings.needs_signal and not group.has_signal else None

    def _known(self, group: int, may_be_over: bool = False) -> GroupProgress | None:
        """The outstanding group; None for one that is over, where it may be."""
        found = self._outstanding.get(group)
        if found is None and not (may_be_over and 0 <= group < self._totals.issued):
            raise ValueError(f"group {group} is not outstanding")
        return found

    def _count(self, **changes: int | Mapping[str, int]) -> None:
        totals = self._totals
        known = {name: getattr(totals, name) for name in totals.__slots__}
        self._totals = Totals(**{**known, **changes})

    def _without_dropped(self, record: Record) -> Record | None:
        """What of the record is about groups whose beginning the journal still holds."""
        match record:
            case Trained():
                held = tuple(group for group in record.groups if group in self._outstanding)
                return Trained(record.step, record.newest_version, held)
            case Partial() | Finished() | Failed() | LeftOut() if record.group not in self._outstanding:
                return None
        return record
