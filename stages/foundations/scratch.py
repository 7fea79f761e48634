"""Where a run keeps what is no output: checkpoints, the tracking database, the ledger.

State lies under `state/` of the project, outside every DVC output, because DVC deletes outputs before a stage
starts again. A stage's scratch folder is named by a hash of everything that determines its result, so that an
attempt finds its own earlier checkpoints and never another setting's.
"""

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


def scratch_folder(stage: str, stage_hash: str) -> Path:
    """The folder `state/scratch/<stage>-<first 16 digits of the hash>`, made when absent."""
    folder = state_folder() / "scratch" / f"{stage}-{stage_hash[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
