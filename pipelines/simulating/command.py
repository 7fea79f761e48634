"""`retrace simulate`: the gain of asynchronous RL on a cluster.

The recipe's parameters give model, groups, mini-batches and limits; measured data give the lengths.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipelines.output import write_named_file
from pipelines.planning.plan import PlanRequest, RecipeWork, length_lines, read_work
from pipelines.planning.sizes import GPUS, NUMBER_BYTES, find_gpu
from pipelines.simulating.schedules import OURS, POLICIES, Steps
from pipelines.simulating.setting import (
    BATCH_STEPS,
    CONSTANTS,
    MEASURED_STEPS,
    PAPER_SIGMA,
    LogNormal,
    MeasuredGroups,
    Model,
    Setting,
    StepWork,
    Tools,
    paper_settings,
)
from pipelines.simulating.table import (
    cell_lines,
    draw,
    policy_lines,
    published_lines,
    sensitivity_lines,
    sentence,
    simulate_cells,
)
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT

WINDOW = 4
"""Assumed for a recipe without asynchronous loop: without a window, responses would pile up before a slow trainer."""


def simulate(
    recipe: Annotated[
        str, typer.Argument(help="a name in pipelines/recipes/, or a parameter file (default: params.yaml)")
    ] = "",
    paper: Annotated[bool, typer.Option("--paper", help="simulate the Laminar paper's settings instead")] = False,
    gpus: Annotated[int | None, typer.Option(help="GPUs in all (default: 8; --paper: its fifteen settings)")] = None,
    device: Annotated[str, typer.Option(help="A100, H100, H200, H20, L40S, ...")] = "H100",
    policies: Annotated[
        str,
        typer.Option(
            help="schedules, comma-separated: synchronous,one_step,stream,partial,asynchronous,asynchronous_repack,ours"
        ),
    ] = "",
    ours: Annotated[
        bool, typer.Option("--ours", help="add Retrace's schedule: see docs/evidence/simulator.md")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="RL steps to measure, after a warm-up")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the lengths; the same seed gives the same table")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="number of seeds, from --seed on; the table shows means")] = 1,
    model: Annotated[
        str, typer.Option(help="name of a published model, such as Qwen2.5-7B; with --paper 7B, 32B or 72B")
    ] = "",
    config: Annotated[str, typer.Option(help="a config.json with the model's sizes")] = "",
    data: Annotated[
        str, typer.Option(help="data of a finished run, for its lengths (default: data, for params.yaml)")
    ] = "",
    mean_tokens: Annotated[
        float | None, typer.Option(min=1, help="mean length of a response, instead of measured lengths")
    ] = None,
    prompt_tokens: Annotated[float | None, typer.Option(min=1, help="mean length of a prompt")] = None,
    window: Annotated[
        int | None, typer.Option(min=0, help="largest staleness in steps (default: the recipe's; --paper: any)")
    ] = None,
    turns: Annotated[
        float | None, typer.Option(min=1, help="median turns of a response, with a tool call between turns")
    ] = None,
    tool_seconds: Annotated[float, typer.Option(min=0, help="median seconds of a call, with --turns")] = 1.0,
    tool_tail: Annotated[float, typer.Option(min=1, help="99th percentile of these seconds / median")] = 10.0,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="the paper's ratios when one assumption changes")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes (default: one per core)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line per cell")] = False,
    out: Annotated[
        Path | None, typer.Option(help="also write a file: .svg for the picture, .jsonl for JSON lines")
    ] = None,
) -> None:
    """Simulate RL schedules on a cluster: seconds per step, staleness and KV use of each, at its best GPU split.

    What would this recipe gain on my cluster? `retrace simulate --gpus 64 --device H100`. Nothing is run and no GPU is
    needed. The model and its limits: docs/evidence/simulator.md. Exit code 2: a mistake of the caller.
    """
    try:
        _refuse_contradictions(recipe, paper, sensitivity, model, out)
        if data and not Path(data).is_dir():
            raise UserError(f"--data {data} is no folder: name the data of a finished run")
        # Mistakes of the caller come first: a simulation may take minutes.
        chosen = _policies(policies, ours)
        looked = Steps(measured=steps or MEASURED_STEPS, batches=steps or BATCH_STEPS)
        count = jobs or os.cpu_count() or 1
        drawn = range(seed, seed + seeds)
        if sensitivity:
            typer.echo("\n".join(sensitivity_lines(drawn, looked, count, as_json)))
            return
        assumptions: list[str] = []
        if paper:
            settings = [one.with_constants(window=window) for one in paper_settings(model, gpus)]
        else:
            # The project's data belong to params.yaml, and to no other recipe.
            folder = Path(data) if data else PROJECT / "data" if not recipe else None
            metrics = str(folder / "metrics") if folder and (folder / "metrics").is_dir() else ""
            question = PlanRequest(
                device,
                8 if gpus is None else gpus,
                model=model,
                config=config,
                prompt_tokens=prompt_tokens,
                measured=metrics if mean_tokens is None else "",
            )
            asked = recipe or str(PROJECT / "params.yaml")
            setting, assumptions = recipe_setting(PROJECT, asked, question, folder, window, mean_tokens)
            settings = [setting]
        if turns is not None:
            tools = Tools(turns, tool_seconds, tool_tail)
            settings = [replace(one, work=replace(one.work, tools=tools)) for one in settings]
            assumptions.append(
                f"{turns:g} turns a response, {tool_seconds:g} s a call, p99 {tool_tail:g} times that; a response "
                "that waits for a tool takes no room, and is read again only at another replica"
            )
        cells = simulate_cells(settings, chosen, drawn, looked, count)
        if not paper and settings[0].doubt:
            typer.echo(f"warning: {settings[0].doubt}", err=True)
        lines = [json.dumps(cell.as_dict()) for cell in cells]
        name = "Laminar's settings" if paper else Path(recipe).stem if recipe else "this recipe"
        if out is not None:
            title = f"{name}, simulated" + ("" if paper else f": {settings[0].gpus} x {settings[0].gpu.name}")
            content = draw(cells, title) if out.suffix == ".svg" else "\n".join(lines) + "\n"
            write_named_file(out, content, "--out")
            typer.echo(f"written: {out}", err=True)
        if not as_json and paper:
            lines = [*cell_lines(cells), "", *published_lines(cells)] if len(settings) > 1 else policy_lines(cells)
        elif not as_json:
            taken = ["", "Taken for granted:", *(f"  {text}" for text in assumptions)]
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
        raise UserError("--sensitivity has fixed settings and prints a table: leave out --model and --out")
    if out is not None and out.suffix not in (".svg", ".jsonl"):
        raise UserError(f"--out {out}: give a name that ends in .svg (the picture) or .jsonl (the lines of --json)")


def _policies(given: str, ours: bool) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip())) or POLICIES
    if unknown := [name for name in chosen if name not in (*POLICIES, OURS)]:
        raise UserError(f"no policy {unknown[0]!r}: there are {', '.join((*POLICIES, OURS))}")
    return (*chosen, OURS) if ours and OURS not in chosen else chosen


def recipe_setting(
    root: Path,
    recipe: str,
    question: PlanRequest,
    data: Path | None = None,
    window: int | None = None,
    mean_tokens: float | None = None,
) -> tuple[Setting, list[str]]:
    """Returns the recipe's round with the longest responses, and sentences about the assumptions.

    `data` is that of a finished run: its lengths are used unless `mean_tokens` of a response are given. If `window` is
    None, the recipe's value or `WINDOW` is used. Raises UserError for a recipe without RL or without lengths, or whose
    policy does not fit the device.
    """
    if question.gpu.upper() == "CPU":
        raise UserError(f"--device cpu: the simulator knows GPUs: {', '.join(GPUS)}")
    gpu, read = find_gpu(question.gpu), read_work(root, recipe, question)
    rounds = [address for address, work in read.work.items() if work.training and work.sampling]
    if not rounds:
        raise UserError(f"{recipe} has no RL round, so there is nothing to simulate")
    # The longest responses decide how many GPUs a cluster needs for the recipe.
    address = max(rounds, key=lambda one: read.work[one].sampling[0].lengths.mean)
    lengths, assumption = _lengths(read, address, data, mean_tokens)
    rl, trainer = read.sections["rl"], read.sections.get("trainer")
    drawing = read.work[address].sampling[0]
    # Updates over mini-batches are the steps of the round, so this is the number of groups in a step.
    drawn = drawing.responses / max(1.0, read.work[address].training.updates / rl.minibatches) / rl.group_size
    work = StepWork(
        groups=max(1, round(drawn)),
        group_size=rl.group_size,
        prompt_tokens=max(1, round(read.lengths.prompt)),
        lengths=lengths,
    )
    constants = replace(
        CONSTANTS,
        minibatches=rl.minibatches,
        most_sequences=read.sections["sampler"].max_sequences,
        # 6 for forward and backward, 2 for each further forward pass: log-probs twice, and the layers again with
        # checkpointing.
        training_flops=6.0
        + 2.0 * (rl.proximal == "recompute")
        + 2.0 * (rl.reference_kl.kind != "none")
        + 2.0 * bool(trainer and trainer.gradient_checkpointing),
    )
    loop = rl.loop if rl.loop.kind == "asynchronous" else None
    is_assumed = window is None and not loop
    # The option takes precedence over the recipe, and the recipe over the assumption.
    window = window if window is not None else loop.window if loop else WINDOW
    share = loop.replica_share if loop else CONSTANTS.share
    constants = replace(constants, window=window, share=share)
    assumptions = [
        assumption,
        f"asynchronous loops: window {window}, an empty replica takes {share:g} x batch / replicas"
        + (" (assumed)" if is_assumed else ""),
        f"{constants.minibatch_seconds:g} s fixed a mini-batch and {1000 * constants.host_seconds:g} ms a decode step, "
        "which dominate for a small policy (assumed)",
        f"a step: {work.groups} groups of {work.group_size} drawn, {rl.problems_per_step} trained on, "
        f"{rl.minibatches} mini-batches",
        *(line for line in length_lines(read.lengths) if line.startswith("prompt")),
    ]
    shape, sampler = read.shape, read.sections["sampler"]
    width, parallel = NUMBER_BYTES[sampler.dtype], getattr(sampler, "tensor_parallel", 1)
    model = Model(shape.name, shape.parameters, shape.layers, shape.kv_bytes_per_token(width), parallel, width)
    return Setting(model, gpu, question.gpus, work, constants), assumptions


def _lengths(
    read: RecipeWork, address: str, data: Path | None, mean_tokens: float | None
) -> tuple[LogNormal | MeasuredGroups, str]:
    """Returns the distribution, and a sentence about its source."""
    most = read.sections["rl"].max_response_tokens
    if mean_tokens is not None:
        if mean_tokens > most:
            raise UserError(f"--mean-tokens {mean_tokens:g} is more than rl.max_response_tokens, {most}: lower it")
        return _spread(mean_tokens, most), f"responses: {mean_tokens:.0f} tokens on average (given)"
    table = data / "rollouts" / f"{address.partition('@')[2]}.parquet" if data else None
    if table and table.is_file():
        measured = _measured_groups(table)
        return measured, f"responses: those of {len(measured.groups)} groups in {table}"
    mean = read.lengths.responses.get(address)
    if mean is None:
        raise UserError(
            "no lengths of responses are known: run the recipe first, name the data of a finished run "
            "with --data, or give --mean-tokens"
        )
    return _spread(mean, most), f"responses: {mean:.0f} tokens on average (measured), spread as in the paper"


def _spread(mean: float, most: int) -> LogNormal:
    # A mean at the limit would need all responses to be truncated, which no log-normal distribution gives.
    return LogNormal.of_mean(min(mean, 0.98 * most), PAPER_SIGMA, most)


def _measured_groups(table: Path) -> MeasuredGroups:
    from pyarrow import ArrowException, parquet

    groups: dict[tuple[int, str], list[int]] = {}
    try:
        columns = parquet.read_table(table, columns=["step", "problem_id", "response_tokens"]).to_pydict()
    except (ArrowException, OSError) as error:
        raise UserError(f"{table} is no table of rollouts ({error}): name another run's data with --data") from None
    for step, problem, tokens in zip(*columns.values(), strict=True):
        # The end token takes a decoding step, so no response is shorter than 1 token.
        groups.setdefault((step, problem), []).append(max(1, tokens))
    if not groups:
        raise UserError(f"{table} holds no rollouts: name another run's data with --data, or give --mean-tokens")
    return MeasuredGroups(tuple(tuple(group) for group in groups.values()))
