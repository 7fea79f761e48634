"""What a worker of foreign input cannot do, tried from inside one, and the filter of calls for both processors."""

import errno
import re
from pathlib import Path

import pytest

from stages.engines.workers.pool import Answer, WorkerLimits
from stages.engines.workers.sandbox import _REFUSED, call_filter, lacking
from tests.engines.test_workers import ask, pool_of
from tests.fakes.worker_functions import ATTACKS

LIMITS = WorkerLimits(1024, 60)
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
    with pool_of(limits=LIMITS) as made:
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
    with pool_of(limits=LIMITS) as pool:
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
    """What the filter says to a call: BPF, as the kernel runs it."""
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
