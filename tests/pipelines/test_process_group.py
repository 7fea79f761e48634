"""No child survives, whichever way its parent ends."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.runtime.process_group import FellSilent, TimedOut, dvc, run_in_group, supervised, terminated_as_interrupt
from tests.fakes.processes import assert_all_end, descendants

PROJECT = Path(__file__).resolve().parents[2]
# A parent like `dvc repro`: starts a child, prints its id, and waits. The child ignores SIGTERM.
FAMILY = """
import signal, subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_output_comes_line_by_line_and_the_exit_code_is_returned(tmp_path):
    lines = []
    script = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    assert run_in_group([sys.executable, "-c", script], tmp_path, lines.append) == 3
    assert lines == ["one", "two"]


def test_a_timeout_ends_the_whole_family(tmp_path):
    lines = []
    with pytest.raises(TimedOut, match="stopped after 5 s"):
        run_in_group([sys.executable, "-c", FAMILY], tmp_path, lines.append, timeout_seconds=5)
    assert_all_end(map(int, lines))  # on a busy machine it may not have printed its child yet
    assert not descendants("stubborn")


def test_silence_ends_the_command_and_a_slow_talker_lives(tmp_path):
    talker = "import os, sys, time\nfor _ in range(4): print(os.getpid(), flush=True); time.sleep(float(sys.argv[1]))"
    assert run_in_group([sys.executable, "-c", talker, "2"], tmp_path, print, silent_seconds=7) == 0
    pids = []
    with pytest.raises(FellSilent, match="3 s of silence"):
        run_in_group([sys.executable, "-c", talker, "600"], tmp_path, pids.append, silent_seconds=3)
    assert_all_end(map(int, pids))
    assert not descendants("for _ in range(4)")


def test_an_exception_in_the_reader_ends_the_whole_family(tmp_path):
    pids = []

    def fail(line):
        pids.append(int(line))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_in_group([sys.executable, "-c", FAMILY], tmp_path, fail)
    assert_all_end(pids)


# As in vLLM, Ray and torchrun: children in separate sessions, and one whose parent has ended.
DAEMONS = """
import os, subprocess, sys, time
sleep = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
own = subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True, env={"nothing": "inherited"})
orphan = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
subprocess.run([sys.executable, "-c", orphan, sleep])
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.mark.parametrize("ends", [True, False])
def test_children_in_sessions_of_their_own_end_too(tmp_path, ends):
    pids = []

    def note(line):
        pids.append(int(line))
        if len(pids) == 2 and not ends:
            raise ZeroDivisionError
        if len(pids) == 2:
            (tmp_path / "end").touch()

    run = [[sys.executable, "-c", DAEMONS, "end"], tmp_path, note]
    if ends:
        assert run_in_group(*run) == 0, "the command ends well and its daemons live on"
    else:
        with pytest.raises(ZeroDivisionError):
            run_in_group(*run)
    assert len(pids) == 2
    assert_all_end(pids)


def test_they_end_when_the_caller_is_killed_outright(tmp_path):
    outer = "import sys; from pathlib import Path; from pipelines.runtime.process_group import run_in_group; "
    outer += "run_in_group([sys.executable, '-c', sys.argv[1], 'never'], Path('.'))"
    with subprocess.Popen([sys.executable, "-c", outer, DAEMONS], cwd=PROJECT, stdout=subprocess.PIPE, text=True) as it:
        pids = [int(it.stdout.readline()) for _ in range(2)]
        it.kill()
        it.wait()
        assert_all_end(pids)


# A caller that is killed as soon as it has started its command, before the supervisor is loaded.
HASTY = """
import os, signal, subprocess, sys
from pipelines.runtime.process_group import supervised
subprocess.Popen(supervised([sys.executable, "-c", "import time; print('it lives', flush=True); time.sleep(60)"]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_command_whose_caller_dies_before_its_keeper_is_loaded_never_runs():
    done = subprocess.run([sys.executable, "-c", HASTY], cwd=PROJECT, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_a_lock_is_held_for_the_command_and_not_by_it(tmp_path):
    with open(tmp_path / "lock", "w") as lock, open(tmp_path / "lock") as other:
        fcntl.flock(lock, fcntl.LOCK_EX)
        script = f"import os, time; print(os.path.exists('/proc/self/fd/{lock.fileno()}'), flush=True); time.sleep(60)"
        lines = []

        def look(line):
            lines.append(line)
            lock.close()
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run_in_group([sys.executable, "-c", script], tmp_path, look, held=[lock.fileno()])
        assert lines == ["False"]
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_exit_codes_of_the_keeper(tmp_path):
    assert run_in_group([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path) == 137
    assert run_in_group(["no-such-command"], tmp_path) == 127
    assert dvc("repro") == supervised(dvc("repro")), "one supervisor is enough"


OUTER = """
import sys
from pathlib import Path
from pipelines.runtime.process_group import run_in_group, terminated_as_interrupt
with terminated_as_interrupt():
    run_in_group([sys.executable, "-c", sys.argv[1]], Path("."))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_whole_family(number):
    command = [sys.executable, "-c", OUTER, FAMILY]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as outer:
        child = int(outer.stdout.readline())
        outer.send_signal(number)
        assert outer.wait() != 0
    assert_all_end([child])


def test_sigterm_is_itself_again_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupt():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is before
