"""No process of this project outlives the one it works for, however that one ends (Linux only; elsewhere a no-op).

Without this, a killed `dvc repro` leaves the stage running and writing beside the next one.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading

# From <linux/prctl.h>; Python has no name for it.
PR_SET_PDEATHSIG = 1
DVC_STAGE = "DVC_STAGE"
"""The variable that DVC sets for the commands it runs, and that its process therefore lacks."""


def die_with_parent(parent: int | None = None) -> None:
    """Asks the kernel to kill this process when its parent ends.

    With `parent`, the process id of the parent, a parent that has ended already is noticed too.
    """
    if sys.platform != "linux":
        return
    parent = parent or os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_dvc() -> None:
    """Has this process killed when its parent ends, and when the DVC that runs it ends.

    DVC is not always the parent: a shell may be in between (dash does not replace itself with its last command), or
    a launcher (torchrun).
    """
    die_with_parent()
    if sys.platform != "linux" or DVC_STAGE not in os.environ:
        return
    found = _dvc_process()
    # The kernel already watches the parent itself.
    if found and found[0] != os.getppid():
        _die_with(found[0])


def dvc_run() -> str:
    """Returns a name of the `dvc repro` that runs this process, which no other has; "" where it is not known."""
    found = _dvc_process() if DVC_STAGE in os.environ else None
    return f"{found[0]} {found[1]}" if found else ""


def _dvc_process() -> tuple[int, float] | None:
    """Returns process id and start time (seconds) of the DVC that runs this command; None where it is not known."""
    import psutil  # imported here, because set-up uses this module before anything is installed

    for ancestor in psutil.Process().parents():
        try:
            if DVC_STAGE not in ancestor.environ():
                return ancestor.pid, ancestor.create_time()
        except psutil.Error:  # another user's, or ended
            return None
    return None


def _die_with(pid: int) -> None:
    try:
        # The number of an ended process may be reused; this descriptor always means the first one.
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        select.select([file], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    # A daemon: it waits for ever and must not keep Python from ending.
    threading.Thread(target=wait, name="die-with-dvc", daemon=True).start()
