"""The experience buffer: whole groups are ready or left out, first ends count, and a journal rebuilds it."""

import random
import subprocess
import sys

import pytest

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.samples import Sample, StopReason
from stages.rl_round.asynchronous.experience_buffer import BufferSettings, Conservation, ExperienceBuffer
from stages.rl_round.schedule.journal import Journal
from stages.rl_round.schedule.records import (
    Failed,
    Fault,
    Finished,
    Issued,
    LeftOut,
    Partial,
    Totals,
    Trained,
    record_from_json,
    record_to_json,
)

SETTINGS = BufferSettings(group_size=3, groups_per_step=2, window=1, steps=8, needs_signal=True)
VERDICTS = {"c": Verdict.CORRECT, "w": Verdict.WRONG, "u": Verdict.UNPARSED, "t": Verdict.TIMED_OUT}


def end(group, member, kind, version=0):
    if kind == "f":
        return Failed(group, member, "every_attempt_died")
    sample = Sample([5, member], [-0.5, -0.25], StopReason.END_OF_SEQUENCE, version)
    return Finished(group, member, 0, sample, "text", VERDICTS[kind])


def with_group(kinds, buffer=None, number=0):
    buffer = buffer or ExperienceBuffer(SETTINGS)
    buffer.add(Issued(number, 0, f"p{number}", 0))
    for member, kind in enumerate(kinds):
        buffer.add(end(number, member, kind))
    return buffer


@pytest.mark.parametrize(
    ("kinds", "ready", "reason"),
    [
        ("cw", 0, None),  # a member is missing
        ("cwu", 1, None),
        ("ccw", 1, None),
        ("ccc", 0, "no_signal"),
        ("wwu", 0, "no_signal"),
        ("cwt", 1, None),
        ("cwf", 1, None),
        ("cct", 0, "no_signal"),
        ("ctt", 0, "too_few_decided"),
        ("cft", 0, "too_few_decided"),
        ("fff", 0, "too_few_decided"),
    ],
)
def test_a_whole_group_is_ready_or_left_out_with_a_reason(kinds, ready, reason):
    buffer = with_group(kinds)
    assert buffer.window.ready == ready
    assert buffer.groups_to_leave_out() == ([LeftOut(0, reason)] if reason else [])
    for record in buffer.groups_to_leave_out():
        assert buffer.add(record)
    assert buffer.groups_to_leave_out() == []
    assert (0 in buffer) == (reason is None)
    assert buffer.conservation() == Conservation(1, 0, {reason: 1} if reason else {}, 0 if reason else 1)


def test_without_dynamic_sampling_a_group_without_signal_is_ready():
    buffer = ExperienceBuffer(BufferSettings(3, 2, 1, 8, needs_signal=False))
    assert with_group("ccc", buffer).window.ready == 1


def test_a_lone_response_is_a_group_where_groups_are_of_one():
    settings = BufferSettings(1, 2, 1, 8, needs_signal=False)
    assert with_group("c", ExperienceBuffer(settings)).window.ready == 1
    assert with_group("t", ExperienceBuffer(settings)).groups_to_leave_out() == [
        LeftOut(0, "too_few_decided")
    ]


def test_the_first_end_of_a_member_counts():
    buffer = with_group("cw")
    assert not buffer.add(end(0, 1, "c")) and not buffer.add(end(0, 0, "f"))
    assert buffer.duplicates == 2 and buffer.unfinished(0) == [2]
    assert [one.verdict for one in buffer.progress(0).finished] == [Verdict.CORRECT, Verdict.WRONG]
    buffer.add(end(0, 2, "c"))
    with_group("cwc", buffer, number=1)
    assert buffer.next_batch() == [0, 1]
    assert buffer.add(Trained(1, 0, (0, 1)))
    assert not buffer.add(end(0, 2, "w")) and not buffer.add(Partial(0, 2, 0, 0, [5], [-0.5]))
    assert buffer.duplicates == 3 and buffer.steps_done == 1


def test_tokens_go_on_behind_what_is_there_and_a_new_version_begins_again():
    buffer = with_group("c")
    assert buffer.add(Partial(0, 1, 0, 0, [5, 6], [-0.5, -0.6]))
    assert buffer.add(Partial(0, 1, 2, 0, [7], [-0.7]))
    assert buffer.add(Partial(0, 1, 1, 0, [8], [-0.8]))  # what was lost with a replica is drawn again
    assert buffer.progress(0).partial[1] == Partial(0, 1, 0, 0, [5, 8], [-0.5, -0.8])
    with pytest.raises(ValueError, match="from 3 on have no beginning that version 0 drew"):
        buffer.add(Partial(0, 1, 3, 0, [9], [-0.9]))
    with pytest.raises(ValueError, match="have no beginning that version 1 drew"):
        buffer.add(Partial(0, 1, 2, 1, [9], [-0.9]))
    assert buffer.add(Partial(0, 1, 0, 1, [9], [-0.9]))
    assert buffer.progress(0).partial[1].token_ids == [9]
    buffer.add(end(0, 1, "w"))
    assert buffer.progress(0).partial == {}
    assert not buffer.add(Partial(0, 1, 1, 1, [9], [-0.9]))


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (Issued(0, 0, "p0", 0), "group 0 was issued before"),
        (end(7, 0, "c"), "group 7 is not outstanding"),
        (Partial(7, 0, 0, 0, [5], [-0.5]), "group 7 is not outstanding"),
        (LeftOut(7, "no_signal"), "group 7 is not outstanding"),
        (end(0, 3, "c"), "group 0 has no member 3"),
        (Trained(2, 0, (0,)), "step 2 cannot follow step 0"),
        (Trained(1, 0, (0, 7)), "group 7 is not outstanding"),
        (Totals(3, 1, 0, {}), "totals of 3 steps cannot follow step 0"),
    ],
)
def test_what_cannot_have_happened_is_refused_and_changes_nothing(record, told):
    buffer = with_group("cwc")
    before = seen(buffer)
    with pytest.raises(ValueError, match=told):
        buffer.add(record)
    assert seen(buffer) == before


