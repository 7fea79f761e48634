"""Runs one stage: `python -m stages rl_round@rl_1`; `python -m stages --help` lists them all."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from stages.foundations.fingerprints import stage_names
from stages.foundations.job import read_job
from stages.foundations.scratch import PROJECT
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the stage. UserError as `read_job`, and what the stage says."""
    job = read_job(sys.argv[1:] if argv is None else argv, ["code", *stage_names(PROJECT)])
    run = f"stages.{job.name}.run"
    if job.stage.quick_imports:
        with quick_imports():
            importlib.import_module(run)
    importlib.import_module(run).main(job)


if __name__ == "__main__":
    run_stage(main)
