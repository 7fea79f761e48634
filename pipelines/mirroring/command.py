"""`retrace mirror`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT, state_folder


def mirror(
    as_json: Annotated[bool, typer.Option("--json", help="print what was done as JSON")] = False,
) -> None:
    """Rebuild every MLflow run that is missing, from kept logs, git, dvc.lock, metric files, curves and the ledger.

    Safe to run at any time: what is there is left alone, so deleting state/mlflow.db loses no number. Runs that a cache
    hit did not execute get one too, with the tag `mirrored: true`.
    """
    from pipelines.mirroring.mirror import mirror as rebuild

    try:
        report = rebuild(PROJECT, state_folder())
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps(asdict(report), indent=2) if as_json else report.told())
    for problem in report.problems:
        typer.echo(f"WARNING: {problem}", err=True)
