"""Waiting for other processes: each wait is logged while nothing changes, and has a limit.

A loop that polls calls `Watch.look` in each turn. A call that blocks runs inside `watched`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

from stages.observe.progress import say

LONGEST_STEP = 1.0
"""Seconds. A longer gap between two checks is a delay of this process (a suspended machine), not of the other side."""
STILL_SECONDS = 60.0
"""Each time nothing has changed for this long, the log says what is waited for."""
MOST_IDLE_SECONDS = 600.0
"""Limit of a wait in which no process has work."""
MOST_BUSY_SECONDS = 3600.0
"""Limit of a wait in which a process has work and shows no progress: a tool of an environment may be slow."""
GRACE_SECONDS = 60.0
"""Time for a blocked call to end after its limit; then the process ends."""


class StuckError(RuntimeError):
    """Nothing has changed for longer than the limit of a wait."""


class PatientClock:
    """Counts seconds while it is checked: a longer gap counts only as `LONGEST_STEP`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._looked = time.monotonic()

    def look(self) -> None:
        """Adds the time since the last check."""
        looked = time.monotonic()
        self.now += min(looked - self._looked, LONGEST_STEP)
        self._looked = looked


class Watch:
    """Logs what `name` waits for while nothing changes, and ends the wait at its limit."""

    def __init__(self, name: str) -> None:
        self._name, self._clock = name, PatientClock()
        self._standing, self._changed_at, self._said_at = "", 0.0, 0.0

    def look(self, standing: str, most_seconds: float) -> None:
        """Notes the state, which says what is waited for and differs after any progress. Must be called repeatedly.

        StuckError when it has been the same for `most_seconds`.
        """
        # A clock that stops while it is not checked: a laptop that was asleep has not stalled.
        self._clock.look()
        now = self._clock.now
        if standing != self._standing:
            self._standing, self._changed_at, self._said_at = standing, now, now
        still = now - self._changed_at
        if now - self._said_at > STILL_SECONDS:
            self._said_at = now
            say(f"{self._name}: no progress for {still:.0f} s: {standing}")
        if still > most_seconds:
            raise StuckError(f"{self._name} is stuck: no progress for {still:.0f} s: {standing}")


@contextlib.contextmanager
def watched(name: str, what: str, most_seconds: float) -> Iterator[None]:
    """Watches a block that cannot poll: the log says each minute that `name` waits for `what`.

    StuckError in the block after `most_seconds`. Where that has no effect, because the block is in C code that takes no
    signal or not in the main thread, the process ends `GRACE_SECONDS` later with exit code 1.
    """
    watch, is_over, stuck = Watch(name), threading.Event(), list[StuckError]()
    is_main = threading.current_thread() is threading.main_thread()

    def look() -> None:
        while not is_over.wait(LONGEST_STEP / 2):
            try:
                watch.look(f"waiting for {what}", most_seconds)
            except StuckError as error:
                stuck.append(error)
                break
        else:
            return
        if is_main:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)
        if not is_over.wait(GRACE_SECONDS):
            say(f"{stuck[0]}. It cannot be interrupted, so this process ends")
            os._exit(1)

    def interrupt(*_: object) -> None:
        # The block may have ended between the limit and the signal.
        if not is_over.is_set():
            raise stuck[0]

    # A signal and not a second thread for the block: Ray's servers end with the thread that has started them.
    previous = signal.signal(signal.SIGUSR2, interrupt) if is_main else None
    thread = threading.Thread(target=look, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        if is_main:
            # None: the handler of a library in C, which Python cannot put back.
            signal.signal(signal.SIGUSR2, previous or signal.SIG_DFL)
