"""Silence counts only while somebody listens."""

import pytest

from stages.engines.distributed import ranked_actors
from stages.engines.distributed.ranked_actors import LONGEST_STEP, PatientClock


def test_a_machine_that_was_suspended_charges_nobody_for_it(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(ranked_actors.time, "monotonic", lambda: now[0])
    clock = PatientClock()
    for _ in range(4):  # looked at four times a second
        now[0] += 0.25
        clock.look()
    assert clock.now == pytest.approx(1.0)
    now[0] += 600.0  # suspended
    clock.look()
    assert clock.now == pytest.approx(1.0 + LONGEST_STEP)
