"""The command `retrace`."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pipelines.ablating.command import ablate
from pipelines.commands.annotating import annotations
from pipelines.commands.data import data, phrases
from pipelines.commands.doctor import doctor
from pipelines.commands.explaining import explain
from pipelines.commands.exporting import export
from pipelines.commands.extracting import extract
from pipelines.commands.grading import agreement, grade
from pipelines.commands.mirroring import mirror
from pipelines.commands.reference import write_pages
from pipelines.commands.trying import environment, reward
from pipelines.commands.verifying import verify
from pipelines.comparing.command import compare
from pipelines.environment import groups_for
from pipelines.graph.recipes import recipe_in_use, remove_orphaned_outputs, stages_left_out
from pipelines.graph.schema import updated_graph, write_graph
from pipelines.planning.command import plan
from pipelines.retraining.gate import rollback
from pipelines.rollouts.command import rollouts
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.packages import how_to_install, missing_groups, missing_package
from stages.observe.command import storage_failure

WITHOUT_PROJECT = ("agreement", "data", "extract", "grade", "phrases")
"""Commands that only use files from their arguments, so they work in any checkout."""


class Commands(TyperGroup):
    """Reports the errors of any command in one sentence: Ctrl-C, a full disk, a folder instead of a file."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """UserError without a project, and in another checkout, where the command would show the wrong one."""
        needs_project = args[0] not in WITHOUT_PROJECT and "--help" not in args
        other = _clone_around() if needs_project else None
        if needs_project and not (PROJECT / "dvc.yaml").is_file():
            where = f"run {other}/.venv/bin/retrace" if other else "clone the repository and run `make set-up` in it"
            raise UserError(f"`retrace {args[0]}` works on a clone, and this is an installed package: {where}")
        if other is not None:
            raise UserError(
                f"this `retrace` works on {PROJECT}, and you are in {other}: run "
                f"{other / '.venv' / 'bin' / 'retrace'} here, or change to {PROJECT}"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # 130 is a shell's exit code after SIGINT.
            message, code = "interrupted", 130
        except UserError as error:
            message, code = str(error), 2
        except ImportError as error:
            if not (message := missing_package(error)):
                raise
            code = 2
        except OSError as error:
            # On a closed pipe Python ends by itself: the reader of the output has closed it.
            if error.errno == errno.EPIPE or not (message := storage_failure(error) or _file_fault(error)):
                raise
            # A full disk is not a mistake of the caller, but a wrong path is.
            code = 1 if storage_failure(error) else 2
        typer.echo(message if code == 130 else f"error: {message}", err=True)
        raise typer.Exit(code)


def _file_fault(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else ""


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"retrace {version('retrace')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="show the version and exit", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Retrace: reproducible post-training of reasoning language models. Exit code 2 is a mistake of the caller."""


def _clone_around() -> Path | None:
    """Returns the clone of this program that contains the current folder, if it is not the clone of this file."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        # The shell's current folder has been removed.
        return None
    for folder in (here, *here.parents):
        if all((folder / name).is_file() for name in ("dvc.yaml", "pipelines/cli.py")):
            return None if folder == PROJECT else folder
    return None


@app.command()
def use(recipe: Annotated[str, typer.Argument(help="a name in pipelines/recipes/, without .yaml")]) -> None:
    """Take a recipe into use: write it to params.yaml, with all inherited values."""
    with recipe_in_use(PROJECT, recipe, lambda line: typer.echo(line, err=True)):
        # Now, not only before the next run: a manual `dvc repro` must not read files of another recipe.
        remove_orphaned_outputs(PROJECT)
    gone = ", ".join(stages_left_out(PROJECT))
    how = (
        f"`make repro` (not `dvc repro`, which would also run {gone}; the recipe leaves that out)"
        if gone
        else "`make repro` or `dvc repro`"
    )
    typer.echo(f"params.yaml is the recipe {recipe}: run {how}")
    if missing := missing_groups(groups_for(["repro"], PROJECT)):
        how = how_to_install(" ".join(missing))
        typer.echo(f"not installed yet: {', '.join(missing)}. `make repro` does it; before `dvc repro`, run {how}")


@app.command()
def graph(
    check: Annotated[bool, typer.Option("--check", help="change nothing; exit code 1 if they differ")] = False,
) -> None:
    """Write dvc.yaml from the stages' declarations (stages/NAME/stage.py). Other entries and comments are kept."""
    changed = updated_graph(PROJECT)[1] if check else write_graph(PROJECT)
    names = ", ".join(changed)
    if not changed:
        typer.echo("dvc.yaml matches what the stages declare")
    elif check:
        typer.echo(f"dvc.yaml differs from what these stages declare: {names}. Run `retrace graph`")
        raise typer.Exit(1)
    else:
        typer.echo(f"dvc.yaml now matches what these stages declare: {names}")


@app.command()
def reference() -> None:
    """Write docs/reference from the code: commands, parameters, tables and metrics."""
    typer.echo(f"docs/reference: {', '.join(write_pages(app)) or 'no page'} written")


# `--help` lists them in this order.
for command in (
    data,
    ablate,
    grade,
    reward,
    environment,
    agreement,
    extract,
    phrases,
    rollback,
    plan,
    compare,
    rollouts,
    verify,
    mirror,
    explain,
    export,
    doctor,
):
    app.command()(command)
app.add_typer(annotations, name="annotations")

if __name__ == "__main__":
    app()
