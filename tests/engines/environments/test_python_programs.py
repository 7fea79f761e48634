"""Programs of the policy in their sandboxes: what they print, what they cannot do, and what ends them."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stages.engines.environments import python_programs
from stages.engines.environments.python_programs import check_sandbox, run_program
from stages.engines.workers.sandbox import lacking
from stages.foundations.errors import UserError
from tests.fakes.guest_attacks import FLOOD, FORGERY, FORK_BOMB, all_in_one

PROJECT = Path(__file__).resolve().parents[3]
MIB = 512
has_sandbox = pytest.mark.skipif(bool(lacking()), reason="this kernel does not confine")


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


def run(program, seed=1, seconds=0.5):
    return run_program(program, seed, MIB, seconds)


@has_sandbox
def test_the_text_is_what_the_program_prints():
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
        found = run(program)
        assert found[1] == failed, found
        assert found[0] == text if text is not None else found[0].splitlines()[-1].startswith("error: "), found


@has_sandbox
def test_the_same_program_prints_the_same_and_leaves_nothing_behind():
    program = "import random\nprint(random.random())\nprint(hash('a'))"
    assert run(program, seed=3) == run(program, seed=3) != run(program, seed=4)
    run("import random, math\nrandom.seed(1)\nmath.pi = 3\nkept = 5")
    assert run(program, seed=3) == run(program, seed=3)
    assert run("print(kept)") == ("error: NameError: name 'kept' is not defined", True)
    run("import builtins, math\nmath.pi = 3\nbuiltins.kept = 5")
    assert run("import math\nprint(math.pi)\nprint(kept)")[0].startswith("3.14")
    assert run("print(object())") == run("print(object())"), "the same address"


@has_sandbox
def test_limits_end_a_program_and_nothing_else():
    too_long = ("error: it ran out of time", True)
    assert run("print(1, flush=True)\nwhile True: pass", seconds=0.3) == too_long
    # A big power computes inside one instruction, where no interpreter looks at a clock.
    assert run("x = 7 ** 10 ** 8", seconds=0.3) == too_long
    assert run("x = 'a' * 10 ** 10")[0].startswith("error: MemoryError")
    text, failed = run(FLOOD, seconds=5)
    assert failed and text.endswith("x\nerror: it printed more than 10,000 characters")
    assert len(text) < 10_100
    assert run("def f(): return f()\nf()")[0].startswith("error: RecursionError")
    assert run("print('alive')") == ("alive", False)


@has_sandbox
def test_programs_that_wait_are_ended_too():
    """They compute nothing: the wall clock decides."""
    for program in (
        "import time\ntime.sleep(1000)",
        "import threading\nlock = threading.Lock()\nlock.acquire(), lock.acquire()",
    ):
        assert run(program, seconds=0.1) == ("error: it ran out of time", True)


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
        found = run(program)
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
    assert run(program, seconds=20) == ("2.0 [0, 1, 2]", False)


@has_sandbox
def test_no_attack_leaves_a_confined_program(known):
    assert run(all_in_one(known), seconds=20) == ("all tried", False)
    assert run(FORK_BOMB, seconds=20) == ("0", False)


@has_sandbox
def test_lines_of_the_protocol_that_a_program_writes_are_its_output():
    text, failed = run(FORGERY)
    assert not failed and text.splitlines()[0] == '{"refused": "stop the run"}'
    assert run("print(6 * 7)") == ("42", False), "and the next program gets its own answer"


@has_sandbox
@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a test as another user")
def test_no_attack_succeeds_as_an_ordinary_user(known):
    """Root may do more, and some limits do not bind it; so both are tried."""
    folder = Path(tempfile.mkdtemp())
    try:
        # A virtual environment that this user can read, of the system's Python.
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (folder / "bin/python").symlink_to("/usr/bin/python3")
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        script = f"""
from stages.engines.environments.python_programs import run_program
print(run_program({all_in_one(known)!r}, 1, {MIB}, 20.0))
print(run_program({FORK_BOMB!r}, 1, {MIB}, 20.0))
"""

        def as_user(program):
            return subprocess.run(
                [folder / "bin/python", "-sPB"],
                **dict(user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True),
                env={"PYTHONPATH": f"{PROJECT}{os.pathsep}{packages}"},
                input=program,
            )

        # A checkout or a package in a home folder cannot be read. Later errors are the sandbox's, and fail the test.
        probe = as_user("import stages.engines.environments.python_programs")
        if probe.returncode:
            pytest.skip(f"an ordinary user cannot read this checkout: {probe.stderr.splitlines()[-1]}")
        done = as_user(script)
    finally:
        shutil.rmtree(folder)
    assert done.stdout.splitlines() == ["('all tried', False)", "('0', False)"], done.stderr


def test_a_machine_that_lacks_the_sandbox_says_so(monkeypatch):
    monkeypatch.setattr(python_programs, "lacking", lambda: ["reading files (Landlock, Linux 5.13)"])
    with pytest.raises(UserError, match=r"does not restrict reading files "):
        check_sandbox()
    # The last guard, if nobody has looked before.
    with pytest.raises(UserError, match=r"does not restrict reading files "):
        python_programs._run("print(1)", 1, MIB, 1.0)
