"""The shell of stage commands: exit codes, messages, and no orphans."""

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from stages.foundations.machine import PROJECT
from tests.fakes.processes import assert_all_end


def run(body, before=""):
    main = textwrap.indent(body, "    ")
    code = f"{before}from stages.observe.command import run_stage\ndef main():\n{main}\nrun_stage(main)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("pass", 0, ""),
        ("from stages.foundations.errors import UserError\nraise UserError('rows: 0, give more')", 2, "error: rows: 0"),
        ("import errno\nraise OSError(errno.ENOSPC, 'full', '/data/x')", 1, "no disk space left at /data/x"),
        ("import errno\nraise OSError(errno.EFBIG, 'large', '/data/x')", 1, "a file at /data/x has reached the"),
        ("raise RuntimeError('I/O error: No space left on device (os error 28)')", 1, "no disk space left at"),
        ("import errno\nraise OSError(errno.EROFS, 'ro', '/data/x')", 1, "/data/x is on a read-only file system"),
        ("open('/proc/1/no', 'w')", 1, "Traceback"),
        ("import errno\nraise PermissionError(errno.EACCES, 'no', '/data/x')", 1, "change its permissions"),
        ("import os, sys\nos.mkdir(sys.executable + '/state/locks')", 1, " is a file, and a folder is needed there"),
        ("import os, sys\nos.mkdir(sys.executable)", 1, " is a file, and a folder is needed there: move it away"),
        ("import os\nos.mkdir('/proc')", 1, "Traceback"),
        ("raise ZeroDivisionError('oops')", 1, "Traceback"),
        ("raise KeyboardInterrupt", 130, "resumes from the last checkpoint"),
    ],
)
def test_exit_codes_and_messages(body, code, told):
    done = run(body)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert ("Traceback" in done.stderr) == (told == "Traceback")


@pytest.mark.parametrize("module", ["stages", "pipelines.launching"])
def test_a_python_without_the_packages_is_told_to_use_the_environment(module):
    # Without `site`, the Python of an environment is the one that it was made from.
    command = [sys.executable, "-S", "-m", module, "code"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    remedy = "source .venv/bin/activate" if (PROJECT / ".venv").exists() else "make repro"
    assert "has no package" in done.stderr and f"run `{remedy}`" in done.stderr


@pytest.mark.parametrize("body", ["pass", "raise SystemExit(3)"])
def test_what_was_imported_is_not_looked_through_for_garbage_when_it_ends(body):
    """And what was to be done at the end is done: outputs are flushed, `atexit` is heard."""
    told = "import atexit, gc\natexit.register(lambda: print('frozen', gc.get_freeze_count() > 0))\n"
    first = "import stages.observe.command, atexit\natexit.register(lambda: print('last'))\n"
    done = run(f"{first}\n{body}", before=told)
    assert done.stdout.split() == ["last", "frozen", "True"] and done.returncode in (0, 3), done.stderr


FREED = """import os, sys, types
class Told:
    def __del__(self, write=os.write):
        write(1, b"freed")
sys.modules["holder"] = types.ModuleType("holder")
sys.modules["holder"].told = Told()
"""


@pytest.mark.parametrize(
    ("torch", "body", "code", "said"),
    [
        ("absent", "pass", 0, ""),
        ("torch", "pass", 0, ""),
        ("torch", "raise SystemExit", 0, ""),
        ("torch", "raise SystemExit(3)", 3, ""),
        ("torch", "raise SystemExit('words')", 1, "words"),
        ("torch", "raise ZeroDivisionError('oops')", 1, "oops"),
        ("torch", "raise KeyboardInterrupt", 130, "resumes"),
    ],
)
def test_with_torch_it_ends_without_teardown_when_all_at_exit_is_done(torch, body, code, said):
    """A module of that name stands for torch. The thread and the function at exit are heard, output is flushed."""
    begun = """import atexit, sys, threading, time
sys.stdout.write("a line without end, ")
threading.Thread(target=lambda: (time.sleep(0.2), sys.stdout.write("thread, "))).start()
atexit.register(sys.stdout.write, "exit ")
"""
    done = run(f"{begun}{body}", before=f"{FREED}sys.modules['{torch}'] = types\n")
    freed = "" if torch == "torch" else "freed"
    assert done.stdout == f"a line without end, thread, exit {freed}" and done.returncode == code
    assert said in done.stderr


def test_output_that_finds_no_room_at_the_end_is_no_success():
    code = "import sys; sys.modules['torch'] = sys\nfrom stages.observe.command import run_stage\nrun_stage(lambda: {})"
    own = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code.format("print('x')")], stdout=full, stderr=subprocess.PIPE, text=True, env=own
        )
    assert done.returncode != 0 and "No space left" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_stage_that_loaded_triton_ends_without_a_word():
    done = run("import triton")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signals and pidfds are Linux's")
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
