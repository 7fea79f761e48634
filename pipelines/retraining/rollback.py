"""`retrace rollback`: the champion before the last promotion is champion again."""

from __future__ import annotations

from typing import Annotated

import typer

from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT


def rollback(
    recipe: Annotated[str, typer.Argument(help="whose champion (default: the recipe in use)")] = "",
    to: Annotated[
        int | None, typer.Option(min=1, help="version to go back to (default: the one before)")
    ] = None,
) -> None:
    """Make the previous champion of a recipe the champion again: the git tag and MLflow's alias.

    Goes back behind the last promotion, and repeated changes nothing; --to goes to any version. No file and no branch
    changes. Exit code 2: there is none before.
    """
    from pipelines.retraining.champion import roll_back
    from stages.observe.tracking import recipe_name

    try:
        roll_back(PROJECT, recipe or recipe_name(PROJECT).partition("+")[0] or "laptop", to, typer.echo)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
