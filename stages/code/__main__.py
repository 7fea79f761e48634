"""Writes data/code/<stage>.json for every stage: the hash of each definition that it can reach.

Stages depend on these files instead of on sources, so that a comment costs no GPU-week and no import is forgotten.
The parameters say which of several trainers, samplers, ... is run (docs/fingerprints.md).

    python -m stages.code --params params.yaml --out data/code
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.foundations.files import write_json
from stages.foundations.fingerprints import Project, stage_names
from stages.foundations.params import read_yaml
from stages.foundations.scratch import PROJECT
from stages.foundations.stage_graph import read_definitions, require_names
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.code", description=__doc__)
    parser.add_argument("--params", type=Path, required=True, help="parameter file (params.yaml)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the fingerprints")
    paths = parser.parse_args(argv)
    params = read_yaml(paths.params)
    # DVC runs this stage before all others when params.yaml has changed, so a hostile name stops `dvc repro` here.
    require_names(read_definitions(PROJECT / "dvc.yaml"), params)
    write_fingerprints(PROJECT, params, paths.out)


def write_fingerprints(root: Path, params: Mapping[str, Any], out: Path) -> None:
    """Writes one file per stage of the project at `root`; DVC has emptied the folder before."""
    project = Project(root, params, {})
    for name in stage_names(root):
        write_json(out / f"{name}.json", project.fingerprint(name))


if __name__ == "__main__":
    run_stage(main)
