"""The path flags of a stage command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from stages.foundations.errors import UserError


def parse_paths(
    stage: str,
    argv: Sequence[str] | None,
    doc: str | None,
    inputs: Sequence[str],
    outputs: Sequence[str],
    options: Sequence[str] = (),
) -> argparse.Namespace:
    """Parses `--params` and one required flag for each input, output (paths) and option (text).

    `rl_round` becomes `--rl-round`. An input that does not exist raises UserError before any work is done.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m stages.{stage}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--params", type=Path, required=True, help="parameter file (params.yaml)")
    for name in inputs:
        parser.add_argument(_flag(name), type=Path, required=True, help="input path")
    for name in outputs:
        parser.add_argument(_flag(name), type=Path, required=True, help="output path")
    for name in options:
        parser.add_argument(_flag(name), required=True, help="text")
    paths = parser.parse_args(argv)
    for name in inputs:
        if not getattr(paths, name).exists():
            raise UserError(
                f"{_flag(name)} {getattr(paths, name)} does not exist: `dvc repro` makes it in an earlier stage"
            )
    return paths


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
