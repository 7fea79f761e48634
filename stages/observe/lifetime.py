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
    import psutil  # imported here, because set-up uses this module before anything is installed

    for distance, ancestor in enumerate(psutil.Process().parents()):
        try:
            is_command = DVC_STAGE in ancestor.environ()
        except psutil.Error:  # another user's, or ended
            return
        if not is_command:
            # The kernel already watches the parent itself, at distance 0.
            if distance:
                _die_with(ancestor.pid)
            return


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
