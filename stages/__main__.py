"""Runs one stage: `python -m stages rl_round@rl_1`; `python -m stages --help` lists them all."""

from __future__ import annotations

# isort: off
# First, so that it ends here where packages are missing.
import stages.foundations.interpreter  # noqa: F401

# isort: on
import importlib
import sys
from collections.abc import Sequence

from stages.foundations.errors import UserError
from stages.foundations.fingerprints import stage_names
from stages.foundations.job import read_job
from stages.foundations.machine import MAKER_VARIABLE, PROJECT, variables_set
from stages.foundations.stage import about, declared_stage, stage_package
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the stage. UserError for an unknown stage, as `read_job`, and for what the stage says."""
    address, *flags = (sys.argv[1:] if argv is None else argv) or ["--help"]
    # `stage_names` leaves `code` out: it has no fingerprint, because it depends on every source.
    names = ["code", *stage_names(PROJECT)]
    if address.startswith("-"):
        show_stages(names)
        return
    name, _, item = address.partition("@")
    stage = declared_stage(name) if name in names else None
    if stage is None:
        raise UserError(f"there is no stage {name!r}: the stages are {', '.join(names)}")
    job = read_job(name, item, stage, flags, about(name).description)
    run = f"{stage_package(PROJECT, name)}.run"
    if stage.quick_imports:
        with quick_imports():
            importlib.import_module(run)
    # Tables name the stage that made them. The processes that a stage starts write tables too.
    with variables_set({MAKER_VARIABLE: address}):
        # Imported last: a wrong flag or parameter is reported before torch has been loaded.
        importlib.import_module(run).main(job)


def show_stages(names: Sequence[str]) -> None:
    """Prints the usage, and what each stage does."""
    usage = "usage: python -m stages NAME[@ITEM] [--params FILE] [--INPUT PATH] [--OUTPUT PATH]\n"
    how = "Runs one stage, as `dvc repro` does. `python -m stages NAME --help` lists its files.\n"
    # Printed at once: a reader that stops early (`| head`) has all of it by then.
    print("\n".join([usage, how, *(f"  {name:<18}{about(name).description}" for name in names)]))


if __name__ == "__main__":
    run_stage(main)