def seen(buffer):
    """All that a hub can see of a buffer."""
    return (
        buffer.conservation(),
        buffer.totals(),
        buffer.faults,
        buffer.outstanding(),
        buffer.window.ready_groups(),
        [buffer.window.may_begin(version) for version in range(buffer.steps_done + 1)],
        buffer.next_batch(),
        buffer.groups_to_leave_out(),
        [(step, buffer.trained_groups(step.step)) for step in buffer.trained_steps],
    )


class Hub:
    """Lets random things happen as a hub would, each written down before it counts."""

    def __init__(self, folder, settings):
        self.settings, self.journal = settings, Journal(folder, segment_bytes=600)
        self.buffer, self.checkpoint = ExperienceBuffer(settings), 0

    def write(self, record):
        self.buffer.add(record, self.journal.append(record_to_json(record)))
        self.journal.flush()

    def begin(self, rng):
        version = rng.randint(max(0, self.buffer.steps_done - 1), self.buffer.steps_done)
        if self.buffer.window.may_begin(version):
            number = self.buffer.next_group
            self.write(Issued(number, number // 5, f"p{number % 5}", version))

    def go_on(self, rng):
        if not self.buffer.outstanding():
            return
        group = rng.choice(self.buffer.outstanding())
        member = rng.randrange(self.settings.group_size)
        version, so_far = group.issued.version, group.partial.get(member)
        start = len(so_far.token_ids) if so_far else 0
        if member in group.ended:
            assert not self.buffer.add(end(group.issued.group, member, "c", version))
        elif rng.random() < 0.5:
            self.write(end(group.issued.group, member, rng.choice("ccwwutf"), version))
        else:
            self.write(Partial(group.issued.group, member, start, version, [start], [-0.1 * start]))
        if rng.random() < 0.7:  # a hub may die before it has left them out
            for record in self.buffer.groups_to_leave_out():
                self.write(record)

    def train(self, rng):
        batch = self.buffer.next_batch()
        if batch and self.buffer.steps_done < self.settings.steps:
            stale = [self.buffer.steps_done - self.buffer.progress(group).issued.version for group in batch]
            assert max(stale) <= self.settings.window
            self.write(Trained(self.buffer.steps_done + 1, self.buffer.steps_done, tuple(batch)))

    def save(self, rng):
        self.checkpoint = rng.randint(self.checkpoint, self.buffer.steps_done)
        needed = self.buffer.checkpointed(self.checkpoint)
        newest = self.journal.next_segment()
        self.write(self.buffer.totals())
        self.journal.forget(newest if needed is None else min(needed, newest))

    def die(self, rng):
        before = seen(self.buffer)
        self.journal.close()
        self.journal = Journal(self.journal.folder, segment_bytes=600)
        records = ((segment, record_from_json(stored)) for segment, stored in self.journal.records())
        self.buffer = ExperienceBuffer.from_records(self.settings, records)
        self.buffer.checkpointed(self.checkpoint)
        assert without_segments(seen(self.buffer)) == without_segments(before)


def without_segments(value):
    """What a test may compare: faults of dropped segments are forgotten, and no decision depends on them."""
    return [part for place, part in enumerate(value) if place != 2]


def test_whatever_happens_conservation_holds_and_the_journal_rebuilds_the_buffer(tmp_path):
    acts = [Hub.begin] * 5 + [Hub.go_on] * 20 + [Hub.train] * 4 + [Hub.save, Hub.die]
    steps, deaths = 0, 0
    for seed in range(20):
        rng = random.Random(seed)
        settings = BufferSettings(2, 2, rng.randint(0, 2), 6, needs_signal=rng.random() < 0.5)
        hub = Hub(tmp_path / str(seed), settings)
        for act in rng.choices(acts, k=600):
            act(hub, rng)
            assert hub.buffer.conservation().holds
            deaths += act is Hub.die
        Hub.die(hub, rng)
        hub.journal.close()
        steps += hub.buffer.steps_done
    assert steps > 80 and deaths > 200, "the acts were too tame"


def test_a_journal_that_lacks_a_beginning_without_totals_is_refused():
    with pytest.raises(ValueError, match="group 3 is not outstanding"):
        ExperienceBuffer.from_records(SETTINGS, [(1, end(3, 0, "c"))])


def test_faults_are_counted():
    buffer = ExperienceBuffer.from_records(SETTINGS, [(1, Fault("replica_died")), (1, Fault("replica_died"))])
    assert buffer.faults == {"replica_died": 2}


def test_the_buffer_needs_no_torch_and_no_ray():
    check = (
        "import stages.rl_round.asynchronous.experience_buffer, stages.rl_round.loop.round_log, "
        "stages.rl_round.schedule.schedule, sys; assert not {'torch', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
