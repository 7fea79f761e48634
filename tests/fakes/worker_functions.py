"""What the workers of `tests/engines/test_workers.py` are asked to do: work, and every way to fail at it."""

import os
import resource
import signal
import sys
import time

PREPARED, KEPT, CALLS = [], [], []


def prepare():
    PREPARED.append(os.getpid())


def refuse():
    raise ImportError("no such library here")


def end_in_prepare():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    """In C, with the interpreter's lock held: no signal handler and no other thread gets a turn."""
    return sum(iter(int, 1))


def do(what, **arguments):
    """One function for every request, so that sound ones and others go to the same pool."""
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
    """In the place of the verifier's comparison."""
    fill_memory()


def compare_or_hang(gold, prediction):
    """In its place too: the comparison, which one formula keeps busy for ever."""
    from stages.engines.verifier.math_verify_worker import compare

    return hang() if "7777" in prediction else compare(gold, prediction)


def compare_and_die(gold, prediction):
    os._exit(3)


def compute(seconds):
    """So much of the processor, however long that takes."""
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
    """On every output that a library has."""
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
    """What this process is and sees."""
    return {
        "pid": os.getpid(),
        "prepared": PREPARED,
        "environment": dict(os.environ),
        "address_space": resource.getrlimit(resource.RLIMIT_AS),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "modules": sorted(sys.modules),
    }
