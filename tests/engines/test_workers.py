"""A pool of workers that can be killed: whatever one request does, the others get their answers, and nothing remains.

The second half tries forbidden actions from inside a worker of foreign input, and the filter of calls for both
processors.
"""

import contextlib
import errno
import functools
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from stages.engines.verifier import math_verify_worker
from stages.engines.workers import pool as pool_module
from stages.engines.workers.pool import Answer, LostWorker, StartError, WorkerLimits, WorkerPool
from stages.engines.workers.sandbox import _REFUSED, call_filter, lacking
from tests.fakes import worker_functions
from tests.fakes.processes import descendants, is_running, wait_until
from tests.fakes.worker_functions import ATTACKS, do

MIB = 256
LIMITS = WorkerLimits(MIB)
BRIEF = WorkerLimits(MIB, computing_seconds=1)
HEAVY = {"torch", "transformers", "pandas", "numpy", "pydantic", "pyarrow", "lxml"}
FAILURES = [
    ({"what": "hang"}, Answer(failure="exhausted")),
    ({"what": "talk_for_ever"}, Answer(failure="exhausted")),
    ({"what": "fill_memory"}, Answer(failure="out_of_memory")),
    ({"what": "end_by_signal", "number": signal.SIGSEGV}, Answer(failure="crashed", exit_code=-11, ending="signal 11")),
    ({"what": "end_with", "code": 3}, Answer(failure="crashed", exit_code=3, ending="exit code 3")),
    (
        {"what": "fail", "text": "no such sum"},
        Answer(failure="crashed", exit_code=1, ending="exit code 1: ValueError: no such sum"),
    ),
]


def pool_of(processes=1, limits=LIMITS, function=do, prepare=None, environment=None):
    return WorkerPool(function, processes, limits, environment or {}, prepare)


def ask(pool, what, **arguments):
    return pool.submit(what=what, **arguments).result()


@pytest.mark.parametrize("processes", [1, 3])
def test_answers_come_for_each_request_in_its_own_future(processes):
    with pool_of(processes) as pool:
        assert pool.pids() == []  # the first request starts the first process
        asked = [pool.submit(what="double", number=number) for number in range(50)]
        assert [one.result() for one in asked] == [Answer(2 * number) for number in range(50)]
        pids = pool.pids()
        assert 1 <= len(pids) <= processes
    assert not any(map(is_running, pids))


def test_answers_depend_neither_on_order_nor_on_neighbours():
    """Each kind of failure occurs four times among valid requests, shuffled."""
    expected = 4 * FAILURES + [({"what": "double", "number": n}, Answer(2 * n)) for n in range(40)]
    random.Random(7).shuffle(expected)
    with pool_of(3, BRIEF) as pool:
        asked = [pool.submit(**request_) for request_, _ in expected]
        assert [one.result() for one in asked] == [answer for _, answer in expected]
        wait_until(lambda: len(pool.pids()) == 3)  # killed workers are replaced without a request


