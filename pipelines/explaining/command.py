"""`retrace explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT, state_folder


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="POLICY_OR_FILE",
            help="a policy (its score), a stage (rl_round@rl_1), or a file below data/ or reports/; REV:... for "
            "that of a git revision",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON, with hashes and parameters in full")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="draw the chain into this .svg file too")] = None,
    params: Annotated[bool, typer.Option("--params", help="show every parameter of every stage")] = False,
) -> None:
    """Show the chain behind a score, table or file down to the raw bytes.

    For every stage: hashes, parameters, code fingerprint, git commit, MLflow run, time and GPU-hours. Exit code 2 is a
    mistake of the caller.
    """
    from pipelines.explaining.chain import find_chain
    from pipelines.explaining.picture import draw
    from pipelines.explaining.spending import spent_by
    from pipelines.explaining.wording import as_json as content_of
    from pipelines.explaining.wording import as_text
    from pipelines.runtime.named_file import write_named_file

    try:
        if picture is not None and picture.suffix != ".svg":
            raise UserError(f"--picture {picture}: the picture is an SVG file, give a name that ends in .svg")
        chain = find_chain(what, PROJECT)
        spent = spent_by(chain, state_folder())
        if picture is not None:
            write_named_file(picture, draw(chain, spent), "--picture")
            typer.echo(f"picture: {picture}", err=True)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps(content_of(chain, spent), indent=2) if as_json else as_text(chain, spent, params))
