"""The journal: flushed records are read back bit for bit, a torn end is cut off, and a gap is an error."""

import json
import signal
import struct
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Episode, Sample, StopReason
from stages.foundations.errors import UserError
from stages.rl_round.asynchronous.journal import (
    Failed,
    Fault,
    Finished,
    Issued,
    Journal,
    LeftOut,
    Partial,
    Trained,
    pack_floats,
    record_from_json,
    record_to_json,
    unpack_floats,
)
from tests.fakes.small_disks import fill, mount_small

RECORDS = [{"kind": "fault", "what": "ä" * number, "details": {"number": number / 7}} for number in range(5)]


def read(folder):
    with Journal(folder) as journal:
        return list(journal.records())


@pytest.fixture
def written(tmp_path):
    """Returns the bytes of a journal of RECORDS, and where each record ends."""
    ends = []
    with Journal(tmp_path / "written") as journal:
        for record in RECORDS:
            journal.append(record)
            journal.flush()
            ends.append((tmp_path / "written/records").stat().st_size)
    return (tmp_path / "written/records").read_bytes(), ends


def with_bytes(folder, content):
    folder.mkdir(exist_ok=True)
    (folder / "records").write_bytes(content)
    return folder


def test_a_journal_cut_at_any_byte_keeps_its_whole_records_and_can_be_written_on(written, tmp_path, capsys):
    content, ends = written
    folder = tmp_path / "cut"
    for length in range(len(content) + 1):
        whole = sum(end <= length for end in ends)
        with Journal(with_bytes(folder, content[:length])) as journal:
            assert list(journal.records()) == RECORDS[:whole]
            journal.append({"later": length})
        lost = length - max([0, *(end for end in ends if end <= length)])
        assert (f"its last {lost} bytes are cut off" in capsys.readouterr().err) == bool(lost)
        assert read(folder) == [*RECORDS[:whole], {"later": length}]


def test_any_flipped_byte_is_an_error_or_costs_the_last_record_and_a_warning(written, tmp_path, capsys):
    content, ends = written
    for place in range(len(content)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(content)
            damaged[place] ^= flip
            folder = with_bytes(tmp_path / "flipped", bytes(damaged))
            hit = sum(end <= place for end in ends)
            if hit == len(RECORDS) - 1:
                assert read(folder) == RECORDS[:-1]
                assert f"its last {len(content) - ends[-2]} bytes are cut off" in capsys.readouterr().err
                continue
            start = [0, *ends][hit]
            with pytest.raises(UserError, match=rf"records has a damaged record at byte {start}.*remove the folder"):
                read(folder)
            assert (folder / "records").read_bytes() == damaged


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(st.sampled_from(["flush", "reopen"]) | st.dictionaries(st.text(), JSON, max_size=3), max_size=30)
)
def test_any_records_come_back_in_order_across_openings(actions, tmp_path_factory):
    folder = tmp_path_factory.mktemp("journal")
    journal, expected = Journal(folder), []
    for action in actions:
        if action == "flush":
            journal.flush()
        elif action == "reopen":
            journal.close()
            journal = Journal(folder)
        else:
            expected.append(action)
            journal.append(action)
    assert list(journal.records()) == expected
    journal.clear()
    assert list(journal.records()) == []
    journal.close()


def test_what_is_not_flushed_is_not_promised_and_what_is_outlives_a_kill(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from stages.rl_round.asynchronous.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(100): journal.append({'number': number}); journal.flush()\n"
        "journal.append({'number': 'never flushed'}); print('written', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "written\n"
    with pytest.raises(UserError, match="another process writes the journal"):
        Journal(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert read(tmp_path) == [{"number": number} for number in range(100)]


def test_a_full_disk_loses_nothing_that_was_flushed(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount_small(disk, 256 * 1024)
    try:
        with Journal(disk / "journal") as journal:
            journal.append({"before": 1})
            journal.flush()
            fill(disk)
            journal.append({"text": "x" * 50_000})
            with pytest.raises(UserError, match=r"No space left on device\. Free disk space and run again"):
                journal.flush()
            (disk / "filler").unlink()
            assert list(journal.records()) == [{"before": 1}, {"text": "x" * 50_000}]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_half_a_write_is_taken_back(tmp_path):
    """A limit on the file's size stops the write in the middle of a record, on any machine."""
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from stages.foundations.errors import UserError\n"
        "from stages.rl_round.asynchronous.journal import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "journal.append({'before': 1}); journal.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "journal.append({'text': 'x' * 5000})\n"
        "try: journal.flush()\n"
        "except UserError as error: print('told', error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "print([len(str(record)) for record in journal.records()])"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert "told the journal" in done.stdout and "[13, 5012]" in done.stdout
    assert [len(str(record)) for record in read(tmp_path)] == [13, 5012]


def test_a_record_that_json_cannot_hold_is_refused_before_it_is_written(tmp_path):
    with Journal(tmp_path) as journal:
        with pytest.raises(TypeError):
            journal.append({"path": tmp_path})
        assert list(journal.records()) == []


SAMPLE = Sample([5, 258], [-0.1, -2.5], StopReason.END_OF_SEQUENCE, 3)
EPISODE = Episode(((0, 1),), 2, "ä", 3, 1, 0.1, 1 / 3, False, "no")
KINDS = [
    Issued(7, 1, "p1", 3),
    Partial(7, 2, 4, 3, [5, 6], [-0.5, -0.1]),
    Partial(7, 2, 4, 3, [5, 6], [-0.5, -0.1], ((1, 2), (5, 6))),
    Finished(7, 2, SAMPLE, "\\boxed{ä}", Verdict.TIMED_OUT),
    Finished(7, 2, replace(SAMPLE, stop_reason=StopReason.STOP_STRING), "stop", Verdict.WRONG),
    Finished(7, 2, replace(SAMPLE, episode=EPISODE), "\\boxed{ä}", Verdict.CRASHED),
    Failed(7, 3, "three_replicas_died"),
    LeftOut(7, "no_signal"),
    Trained(4, 3, (7, 9, 8)),
    Trained(5, None, ()),
    Fault("replica_died", {"replica": 1, "seconds": 0.5}),
]


@pytest.mark.parametrize("record", KINDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record):
    assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record


def bits(values):
    return [struct.pack("<d", value) for value in values]


@given(st.lists(st.floats(width=32) | st.floats()))
def test_floats_keep_every_bit(values):
    stored = json.loads(json.dumps(pack_floats(values)))
    finite = [value for value in values if value == value]
    assert bits(value for value in unpack_floats(stored) if value == value) == bits(finite)
    assert len(unpack_floats(stored)) == len(values)


def test_a_kind_that_is_not_known_is_named():
    with pytest.raises(ValueError, match="no records of kind 'begun'"):
        record_from_json({"kind": "begun"})