def test_many_threads_ask_at_once_and_each_gets_its_own_answers():
    found = {}

    def ask_many(name):
        found[name] = [ask(pool, "echo", value=[name, number]).value for number in range(20)]

    with pool_of(2) as pool:
        threads = [threading.Thread(target=ask_many, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {name: [[name, number] for number in range(20)] for name in range(8)}


def test_values_of_any_size_and_script_pass_unchanged():
    texts = ["", "\n", "∫ \N{GRINNING FACE} \x00 \ud800", "long " * 400_000]
    with pool_of(limits=WorkerLimits(1024)) as pool:
        assert [ask(pool, "echo", value=text).value for text in texts] == texts


def test_a_request_that_does_not_fit_into_memory_is_out_of_memory():
    with pool_of() as pool:
        assert ask(pool, "echo", value="x" * (MIB << 20)) == Answer(failure="out_of_memory")
        assert ask(pool, "echo", value="x") == Answer("x")


def test_what_a_library_prints_is_no_answer_and_never_blocks():
    with pool_of() as pool:
        for text in ('{"value": "forged"}\n', "flood\n" * 100_000):
            assert ask(pool, "talk", text=text) == Answer("said")
        # Only output of the failing request is reported, not that of earlier ones.
        assert ask(pool, "end_with", code=4).ending == "exit code 4"


def test_files_are_written_only_where_that_is_allowed(tmp_path):
    with pool_of() as pool:
        assert ask(pool, "write", path=str(tmp_path / "a")).value == "PermissionError"
    with pool_of(limits=WorkerLimits(MIB, is_trusted=True)) as pool:
        assert ask(pool, "write", path=str(tmp_path / "b")).value == "written"
    assert [path.name for path in tmp_path.iterdir() if path.read_text()] == ["b"]


def test_a_worker_sees_what_it_is_given_and_loads_no_more_than_it_needs(monkeypatch):
    monkeypatch.setenv("SECRET", "s")
    with pool_of(environment={"GIVEN": "1"}, prepare=worker_functions.prepare) as pool:
        seen = ask(pool, "about").value
    # Python may add LC_CTYPE; programs and libraries are located by the other two.
    assert set(seen["environment"]) - {"LC_CTYPE", "PATH", "LD_LIBRARY_PATH"} == {"GIVEN", "PYTHONPATH"}
    assert seen["address_space"] == [MIB << 20] * 2
    assert seen["core"] == [0, 0] and seen["files"] == [64, 64]
    assert seen["prepared"] == [seen["pid"]]
    assert not HEAVY & set(seen["modules"])


def test_a_worker_of_the_verifier_loads_math_verify_and_nothing_heavier():
    with pool_of(limits=WorkerLimits(768), prepare=math_verify_worker.prepare) as pool:
        modules = set(ask(pool, "about").value["modules"])
    assert "math_verify" in modules
    assert not HEAVY & modules


def test_the_pool_itself_imports_nothing_heavy():
    script = f"import sys, stages.engines.workers.pool; print(sorted({HEAVY} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert printed.stdout == "[]\n"


def test_a_limit_that_holds_already_is_never_raised():
    """An example are the pages of a shard, whose process is itself limited."""
    script = (
        "import resource; from tests.engines.test_workers import pool_of, ask, WorkerLimits\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30,) * 2)\n"
        "with pool_of(limits=WorkerLimits(8_192)) as pool: print(ask(pool, 'about').value['address_space'])"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert printed.stdout == f"{[4 << 30] * 2}\n"


def test_a_process_of_its_own_for_each_request_where_asked():
    def pids(is_reused):
        with pool_of(limits=WorkerLimits(MIB, is_reused=is_reused)) as pool:
            return {ask(pool, "about").value["pid"] for _ in range(3)}

    assert (len(pids(True)), len(pids(False))) == (1, 3)


def test_a_worker_that_cannot_start_is_an_error_for_every_request():
    with pool_of(2, prepare=worker_functions.refuse) as pool:
        for asked in [pool.submit(what="echo", value=1) for _ in range(5)]:
            with pytest.raises(StartError, match=r"^exit code 1: ImportError: no such library here$"):
                asked.result()
        assert pool.pids() == []


def test_a_worker_that_does_not_get_ready_is_killed(monkeypatch):
    monkeypatch.setattr("stages.engines.workers.pool.START_SECONDS", 0.5)
    with pool_of(prepare=worker_functions.hang) as pool, pytest.raises(StartError, match=r"not ready after 0\.5 s"):
        ask(pool, "echo", value=1)


def test_workers_outlive_the_thread_that_asked_first():
    """The kernel kills workers when the thread that started them ends, so the pool starts them from its own thread."""
    first = []
    with pool_of() as pool:
        thread = threading.Thread(target=lambda: first.append(ask(pool, "about").value["pid"]))
        thread.start()
        thread.join()
        assert ask(pool, "about").value["pid"] == first[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_worker_killed_once_from_outside_costs_nothing(number, capfd, request):
    if number != signal.SIGKILL:  # under nohup a worker would inherit that SIGHUP is ignored
        request.addfinalizer(functools.partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))
    with pool_of() as pool:
        ask(pool, "echo", value=1)
        [pid] = pool.pids()
        asked = pool.submit(what="doze", seconds=2), pool.submit(what="echo", value=2)
        wait_until(asked[0].running)
        os.kill(pid, number)
        assert [one.result() for one in asked] == [Answer("awake"), Answer(2)]
        assert pool.pids() != [pid]
    assert "killed from outside (signal " in capfd.readouterr().err


def test_workers_killed_twice_in_a_row_are_an_error_of_that_request_only():
    with pool_of() as pool:
        asked = pool.submit(what="end_by_signal", number=signal.SIGKILL), pool.submit(what="echo", value=2)
        with pytest.raises(LostWorker, match=r"killed from outside \(signal 9\).*Free memory, or use fewer"):
            asked[0].result()
        assert asked[1].result() == Answer(2)


def test_workers_killed_at_their_start_are_an_error_too():
    with pool_of(prepare=worker_functions.end_in_prepare) as pool, pytest.raises(LostWorker, match="signal 9"):
        ask(pool, "echo", value=1)


def test_a_worker_that_had_to_be_killed_here_has_crashed(monkeypatch):
    """The worker has closed its pipes and does not end."""
    monkeypatch.setattr("stages.engines.workers.pool._EXIT_SECONDS", 0.5)
    with pool_of() as pool:
        assert ask(pool, "close_and_stay").failure == "crashed"
        assert ask(pool, "echo", value=2) == Answer(2)


def test_a_worker_killed_while_idle_costs_nothing():
    with pool_of() as pool:
        ask(pool, "echo", value=1)
        [pid] = pool.pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))
        assert ask(pool, "echo", value=2) == Answer(2)


def test_close_kills_what_runs_and_tells_those_who_wait():
    pool = pool_of(2)
    ask(pool, "echo", value=1)
    asked = [pool.submit(what="hang") for _ in range(6)]
    wait_until(lambda: len(pool.pids()) == 2)
    pids = pool.pids()
    pool.close()
    for one in asked:
        with pytest.raises(RuntimeError, match="closed"):
            one.result(timeout=0)
    assert not any(map(is_running, pids))
    assert pool.pids() == []
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(what="echo", value=1)
    pool.close()


def test_close_at_any_moment_of_a_start_leaves_no_process():
    for delay in (0, 0.001, 0.01, 0.03, 0.1):
        pool = pool_of(3, prepare=worker_functions.hang)
        asked = [pool.submit(what="echo", value=1) for _ in range(3)]
        time.sleep(delay)
        pool.close()
        for one in asked:
            with pytest.raises(RuntimeError, match="closed"):
                one.result(timeout=0)
    assert not descendants("worker_functions")


def test_closing_one_pool_leaves_another_at_work():
    with pool_of() as kept:
        with pool_of() as closed:
            busy = kept.submit(what="doze", seconds=1)
            assert ask(closed, "echo", value=1) == Answer(1)
        assert busy.result() == Answer("awake")


def test_a_request_that_is_cancelled_while_it_waits_is_not_computed():
    with pool_of() as pool:
        first, second = pool.submit(what="doze", seconds=0.5), pool.submit(what="hang")
        assert second.cancel()
        assert [first.result(), ask(pool, "echo", value=3)] == [Answer("awake"), Answer(3)]


@pytest.mark.parametrize("moment", ["busy", "starting"])
def test_workers_die_with_a_parent_that_is_killed(moment):
    prepare = "worker_functions.hang" if moment == "starting" else None
    script = (
        "import time; from tests.engines.test_workers import pool_of, worker_functions\n"
        f"pool = pool_of(2, prepare={prepare})\n"
        "for _ in range(2): pool.submit(what='hang')\n"
        "while len(pool.pids()) < 2: time.sleep(0.01)\n"
        "print(*pool.pids(), flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        if moment == "busy":
            wait_until(lambda: all(psutil.Process(pid).cpu_times().user > 0.3 for pid in workers))
        parent.kill()
    wait_until(lambda: not any(map(is_running, workers)))


def test_computing_time_does_not_pass_while_others_have_the_processor():
    with pool_of(limits=WorkerLimits(MIB, computing_seconds=0.5)) as pool:
        ask(pool, "echo", value=0)
        [pid] = pool.pids()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
        assert ask(pool, "echo", value=1) == Answer(1)
        assert pool.pids() == [pid]


def test_a_worker_that_stands_still_once_costs_nothing(monkeypatch, capfd):
    monkeypatch.setattr("stages.engines.workers.pool.PATIENCE", 8.0)
    with pool_of(limits=WorkerLimits(MIB, computing_seconds=0.5)) as pool:
        ask(pool, "echo", value=0)
        [pid] = pool.pids()
        os.kill(pid, signal.SIGSTOP)
        assert ask(pool, "echo", value=1) == Answer(1)
        assert pool.pids() != [pid]
    assert "stood still (4 s went by, in which it computed less than 0.5 s)" in capfd.readouterr().err


def test_workers_that_stand_still_twice_in_a_row_are_an_error_of_that_request_only(monkeypatch):
    monkeypatch.setattr("stages.engines.workers.pool.PATIENCE", 8.0)
    with pool_of(limits=WorkerLimits(MIB, computing_seconds=0.5)) as pool:
        asked = pool.submit(what="doze", seconds=60), pool.submit(what="echo", value=2)
        with pytest.raises(LostWorker, match=r"in a row were lost.*stood still.*when the machine has less to do"):
            asked[0].result()
        assert asked[1].result() == Answer(2)


def test_computing_time_ends_a_request_long_before_its_worker_would_be_said_to_stand_still(monkeypatch):
    monkeypatch.setattr("stages.engines.workers.pool.PATIENCE", 500.0)
    with pool_of(limits=WorkerLimits(MIB, computing_seconds=0.5)) as pool:
        assert ask(pool, "hang") == Answer(failure="exhausted")
        assert ask(pool, "doze", seconds=1.5) == Answer("awake")


def test_an_answer_after_too_much_computing_is_none(monkeypatch):
    """The pool checks late on a busy machine, and that must not decide the result."""
    looks_late = pool_module._Clock.seconds_left
    monkeypatch.setattr(pool_module._Clock, "seconds_left", lambda clock: looks_late(clock) + 60)
    with pool_of(limits=WorkerLimits(MIB, computing_seconds=0.3)) as pool:
        assert ask(pool, "compute", seconds=0.6) == Answer(failure="exhausted")
        assert ask(pool, "compute", seconds=0.1) == Answer("computed")


def test_what_earlier_requests_left_behind_fails_none():
    """The same request, first and later: a worker that many requests have filled is replaced before it decides."""
    with pool_of() as pool:
        assert [ask(pool, "keep", mebibytes=60) for _ in range(8)] == [Answer("kept")] * 8
        assert [ask(pool, "crash_at_the_second_call") for _ in range(3)] == [Answer("alive")] * 3


def test_a_process_with_more_than_a_thousand_open_files_has_workers_too():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
    try:
        with contextlib.ExitStack() as opened:
            for _ in range(1_100):
                opened.enter_context(Path(os.devnull).open("rb"))
            with pool_of() as pool:
                assert ask(pool, "echo", value=1) == Answer(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- the sandbox
LARGE = WorkerLimits(1024, 60)
READS = {name for name in ATTACKS if name.startswith(("read_", "list_"))}
NEWER = {name for name in ATTACKS if name.endswith("by_a_newer_call") or name == "have_the_kernel_work"}
ALLOW, REFUSE, NO_SUCH_CALL, KILL = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000
CODES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
lacks = " ".join(lacking())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "id_rsa").write_text("the key")
    (tmp_path / "id_rsa").chmod(0o600)
    return tmp_path


@pytest.fixture(scope="module")
def pool():
    with pool_of(limits=LARGE) as made:
        yield made


@pytest.mark.skipif("seccomp" in lacks, reason="this kernel filters no system calls")
@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in READS])
def test_a_worker_can_touch_nothing_outside_of_itself(pool, folder, name):
    refused = "no such call" if name in NEWER else "PermissionError"
    assert ask(pool, "attack", name=name, folder=str(folder)) == Answer(refused)
    assert [path.name for path in folder.iterdir()] == ["id_rsa"]
    assert (folder / "id_rsa").read_text() == "the key" and (folder / "id_rsa").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif("Landlock" in lacks, reason="this kernel restricts no files")
