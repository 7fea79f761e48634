"""`retrace compare`: tests which differences between policies are real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT, state_folder


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_POLICY...",
            help="POLICY, REV:POLICY, FOLDER:POLICY, an ablation's results folder, or an MLflow run; or generators "
            "that have had feedback; the first one is the baseline; commas join runs of different seeds: "
            "rl_3,../seed1:rl_3",
        ),
    ],
    metrics: Annotated[
        str, typer.Option(help="scores to compare, comma-separated: avg, greedy, pass, maj")
    ] = "avg,greedy,pass,maj",
    all_pairs: Annotated[bool, typer.Option("--all-pairs", help="compare every pair, not only with the first")] = False,
    common: Annotated[
        bool, typer.Option("--common", help="compare only the problems and samples that all sides share")
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="leave out benchmark problems that a side was trained on")
    ] = False,
    problems: Annotated[
        int, typer.Option(min=0, help="problems won and lost to show for each pair and benchmark")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON (fractions) instead of the table")] = False,
    out: Annotated[Path, typer.Option(help="file for the page")] = PROJECT / "reports" / "compare.html",
) -> None:
    """Test which differences between policies are real: paired intervals, a corrected test, seeds, problems won.

    Generators are compared by their pictures of the same prompts from the same noise, only in a table.
    Prints a table, writes a page with the responses, and makes an MLflow run of kind `comparison`. Exit code 2 is a
    mistake of the caller.
    """
    # Imported here, because pandas and the charts would slow down every `retrace --help`.
    from pipelines.comparing.page import as_json as content_of
    from pipelines.comparing.page import render_page, text_table
    from pipelines.comparing.results import compare as compare_sides
    from pipelines.comparing.results import compare_pictures, find_pictures, picture_json, picture_table
    from pipelines.comparing.sides import read_sides
    from pipelines.comparing.tracking import run_finder, track_comparison
    from pipelines.output import write_named_file

    try:
        families = chosen_families(metrics)
        # Generators have pictures and no verdicts, so the rest of the command does not apply.
        if tables := find_pictures(what, PROJECT):
            compared = compare_pictures(tables)
            typer.echo(json.dumps(picture_json(compared), indent=2) if as_json else picture_table(compared))
            return
        sides = read_sides(what, PROJECT, run_finder(PROJECT, state_folder()))
        findings = compare_sides(sides, families, common, all_pairs, clean)
        # Shared benchmarks may still lack the metric, such as avg if only greedy responses exist.
        if not findings.comparisons:
            raise UserError(f"none of the metrics {', '.join(families)} was sampled for all of {', '.join(what)}")
        write_named_file(out, render_page(findings, families, problems), "--out")
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps(content_of(findings), indent=2) if as_json else text_table(findings))
    typer.echo(f"page: {out}", err=True)
    if warning := track_comparison(findings, state_folder()):
        typer.echo(f"WARNING: {warning}", err=True)


def chosen_families(text: str) -> list[str]:
    """Returns the metrics by name, in the order of `FAMILIES`. Raises UserError for an unknown metric."""
    from pipelines.comparing.results import FAMILIES

    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in FAMILIES]
    if unknown or not words:
        raise UserError(f"--metrics {text!r}: there are {', '.join(FAMILIES)}")
    # In a fixed order, not the user's: the first metric leads the page.
    return [family for family in FAMILIES if family in words]
