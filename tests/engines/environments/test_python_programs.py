"""Programs of the policy in their sandboxes: what they print, what they cannot do, and what ends them."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from stages.engines.environments import python_programs
from stages.engines.environments.python_programs import check_sandbox, run_program
from stages.engines.workers.sandbox import lacking
from stages.foundations.errors import UserError
from tests.fakes.guest_attacks import FLOOD, FORGERY, FORK_BOMB, all_in_one, one_by_one

PROJECT = Path(__file__).resolve().parents[3]
MIB = 512
has_sandbox = pytest.mark.skipif(bool(lacking()), reason="this kernel does not confine")
BOTH = ["monty", pytest.param("confined", marks=has_sandbox)]


@pytest.fixture(scope="module", autouse=True)
def helper():
    """One helper for all tests; it has a secret in its environment, as a stage may."""
    os.environ["SECRET"] = "the secret"
    python_programs.start()
    del os.environ["SECRET"]
    yield
    python_programs._helper.communicate()
    python_programs._helper = None


@pytest.fixture
def known(tmp_path):
    (tmp_path / "key").write_text("the key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield {"FOLDER": str(tmp_path), "PORT": server.getsockname()[1], "HOST": os.getpid()}
        with pytest.raises(BlockingIOError):
            server.accept()
    assert [path.name for path in tmp_path.iterdir()] == ["key"] and (tmp_path / "key").read_text() == "the key"
    assert not Path("/dev/shm/retrace-guest").exists() and not Path("/tmp/retrace-guest").exists()


def run(sandbox, program, seed=1, seconds=0.5):
    return run_program(sandbox, program, seed, MIB, seconds)


@pytest.mark.parametrize("sandbox", BOTH)
def test_the_text_is_what_the_program_prints(sandbox):
    for program, text, failed in (
        ("print(6 * 7)", "42", False),
        ("print('a'); print('é∫', end='')", "a\né∫", False),
        ("6 * 7", "", False),
        ("import math, json, re\nprint(json.dumps([math.comb(9, 3)]))", "[84]", False),
        ("print(1, end='')\nprint(2 / 0)", "1\nerror: ZeroDivisionError: division by zero", True),
        ("raise ValueError('two\\nlines')", "error: ValueError: two lines", True),
        ("print(x", None, True),
        ("print(input())", None, True),
    ):
        found = run(sandbox, program)
        assert found[1] == failed, found
        assert found[0] == text if text is not None else found[0].splitlines()[-1].startswith("error: "), found


@pytest.mark.parametrize("sandbox", BOTH)
def test_the_same_program_prints_the_same_and_leaves_nothing_behind(sandbox):
    program = "import random\nprint(random.random())" + ("\nprint(hash('a'))" if sandbox == "confined" else "")
    assert run(sandbox, program, seed=3) == run(sandbox, program, seed=3) != run(sandbox, program, seed=4)
    run(sandbox, "import random, math\nrandom.seed(1)\nmath.pi = 3\nkept = 5")
    assert run(sandbox, program, seed=3) == run(sandbox, program, seed=3)
    assert run(sandbox, "print(kept)") == ("error: NameError: name 'kept' is not defined", True)
    if sandbox == "confined":
        run(sandbox, "import builtins, math\nmath.pi = 3\nbuiltins.kept = 5")
        assert run(sandbox, "import math\nprint(math.pi)\nprint(kept)")[0].startswith("3.14")
        assert run(sandbox, "print(object())") == run(sandbox, "print(object())"), "the same address"
    else:
        assert run(sandbox, "import time\nprint(time.time())") == ("946684800.0", False)


@pytest.mark.parametrize("sandbox", BOTH)
def test_limits_end_a_program_and_nothing_else(sandbox):
    too_long = ("error: it ran out of time", True)
    assert run(sandbox, "print(1, flush=True)\nwhile True: pass", seconds=0.3) == too_long
    # A big power computes inside one instruction, where no interpreter looks at a clock.
    assert run(sandbox, "x = 7 ** 10 ** 8", seconds=0.3) == too_long
    assert run(sandbox, "x = 'a' * 10 ** 10")[0].startswith("error: MemoryError")
    text, failed = run(sandbox, FLOOD, seconds=5)
    assert failed and text.endswith("x\nerror: it printed more than 10,000 characters")
    assert len(text) < 10_100
    assert run(sandbox, "def f(): return f()\nf()")[0].startswith("error: RecursionError")
    assert run(sandbox, "print('alive')") == ("alive", False)


@has_sandbox
def test_programs_that_wait_are_ended_too():
    """They compute nothing: the wall clock decides."""
    for program in (
        "import time\ntime.sleep(1000)",
        "import threading\nlock = threading.Lock()\nlock.acquire(), lock.acquire()",
    ):
        assert run("confined", program, seconds=0.1) == ("error: it ran out of time", True)


@has_sandbox
def test_a_program_may_end_its_process_in_any_way():
    for program, text, failed in (
        ("print(1)\nexit()", "1", False),
        ("import sys\nsys.exit(3)", "error: exit code 3", True),
        ("import os\nos.write(1, b'1')\nos._exit(2)", "1\nerror: exit code 2", True),
        ("import os\nos.kill(os.getpid(), 9)", "error: signal 9", True),
        ("import sys\nsys.stdout = None\n1 / 0", "error: ZeroDivisionError: division by zero", True),
        ("import os\nos.close(1)", "", False),
        ("import sys, os\nsys.stdout.write('error: ')\nsys.exit(1)", "error: \nerror: exit code 1", True),
        ("class Odd(Exception):\n  def __str__(self): raise Odd\nraise Odd", None, True),
    ):
        found = run("confined", program)
        assert found[1] == failed and (text is None or found[0] == text), found


@has_sandbox
def test_installed_packages_and_threads_work():
    program = """