@pytest.mark.parametrize("name", sorted(READS))
def test_a_worker_reads_no_file_of_the_user(pool, folder, name):
    assert ask(pool, "attack", name=name, folder=str(folder)) == Answer("PermissionError")


@pytest.mark.skipif("seccomp" in lacks, reason="this kernel filters no system calls")
def test_a_refusal_that_nobody_expects_is_a_counted_failure_and_the_next_request_is_answered(folder):
    with pool_of(limits=LARGE) as pool:
        found = ask(pool, "attack_openly", name="reach_the_network", folder=str(folder))
        assert (found.failure, found.exit_code) == ("crashed", 1) and "Operation not permitted" in found.ending
        assert ask(pool, "echo", value=1) == Answer(1)


def test_threads_packages_and_pipes_are_as_ever(pool):
    assert ask(pool, "honest_work") == Answer([[0, 1, 2, 3], "0.125", [1], 27e6, "x"])


def test_a_trusted_worker_reads_writes_and_starts_processes(folder):
    with pool_of(limits=WorkerLimits(1024, 60, is_trusted=True)) as pool:
        for name in ("run", "read_a_key", "write"):
            assert ask(pool, "attack", name=name, folder=str(folder)) == Answer("done")


def outcome(machine, number, *arguments, architecture=None):
    """Returns the filter's result for a call: it runs the BPF program as the kernel does."""
    words = {0: number, 4: architecture or CODES[machine]}
    words |= {16 + 8 * place: value for place, value in enumerate(arguments)}
    program, place, loaded = list(call_filter(machine)), 0, 0
    while True:
        operation, yes, no, value = program[place]
        place += 1
        match operation:
            case 0x20:
                loaded = words.get(value, 0)
            case 0x06:
                return value
            case _:
                holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[operation]
                place += yes if holds else no


