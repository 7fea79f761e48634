"""Waits: what the log says while nothing changes, and the error at the limit."""

import threading

import pytest

from stages.engines.distributed import waiting
from stages.engines.distributed.waiting import LONGEST_STEP, PatientClock, StuckError, Watch, watched


@pytest.fixture
def now(monkeypatch):
    """The time, which a test sets."""
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


def test_a_machine_that_was_suspended_charges_nobody_for_it(now):
    clock = PatientClock()
    for _ in range(4):  # polled four times a second
        now[0] += 0.25
        clock.look()
    assert clock.now == pytest.approx(1.0)
    now[0] += 600.0  # suspended
    clock.look()
    assert clock.now == pytest.approx(1.0 + LONGEST_STEP)


def looked(watch, now, standing, seconds, most_seconds):
    for _ in range(seconds):
        now[0] += 1.0
        watch.look(standing, most_seconds)


def test_a_wait_is_logged_each_minute_and_ends_at_its_limit(now, capsys):
    watch = Watch("rl_1")
    looked(watch, now, "3 tokens", 60, 200)
    assert capsys.readouterr().err == ""
    looked(watch, now, "4 tokens", 201, 200)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and said[0] == "rl_1: no progress for 61 s: 4 tokens"
    with pytest.raises(StuckError, match="rl_1 is stuck: no progress for 201 s: 4 tokens"):
        looked(watch, now, "4 tokens", 1, 200)


def test_a_call_that_blocks_is_logged_and_ended(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "STILL_SECONDS", 0.4)
    with pytest.raises(StuckError, match="Ray is stuck: no progress"), watched("Ray", "its start", 2.0):
        threading.Event().wait(600)
    assert "Ray: no progress for" in capsys.readouterr().err
    # Nothing of the watch outlives its block.
    with watched("Ray", "its start", 600.0):
        pass
    assert "watch" not in [thread.name for thread in threading.enumerate()]


def test_a_call_that_takes_no_signal_ends_the_process(tmp_path):
    """As C code that never returns to Python: here with the signal blocked."""
    import subprocess
    import sys

    program = """
import signal, time
from stages.engines.distributed import waiting
waiting.GRACE_SECONDS = 0.2
with waiting.watched("Ray", "its start", 1.0):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    time.sleep(600)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Ray is stuck" in done.stderr and "so this process ends" in done.stderr
