"""Where the project lies, and where it keeps what is no output: checkpoints, the tracking database, the ledger."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def state_folder() -> Path:
    """`$RETRACE_STATE`, else `state/` of the DVC project that runs this stage, else of this source tree.

    `$DVC_ROOT` counts because `dvc exp run --temp` runs a copy of the tree that is thrown away. The folder is closed to
    other accounts of the machine: it holds prompts, databases and logins.
    """
    if os.environ.get("RETRACE_STATE"):
        folder = Path(os.environ["RETRACE_STATE"]).absolute()
    else:
        folder = Path(os.environ.get("DVC_ROOT") or PROJECT).absolute() / "state"
    _close_to_others(folder)
    return folder


@functools.cache
def _close_to_others(folder: Path) -> None:
    with suppress(OSError):  # whoever needs the folder says what is wrong with it
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
        # A group that may write is one that the user shares the folder with, or has to himself.
        allowed = 0o770 if mode & 0o020 else 0o700
        if mode & 0o777 & ~allowed:
            folder.chmod(mode & allowed)
