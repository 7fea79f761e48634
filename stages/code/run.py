"""Writes data/code/<stage>.json for every stage: the hash of each definition that the stage can reach.

Stages depend on these files instead of on sources, so that a comment costs no GPU-week and no import is forgotten.
The parameters select which of several trainers, samplers, ... runs (docs/explanation/graph-and-fingerprints.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.foundations.fingerprints import Project, stage_names
from stages.foundations.job import Job
from stages.foundations.machine import PROJECT
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import make_shared_folders, read_definitions, require_comparable, require_names


def main(job: Job) -> None:
    """Writes the fingerprints. UserError for a name that a shell would read as more than a name, and for a value whose
    change DVC would not see.
    """
    params = read_yaml(job.paths.params)
    # DVC runs this stage before all others when params.yaml has changed, so what DVC cannot use stops `dvc repro` here.
    require_names(read_definitions(PROJECT / "dvc.yaml"), params)
    try:
        require_comparable(params)
    except UserError as error:
        raise UserError(f"{job.paths.params} is not usable:\n  {error}") from None
    # Later stages depend on folders that git and DVC do not keep when they are empty.
    make_shared_folders(PROJECT)
    write_fingerprints(PROJECT, params, job.paths.out)


def write_fingerprints(root: Path, params: Mapping[str, Any], out: Path) -> None:
    """Writes one file per stage of the project at `root`; DVC has emptied the folder before."""
    project = Project(root, params, {})
    for name in stage_names(root):
        write_json(out / f"{name}.json", project.fingerprint(name))
