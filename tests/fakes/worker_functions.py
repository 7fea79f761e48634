"""Functions that the workers of `tests/engines/test_workers.py` run: work, and every way to fail at it."""

import ctypes
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

PREPARED, KEPT, CALLS = [], [], []


def prepare():
    PREPARED.append(os.getpid())


def refuse():
    raise ImportError("no such library here")


def end_in_prepare():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    """Hangs in C with the interpreter's lock: no signal handler and no other thread can run."""
    return sum(iter(int, 1))


def do(what, **arguments):
    """Handles every request, so that valid ones and others go to the same pool."""
    return globals()[what](**arguments)


def echo(value):
    return value


def double(number):
    return 2 * number


def fill_memory():
    kept = []
    while True:
        kept.append(bytes(1 << 22))


def compare_without_memory(gold, prediction):
    """Replaces the verifier's comparison and fills memory."""
    fill_memory()


def compare_or_hang(gold, prediction):
    """Replaces the verifier's comparison; one formula keeps it busy forever."""
    from stages.engines.verifier.math_verify_worker import compare

    return hang() if "7777" in prediction else compare(gold, prediction)


def compare_and_die(gold, prediction):
    os._exit(3)


def compare_and_be_killed(gold, prediction):
    end_by_signal(signal.SIGKILL)


def compute(seconds):
    """Uses this many seconds of processor time, however long that takes."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return "computed"


def keep(mebibytes):
    """Keeps memory, as a cache does."""
    KEPT.append(bytearray(mebibytes << 20))
    return "kept"


def crash_at_the_second_call():
    if CALLS:
        os._exit(3)
    CALLS.append(1)
    return "alive"


def doze(seconds):
    time.sleep(seconds)
    return "awake"


def end_by_signal(number):
    os.kill(os.getpid(), number)


def close_and_stay():
    os.closerange(0, 100)
    time.sleep(100)


def end_with(code):
    os._exit(code)


def fail(text):
    raise ValueError(text)


def talk(text):
    """Writes to every output that a library has."""
    print(text, flush=True)
    os.write(1, text.encode())
    os.write(2, text.encode())
    return "said"


def talk_for_ever():
    while True:
        os.write(2, b"still here\n")


def write(path):
    try:
        with open(path, "w") as file:
            file.write("x")
    except OSError as error:
        return type(error).__name__
    return "written"


def about():
    """Returns what this process is and sees."""
    return {
        "pid": os.getpid(),
        "prepared": PREPARED,
        "environment": dict(os.environ),
        "address_space": resource.getrlimit(resource.RLIMIT_AS),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "modules": sorted(sys.modules),
    }


ATTACKS = {
    "reach_the_network": lambda _: socket.socket(),
    "reach_a_server_of_this_machine": lambda _: socket.socket(socket.AF_UNIX),
    "fork": lambda _: os.fork() or os._exit(0),
    "spawn": lambda _: os.posix_spawn("/bin/true", ["true"], {}),
    "run": lambda _: subprocess.run(["/bin/true"]),
    "become": lambda _: os.execv("/bin/true", ["true"]),
    "read_the_parents_environment": lambda _: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "read_a_key": lambda folder: (folder / "id_rsa").read_text(),
    "read_a_key_through_a_link": lambda folder: Path(f"/proc/self/root{folder}/id_rsa").read_text(),
    "read_the_projects_parameters": lambda _: Path(__file__).parents[2].joinpath("params.yaml").read_text(),
    "list_a_folder": os.listdir,
    "write": lambda folder: (folder / "id_rsa").write_text("mine"),
    "make_an_empty_file": lambda folder: (folder / "new").touch(),
    "empty": lambda folder: os.truncate(folder / "id_rsa", 0),
    "remove": lambda folder: (folder / "id_rsa").unlink(),
    "rename": lambda folder: (folder / "id_rsa").rename(folder / "new"),
    "open_to_all": lambda folder: (folder / "id_rsa").chmod(0o777),
    "make_a_folder": lambda folder: (folder / "new").mkdir(),
    "make_a_link": lambda folder: (folder / "new").symlink_to("/"),
    "signal_the_parent": lambda _: os.kill(os.getppid(), signal.SIGCONT),
    "signal_the_group": lambda _: os.kill(0, signal.SIGCONT),
    "have_another_process_signalled": lambda _: fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid()),
    "enlarge_a_pipe": lambda _: fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20),
    "limit_the_parent": lambda _: resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0)),
    "type_into_a_terminal": lambda _: fcntl.ioctl(0, 0x5412, b"x"),
    "outlive_the_parent": lambda _: _checked(ctypes.CDLL(None, use_errno=True).prctl(1, 0, 0, 0, 0)),
    "open_by_a_newer_call": lambda folder: _call(437, -100, str(folder / "id_rsa").encode(), bytes(24), 24),
    "have_the_kernel_work": lambda _: _call(425, 8, bytes(120)),  # io_uring, into which no filter of calls can look
    "fork_by_a_newer_call": lambda _: _call(435, bytes(88), 88) or os._exit(0),
}


def attack(name, folder):
    """Returns the result of the attack: the kernel's error, or "done"."""
    try:
        ATTACKS[name](Path(folder))
    except OSError as error:
        return type(error).__name__ if error.errno != 38 else "no such call"
    return "done"


def attack_openly(name, folder):
    ATTACKS[name](Path(folder))


def _call(*arguments):
    return _checked(ctypes.CDLL(None, use_errno=True).syscall(*arguments))


def _checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def honest_work():
    """Uses threads, a late import from the packages, a signal to itself, its memory and pipes."""
    from decimal import Decimal

    found = []
    threads = [threading.Thread(target=found.append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    import numpy
    import yaml

    os.kill(os.getpid(), signal.SIGCONT)
    into, out = os.pipe()
    os.write(out, b"x")
    product = numpy.ones((300, 300)) @ numpy.ones((300, 300))
    return [sorted(found), str(Decimal(1) / 8), yaml.safe_load("[1]"), float(product.sum()), os.read(into, 1).decode()]


def answer_of_source(**request):
    """Answers a turn of an environment whose file has the text `source` of its problem."""
    from stages.engines.environments import custom_environment, worker

    custom_environment._source = lambda _: request["problem"]["source"]
    return worker.answer_turns(**request)
