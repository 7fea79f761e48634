"""Work in forks, which have all imports at once: killed at the n-th change of a file, or on several ranks.

The moment of a file change does not depend on other processes of the machine. A fork lacks the processes that a stage
starts, so a stage with processes is killed at its first checkpoint instead.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tests.fakes.running_ui import unused_port

CHANGES = ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir")


def changes_of(work: Callable[[], None], folder: Path) -> int:
    """Does `work` undisturbed in a separate process; returns how often it changes files below `folder`."""
    count = folder / "changes"
    assert _ended(_started(_told(work, folder, lambda number: count.write_text(str(number + 1))))) == 0
    return int(count.read_text())


def killed_at(work: Callable[[], None], folder: Path, moment: int) -> bool:
    """Does `work` in a process that gets SIGKILL before its change `moment` (from 0); False if it ended earlier."""

    def kill(number: int) -> None:
        if number == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    return _ended(_started(_told(work, folder, kill))) == -signal.SIGKILL


def killed_at_first_checkpoint(command: list[str], environment: dict[str, str], state: Path) -> bool:
    """Starts the stage and sends SIGKILL once it has written a checkpoint; returns False if it ended earlier."""
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            if list(state.glob("scratch/*/step-*/manifest.json")):
                process.kill()
                return True
            time.sleep(0.005)
    return False


def on_ranks(work: Callable[[], None], ranks: int) -> None:
    """Does `work` on this many ranks as torchrun starts them; raises AssertionError if one fails."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}

    def of_rank(rank: int) -> Callable[[], None]:
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks} if ranks > 1 else {}

        def run() -> None:
            os.environ.update({**address, **{name: str(value) for name, value in own.items()}})
            work()

        return run

    started = [_started(of_rank(rank)) for rank in range(ranks)]
    assert [_ended(child) for child in started] == [0] * ranks


def _started(work: Callable[[], None]) -> int:
    """Returns the process id of a fork that does `work`; the fork never returns into pytest."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # a fork has only one thread, and would wait for the others
            work()
            os._exit(0)
        except BaseException:  # also what pytest raises: nothing may come back into its process; 1 says that it failed
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    return child


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _told(work: Callable[[], None], folder: Path, at_change: Callable[[int], object]) -> Callable[[], None]:
    """Wraps `work`: `at_change` gets the number of each file change before it is made."""
    numbers, is_told = itertools.count(), []

    def listen(event: str, arguments: tuple) -> None:
        if event in CHANGES and not is_told and _is_change(event, arguments, folder):
            is_told.append(True)  # `at_change` may change a file itself
            at_change(next(numbers))
            is_told.clear()

    def run() -> None:
        sys.addaudithook(listen)
        work()

    return run


def _is_change(event: str, arguments: tuple, folder: Path) -> bool:
    if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        return False
    path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes, os.PathLike)) else ""
    return path.startswith(str(folder)) or not path.startswith("/")  # trees are removed by relative names