import numpy, threading
found = []
threads = [threading.Thread(target=found.append, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(numpy.linalg.inv(numpy.eye(2)).sum(), sorted(found))
"""
    assert run("confined", program, seconds=20) == ("2.0 [0, 1, 2]", False)


@has_sandbox
def test_no_attack_leaves_a_confined_program(known):
    assert run("confined", all_in_one(known), seconds=20) == ("all tried", False)
    assert run("confined", FORK_BOMB, seconds=20) == ("0", False)


def test_no_attack_leaves_monty(known):
    """Most of them already fail because the interpreter lacks the module."""
    for name, program in one_by_one(known).items():
        text, failed = run("monty", program, seconds=5)
        assert failed and "escaped" not in text and "the key" not in text and "the secret" not in text, name


@has_sandbox
def test_montys_own_process_is_confined():
    """A fault of the interpreter would still meet the kernel's limits."""
    run("monty", "print(1)")
    [interpreter] = psutil.Process(python_programs._helper.pid).children(recursive=True)
    assert interpreter.cmdline() == ["monty", "subprocess"]
    status = Path(f"/proc/{interpreter.pid}/status").read_text()
    assert "Seccomp:\t2\n" in status and "NoNewPrivs:\t1\n" in status


def test_an_interpreter_that_was_killed_between_two_programs_is_replaced():
    """As the kernel does where memory runs out."""
    for _ in range(2):
        assert run("monty", "print(1)") == ("1", False)
        for child in psutil.Process(python_programs._helper.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    assert run("monty", "print(2)") == ("2", False)


@has_sandbox
def test_a_process_that_may_become_one_program_becomes_no_other():
    script = """
import os, sys
from stages.engines.workers.sandbox import confine
confine([], os.path.realpath(sys.argv[1]))
try:
    os.execv(sys.argv[2], ["other"])
except PermissionError:
    os.execv(sys.argv[1], ["program"])
"""
    programs = [os.path.realpath(shutil.which(name)) for name in ("true", "false")]
    assert subprocess.run([sys.executable, "-c", script, *programs], cwd=PROJECT).returncode == 0
    assert subprocess.run([sys.executable, "-c", script, *programs[::-1]], cwd=PROJECT).returncode == 1


@has_sandbox
def test_lines_of_the_protocol_that_a_program_writes_are_its_output():
    text, failed = run("confined", FORGERY)
    assert not failed and text.splitlines()[0] == '{"refused": "stop the run"}'
    assert run("confined", "print(6 * 7)") == ("42", False), "and the next program gets its own answer"


@has_sandbox
@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a test as another user")
def test_no_attack_succeeds_as_an_ordinary_user(known):
    """Root may do more, and some limits do not bind it; so both are tried."""
    monty = shutil.which("monty", path=str(Path(sys.executable).parent))
    folder = Path(tempfile.mkdtemp())
    try:
        # A virtual environment that this user can read, of the system's Python.
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (folder / "bin/python").symlink_to("/usr/bin/python3")
        (folder / "bin/monty").symlink_to(os.path.realpath(monty))
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        script = f"""
from stages.engines.environments.python_programs import run_program
print(run_program("confined", {all_in_one(known)!r}, 1, {MIB}, 20.0))
print(run_program("confined", {FORK_BOMB!r}, 1, {MIB}, 20.0))
for program in {list(one_by_one(known).values())!r}:
    text, failed = run_program("monty", program, 1, {MIB}, 5.0)
    if not failed or "escaped" in text:
        print(program, text)
"""

        def as_user(program):
            return subprocess.run(
                [folder / "bin/python", "-sPB"],
                **dict(user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True),
                env={"PYTHONPATH": f"{PROJECT}{os.pathsep}{packages}"},
                input=program,
            )

        # A checkout or a package in a home folder cannot be read. Later errors are the sandbox's, and fail the test.
        probe = as_user("import stages.engines.environments.python_programs, pydantic_monty")
        if probe.returncode:
            pytest.skip(f"an ordinary user cannot read this checkout: {probe.stderr.splitlines()[-1]}")
        done = as_user(script)
    finally:
        shutil.rmtree(folder)
    assert done.stdout.splitlines() == ["('all tried', False)", "('0', False)"], done.stderr


def test_a_machine_that_lacks_a_sandbox_says_so(monkeypatch):
    monkeypatch.setattr(python_programs, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'retrace\[tools\]'"):
        check_sandbox("monty")
    monkeypatch.setattr(python_programs, "lacking", lambda: ["reading files (Landlock, Linux 5.13)"])
    with pytest.raises(UserError, match=r"does not restrict reading files .*or set sandbox: monty"):
        check_sandbox("confined")


def test_the_helper_refuses_where_the_sandbox_is_missing(monkeypatch):
    """The last guard, if nobody has looked before."""
    monkeypatch.setattr(python_programs, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="needs package"):
        python_programs._run("monty", "print(1)", 1, MIB, 1.0)
