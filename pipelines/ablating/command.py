"""`retrace ablate`: runs an ablation, or shows the existing ones."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT, state_folder


def ablate(
    name: Annotated[
        str, typer.Argument(help="a file in pipelines/ablations/, without .yaml (default: list them)")
    ] = "",
    jobs: Annotated[str, typer.Option(help="runs at once; `auto`: as many as memory and cores allow")] = "1",
    variants: Annotated[str, typer.Option(help="variants to run, comma-separated (default: all)")] = "",
    seeds: Annotated[str, typer.Option(help="seeds to run, comma-separated (default: all)")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and an estimate, and run nothing")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print the table of finished runs; without a name, all claims")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="keep the worktrees of finished runs")] = False,
    revision: Annotated[str, typer.Option(help="git revision whose code is run")] = "HEAD",
    with_changes: Annotated[
        bool, typer.Option("--with-changes", help="include uncommitted code; the page then says dirty")
    ] = False,
) -> None:
    """Run an ablation: every variant with every seed, then a page, a table and MLflow runs.

    Each run is a `dvc repro` of committed code in a git worktree under state/ablations/NAME/ that shares DVC's cache:
    data, base and SFT run once for each seed. Finished runs are not repeated: after Ctrl-C or a crash the same command
    continues. Results: reports/ablations/NAME.html and .json. Exit code 1: a run failed, 2: a mistake of the caller.
    """
    # Imported here: planning and pandas would slow down every `retrace --help`.
    from pipelines.ablating.session import Choice, list_ablations, run_ablation, show_markdown, show_plan

    # Standard output is for tables that may be redirected, so progress goes to standard error.
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        choice = Choice(
            PROJECT,
            state_folder(),
            name,
            _words(variants) or None,
            _numbers(seeds),
            _jobs(jobs),
            revision,
            with_changes,
            keep,
        )
        if not name and markdown:
            from pipelines.ablating.writing import show_claims

            typer.echo(show_claims(PROJECT, state_folder()), nl=False)
        elif not name:
            typer.echo("\n".join(list_ablations(PROJECT)))
        elif markdown:
            typer.echo(show_markdown(choice), nl=False)
        elif dry_run:
            typer.echo("\n".join(show_plan(choice)))
        else:
            raise typer.Exit(run_ablation(choice, say))
    except KeyboardInterrupt:
        say("interrupted: no process is left running; run the same command again to resume")
        # 128 + SIGINT, as shells report a process that Ctrl-C ended.
        raise typer.Exit(130) from None


def _jobs(text: str) -> int | None:
    # Decided later, from the parameters of the runs and the free resources at that time.
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--jobs {text!r} must be a number from 1, or auto")
    return int(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int] | None:
    try:
        return [int(word) for word in _words(text)] or None
    except ValueError:
        raise UserError(f"--seeds {text!r} must be numbers with commas: --seeds 0,1") from None
