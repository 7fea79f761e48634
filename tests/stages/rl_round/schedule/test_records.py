"""Records of the journal: they come back equal, bit for bit, and need no torch."""

import json
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Sample, StopReason
from stages.rl_round.asynchronous.journal import (
    Failed,
    Fault,
    Finished,
    Issued,
    LeftOut,
    Partial,
    Trained,
    pack_floats,
    record_from_json,
    record_to_json,
    unpack_floats,
)

SAMPLE = Sample([5, 258], [-0.1, -2.5], StopReason.END_OF_SEQUENCE, 3)
RECORDS = [
    Issued(7, 1, "p1", 3),
    Partial(7, 2, 4, 3, [5, 6], [-0.5, -0.1]),
    Finished(7, 2, SAMPLE, "\\boxed{ä}", Verdict.TIMED_OUT),
    Failed(7, 3, "three_replicas_died"),
    LeftOut(7, "no_signal"),
    Trained(4, 3, (7, 9, 8)),
    Trained(5, None, ()),
    Fault("replica_died", {"replica": 1, "seconds": 0.5}),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
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


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_single_precision_takes_four_bytes_before_base64(values):
    assert len(pack_floats(values)) == -(-4 * len(values) // 3) * 4


def test_a_kind_that_is_not_known_is_named():
    with pytest.raises(ValueError, match="no records of kind 'begun'"):
        record_from_json({"kind": "begun"})


def test_the_hub_side_needs_no_torch():
    check = "import sys, stages.rl_round.asynchronous.journal; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)
