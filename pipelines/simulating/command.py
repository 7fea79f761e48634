"""`retrace simulate`: what asynchronous RL would gain on a cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT

if TYPE_CHECKING:
    from pipelines.simulating.schedules import Steps
    from pipelines.simulating.setting import Setting
    from pipelines.simulating.table import Cell


def simulate(
    recipe: Annotated[
        str, typer.Argument(help="a name in pipelines/recipes/, or a parameter file (default: params.yaml)")
    ] = "",
    paper: Annotated[bool, typer.Option("--paper", help="the sizes of the Laminar paper instead")] = False,
    gpus: Annotated[int | None, typer.Option(help="GPUs in all (default: 8; --paper: its fifteen settings)")] = None,
    device: Annotated[str, typer.Option(help="A100, H100, H200, H20, L40S, ...")] = "H100",
    policies: Annotated[
        str, typer.Option(help="some of synchronous,one_step,stream,partial,asynchronous,asynchronous_repack,ours")
    ] = "",
    ours: Annotated[bool, typer.Option("--ours", help="our own schedule too: docs/simulator.md")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="RL steps that are measured, after a warm-up")] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the lengths: the same seed gives the same table")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="how many, counted from --seed: means are shown")] = 1,
    model: Annotated[
        str, typer.Option(help="published sizes by name, such as Qwen2.5-7B; with --paper 7B, 32B or 72B")
    ] = "",
    config: Annotated[str, typer.Option(help="a config.json with the policy's sizes")] = "",
    data: Annotated[
        str, typer.Option(help="data of a finished run, for its lengths (default: data, for params.yaml)")
    ] = "",
    mean_tokens: Annotated[float | None, typer.Option(min=1, help="of a response, instead of measured ones")] = None,
    prompt_tokens: Annotated[float | None, typer.Option(min=1, help="of a mean prompt")] = None,
    window: Annotated[
        int | None,
        typer.Option(min=0, help="steps that asynchronous loops may train late (default: the recipe's; --paper: any)"),
    ] = None,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="the paper's ratios when one assumption is another")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes (default: one a core)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line a cell")] = False,
    out: Annotated[
        Path | None, typer.Option(help="write it to a file too: .svg the picture, .jsonl the JSON lines")
    ] = None,
) -> None:
    """Simulate RL schedules on a cluster: seconds a step, staleness and KV use of each, at its best split of the GPUs.

    What would this recipe gain on my cluster? `retrace simulate --gpus 64 --device H100`. Nothing is run and no GPU is
    needed. What is modelled, and what it cannot tell: docs/simulator.md. Exit code 2: a mistake of the caller.
    """
    from pipelines.runtime.named_file import write_named_file
    from pipelines.simulating.recipe import RecipeQuestion, recipe_setting
    from pipelines.simulating.schedules import Steps
    from pipelines.simulating.setting import BATCH_STEPS, MEASURED_STEPS
    from pipelines.simulating.table import cell_lines, draw, policy_lines, published_lines, sentence, simulate_cells

    try:
        _refuse_contradictions(recipe, paper, sensitivity, model, out)
        chosen = _policies(policies, ours)
        looked = Steps(measured=steps or MEASURED_STEPS, batches=steps or BATCH_STEPS)
        count = jobs or os.cpu_count() or 1
        drawn = range(seed, seed + seeds)
        if sensitivity:
            typer.echo("\n".join(_sensitivity_lines(drawn, looked, count, as_json)))
            return
        told: list[str] = []
        if paper:
            settings = [one.with_constants(window=window) for one in _paper_settings(model, gpus)]
        else:
            question = RecipeQuestion(
                device,
                8 if gpus is None else gpus,
                _data(data, recipe),
                window,
                mean_tokens,
                prompt_tokens,
                model,
                config,
            )
            setting, told = recipe_setting(PROJECT, recipe or str(PROJECT / "params.yaml"), question)
            settings = [setting]
        cells = simulate_cells(settings, chosen, drawn, looked, count)
        if not paper and settings[0].doubt:
            typer.echo(f"warning: {settings[0].doubt}", err=True)
        lines = _json_lines(cells)
        name = "Laminar's settings" if paper else Path(recipe).stem if recipe else "this recipe"
        if out is not None:
            title = f"{name}, simulated" + ("" if paper else f": {settings[0].gpus} x {settings[0].gpu.name}")
            content = draw(cells, title) if out.suffix == ".svg" else "\n".join(lines) + "\n"
            write_named_file(out, content, "--out")
            typer.echo(f"written: {out}", err=True)
        if not as_json and paper:
            lines = [*cell_lines(cells), "", *published_lines(cells)] if len(settings) > 1 else policy_lines(cells)
        elif not as_json:
            taken = ["", "Taken for granted:", *(f"  {text}" for text in told)]
            lines = [sentence(cells, name), "", *policy_lines(cells), *taken]
        typer.echo("\n".join(lines))
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def _refuse_contradictions(recipe: str, paper: bool, sensitivity: bool, model: str, out: Path | None) -> None:
    if recipe and (paper or sensitivity):
        flag = "--paper" if paper else "--sensitivity"
        raise UserError(f"{flag} has the sizes of the paper: leave {recipe} out, or the option")
    if sensitivity and (model or out):
        raise UserError("--sensitivity has settings of its own and prints a table: leave --model and --out out")
    if out is not None and out.suffix not in (".svg", ".jsonl"):
        raise UserError(f"--out {out}: give a name that ends in .svg (the picture) or .jsonl (the lines of --json)")


def _policies(given: str, ours: bool) -> tuple[str, ...]:
    from pipelines.simulating.schedules import OURS, POLICIES

    chosen = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip())) or POLICIES
    if unknown := [name for name in chosen if name not in (*POLICIES, OURS)]:
        raise UserError(f"no policy {unknown[0]!r}: there are {', '.join((*POLICIES, OURS))}")
    return (*chosen, OURS) if ours and OURS not in chosen else chosen


def _paper_settings(model: str, gpus: int | None) -> list[Setting]:
    from pipelines.simulating.setting import PAPER_GPUS, paper_setting, paper_settings

    if not model and gpus is None:
        return paper_settings()
    names = [model] if model else list(PAPER_GPUS)
    return [
        paper_setting(name, count)
        for name in names
        for count in ([gpus] if gpus is not None else PAPER_GPUS.get(name, (1,)))
    ]


def _data(given: str, recipe: str) -> Path:
    """Where lengths are looked for. The data of this project are those of params.yaml, and of no other recipe."""
    if given and not Path(given).is_dir():
        raise UserError(f"--data {given} is no folder: name the data of a finished run")
    return Path(given) if given else PROJECT / "data" if not recipe else Path(os.devnull)


def _json_lines(cells: Sequence[Cell]) -> list[str]:
    return [json.dumps(cell.as_dict()) for cell in cells]


def _sensitivity_lines(seeds: Sequence[int], steps: Steps, jobs: int, as_json: bool) -> list[str]:
    from pipelines.simulating.table import HEADS, SETTINGS, as_rows, sensitivities

    found = sensitivities(seeds, steps, jobs)
    if as_json:
        return [json.dumps({"change": name, **own}) for name, own in found.items()]
    shown = ", ".join(f"{model} on {gpus}" for model, gpus in SETTINGS)
    return [f"asynchronous_repack over the others, at {shown} GPUs", "", *as_rows(found, HEADS)]
