"""No child survives, whichever way its parent ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.process_group import TimedOut, run_in_group, terminated_as_interrupt

PROJECT = Path(__file__).resolve().parents[2]
# A parent like `dvc repro`: starts a child, tells its id, and waits. The child ignores a polite end.
FAMILY = """
import signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_output_comes_line_by_line_and_the_exit_code_is_returned(tmp_path):
    lines = []
    script = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    assert run_in_group([sys.executable, "-c", script], tmp_path, lines.append) == 3
    assert lines == ["one", "two"]


def test_a_timeout_ends_the_whole_family(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.process_group.SECONDS_TO_END", 0.5)
    lines, started = [], time.monotonic()
    with pytest.raises(TimedOut, match="stopped after 2 s"):
        run_in_group([sys.executable, "-c", FAMILY], tmp_path, lines.append, timeout_seconds=2)
    assert time.monotonic() - started < 8
    assert not is_running(int(lines[0]))


def test_an_exception_in_the_reader_ends_the_whole_family(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.process_group.SECONDS_TO_END", 0.5)
    pids = []

    def fail(line):
        pids.append(int(line))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_in_group([sys.executable, "-c", FAMILY], tmp_path, fail)
    assert not is_running(pids[0])


OUTER = """
import sys
from pathlib import Path
from pipelines.process_group import run_in_group, terminated_as_interrupt
with terminated_as_interrupt():
    run_in_group([sys.executable, "-c", sys.argv[1]], Path("."))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_whole_family(number):
    command = [sys.executable, "-c", OUTER, FAMILY]
    with subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as outer:
        child = int(outer.stdout.readline())
        outer.send_signal(number)
        assert outer.wait(20) != 0
    assert not is_running(child)


def test_sigterm_is_itself_again_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is before
