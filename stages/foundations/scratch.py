"""Where the project lies, and where it keeps what is no output: checkpoints, the tracking database, the ledger."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def state_folder() -> Path:
    """`$RETRACE_STATE`, else `state/` of the DVC project that runs this stage, else of this source tree.

    `$DVC_ROOT` counts because `dvc exp run --temp` runs a copy of the tree that is thrown away.
    """
    if os.environ.get("RETRACE_STATE"):
        return Path(os.environ["RETRACE_STATE"]).absolute()
    return Path(os.environ.get("DVC_ROOT") or PROJECT).absolute() / "state"
