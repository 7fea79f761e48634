"""Processes end with the one they work for."""

import os
import signal
import subprocess
import sys

import pytest

from tests.fakes.processes import assert_all_end, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals and pidfds are Linux's")

STAGE = (
    "import os, time; from stages.observe.command import run_stage; "
    "run_stage(lambda: (print(os.getpid(), flush=True), time.sleep(60)))"
)
DIRECTLY = "subprocess.run([sys.executable, '-c', stage], env=environment)"
BEHIND_A_SHELL = "subprocess.run(['/bin/sh', '-c', '\"$0\" -c \"$1\"; true', sys.executable, stage], env=environment)"
BEHIND_A_LAUNCHER = (
    "subprocess.run([sys.executable, '-c', "
    "'import subprocess, sys; subprocess.run([sys.executable, \"-c\", sys.argv[1]])', stage], env=environment)"
)


@pytest.mark.parametrize("start", [DIRECTLY, BEHIND_A_SHELL, BEHIND_A_LAUNCHER])
def test_a_stage_dies_with_dvc(start, tmp_path):
    """The outer process stands for DVC: it sets DVC_STAGE for what it starts."""
    dvc = f"import os, subprocess, sys; stage = {STAGE!r}; environment = os.environ | {{'DVC_STAGE': 'sft'}}; {start}"
    command = [sys.executable, "-c", dvc]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert_all_end([pid])


def test_the_test_itself_sees_running_processes():
    assert is_running(os.getpid())