@pytest.mark.parametrize("machine", CODES)
def test_the_filter_of_both_processors_refuses_what_it_names_and_nothing_else(machine):
    column = list(CODES).index(machine)
    refused = {int(one) for one in _REFUSED.split()[1 + column :: 3] if one != "-"}
    decided = {2, 16, 56, 62, 72, 157, 234, 257, 302} if machine == "x86_64" else {25, 29, 56, 129, 131, 167, 220, 261}
    for number in set(range(424)) - decided:
        assert outcome(machine, number) == (REFUSE if number in refused else ALLOW), number
    found = {number for number in range(424, 600) if outcome(machine, number) == ALLOW}
    assert found == {436, 439, 441, 449}
    assert outcome(machine, 0, architecture=0x40000003) == KILL, "32-bit calls have other numbers"
    assert outcome(machine, 0x40000000 | 57) == NO_SUCH_CALL, "and so has x32"


def test_the_filter_looks_at_arguments():
    for machine, clone, openat in (("x86_64", 56, 257), ("aarch64", 220, 56)):
        assert outcome(machine, clone, 0x3D0F00) == ALLOW, "a thread"
        assert outcome(machine, clone, 0x1200011) == REFUSE, "a fork"
        assert outcome(machine, openat, 0, 0, 0o2000000) == ALLOW, "reading, close-on-exec"
        for flags in (0o1, 0o2, 0o100, 0o1000):
            assert outcome(machine, openat, 0, 0, 0o2000000 | flags) == REFUSE


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.mark.parametrize("machine", CODES)
def test_the_numbers_are_those_of_the_kernels_headers(machine):
    if not HEADERS[machine].exists():
        pytest.skip("no headers of the kernel: apt-get install linux-libc-dev")
    found = dict(re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", HEADERS[machine].read_text(), re.MULTILINE))
    words = _REFUSED.split()
    for name, number in zip(words[::3], words[1 + list(CODES).index(machine) :: 3], strict=True):
        assert found.get(name, "-") == number, name
