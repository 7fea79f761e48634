"""The command `retrace`."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.ablating.command import ablate
from pipelines.comparing.command import compare
from pipelines.doctor.command import doctor
from pipelines.explaining.command import explain
from pipelines.extracting import extract
from pipelines.grading import grade
from pipelines.grading_agreement import agreement
from pipelines.mirroring.command import mirror
from pipelines.planning.command import plan
from pipelines.retraining.rollback import rollback
from pipelines.verifying.command import verify
from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Retrace: reproducible post-training of reasoning language models. Exit code 2 is a mistake of the caller."""


@app.command()
def use(recipe: Annotated[str, typer.Argument(help="a name in pipelines/recipes/, without .yaml")]) -> None:
    """Take a recipe into use: params.yaml becomes its copy."""
    from pipelines.params_lock import recipe_in_use
    from pipelines.recipes import clear_strays

    try:
        with recipe_in_use(PROJECT, recipe, lambda line: typer.echo(line, err=True)):
            clear_strays(PROJECT)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"params.yaml is the recipe {recipe}: run `make repro` or `dvc repro`")


app.command()(ablate)
app.command()(grade)
app.command()(agreement)
app.command()(extract)
app.command()(rollback)
app.command()(plan)
app.command()(compare)
app.command()(verify)
app.command()(mirror)
app.command()(explain)
app.command()(doctor)
