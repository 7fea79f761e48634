"""`retrace plan`: memory, tokens, FLOPs, hours and cost of a recipe before it is run.

With `--published` it compares the formulas with published runs that state how long a step took.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from pipelines.output import aligned
from pipelines.planning.plan import Plan, PlanRequest, StagePlan, make_plan
from pipelines.planning.sizes import GPUS, NUMBER_BYTES, named_shape
from pipelines.planning.timing import BANDWIDTH_SHARE, MFU, GpuSpeed
from pipelines.planning.work import ResponseLengths, Sampling, Training
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT


def plan(
    recipe: Annotated[str, typer.Argument(help="a name in pipelines/recipes/, or a parameter file (.yaml)")] = "",
    gpu: Annotated[str, typer.Option(help="A100, H100, H200, H20, L40S, ...; cpu: times of earlier runs")] = "cpu",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that train")] = 1,
    replicas: Annotated[int, typer.Option(min=1, help="samplers that work in parallel")] = 1,
    price: Annotated[float | None, typer.Option(min=0, help="price of a GPU-hour (default: 2, an assumption)")] = None,
    model: Annotated[str, typer.Option(help="name of a published model, such as Qwen2.5-7B")] = "",
    config: Annotated[str, typer.Option(help="a config.json with the model's sizes")] = "",
    prompt_tokens: Annotated[float | None, typer.Option(min=1, help="mean length of a prompt")] = None,
    response_share: Annotated[float | None, typer.Option(min=0, max=1, help="mean response length / longest")] = None,
    drawn: Annotated[float | None, typer.Option(min=1, help="groups sampled for each group that is trained on")] = None,
    benchmark_problems: Annotated[
        int | None, typer.Option(min=1, help="benchmark problems that each policy answers")
    ] = None,
    measured: Annotated[str, typer.Option(help="data/metrics of a finished run, for its lengths")] = "",
    mfu: Annotated[float, typer.Option(min=0.01, max=1, help="share of the peak FLOP/s")] = MFU,
    bandwidth_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="share of the memory bandwidth")
    ] = BANDWIDTH_SHARE,
    published: Annotated[bool, typer.Option("--published", help="compare with published runs")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="the plan as JSON")] = False,
) -> None:
    """Plan a recipe: memory per GPU, tokens, FLOPs, hours, cost, and what does not fit. Formulas:
    docs/how-to/plan-a-run.md.

    Exit code 1: something does not fit. 2: a mistake of the caller.
    """
    if published:
        typer.echo("\n".join(published_lines(mfu, bandwidth_share)))
        return
    if not recipe:
        raise UserError("name a recipe: `retrace plan laptop`, or --published")
    lengths = (prompt_tokens, response_share, drawn, benchmark_problems, measured)
    question = PlanRequest(gpu, gpus, replicas, price, model, config, *lengths, mfu, bandwidth_share)
    _refuse_gpu_options(question)
    made = make_plan(PROJECT, recipe, question)
    typer.echo(json.dumps(as_dict(made), indent=2) if as_json else "\n".join(lines_of(made)))
    # A script can stop here before it starts a recipe that does not fit.
    raise typer.Exit(1 if made.problems else 0)


def _refuse_gpu_options(question: PlanRequest) -> None:
    """Raises UserError if options that count GPUs are given for a plan on this machine's CPU, which ignores them."""
    options = {"--gpus": question.gpus > 1, "--replicas": question.replicas > 1, "--price": question.price is not None}
    given = " and ".join(name for name, is_given in options.items() if is_given)
    if given and question.gpu.lower() == "cpu":
        raise UserError(
            f"{given} needs the GPU's name, and --gpu cpu (the default) plans for this machine's CPU: add --gpu H100, "
            f"or leave {given} out"
        )


def as_dict(made: Plan) -> dict[str, Any]:
    """Returns the plan in plain numbers: bytes, tokens, FLOPs, seconds."""
    shape = made.shape
    return {
        "recipe": made.recipe,
        "model": {"name": shape.name, "parameters": shape.parameters},
        "device": made.device,
        "gpus": made.gpus,
        "hours": made.hours,
        "cost": made.cost,
        "stages": [_stage_dict(stage) for stage in made.stages],
        "problems": made.problems,
        "assumptions": made.assumptions,
        "not_counted": made.not_counted,
    }


def _stage_dict(stage: StagePlan) -> dict[str, Any]:
    memory = {f"training_{name}": value for name, value in vars(stage.training).items()} if stage.training else {}
    if stage.sampling:
        memory |= {"sampling_weights": stage.sampling.weights, "sampling_kv_cache": max(0.0, stage.sampling.kv_cache)}
    return {
        "name": stage.name,
        "memory_bytes": memory,
        "trained_tokens": stage.trained_tokens,
        "drawn_tokens": stage.drawn_tokens,
        "flops": stage.flops,
        "seconds": stage.seconds,
        "training_seconds": stage.training_seconds,
        "sampling_seconds": stage.sampling_seconds,
    }


def lines_of(made: Plan) -> list[str]:
    """Returns a table for people; stages that only read and write tables share one line."""
    heads = ["stage", "weights", "gradients", "optimizer", "activations", "KV cache", "trained", "drawn"]
    rows = [_row(stage) for stage in made.stages if stage.training or stage.sampling]
    tables = [stage for stage in made.stages if not (stage.training or stage.sampling)]
    seconds = sum(stage.seconds or 0.0 for stage in tables)
    rows.append([f"{len(tables)} table stages", *[""] * 8, _time(seconds) if seconds else "not counted"])
    model = f": {made.shape.name}, {_short(made.shape.parameters)} parameters"
    # Without a time of any stage a sum would read as "no time at all".
    rows.append(["in all, at least", *[""] * len(heads), _time(made.hours * 3600) if made.hours else "not known"])
    device = f"{made.gpus} x {made.device}" if made.gpus > 1 else made.device
    lines = [
        f"{made.recipe} on {device}{model}; memory in GB a device",
        "",
        *aligned([[*heads, "FLOPs", "time"], *rows]),
    ]
    if made.price:
        devices = f"{made.gpus} GPU{'s' if made.gpus > 1 else ''}"
        lines += ["", f"at least {made.hours:,.1f} hours x {devices} x {made.price:g} = {made.cost:,.0f}"]
    parts = {"Not counted": made.not_counted, "Taken for granted": made.assumptions, "Will not fit": made.problems}
    for title, texts in parts.items():
        lines += ["", f"{title}:", *(f"  {text}" for text in texts)] if texts else []
    return lines


def _row(stage: StagePlan) -> list[str]:
    held, drawn = stage.training, stage.sampling
    return [
        stage.name,
        "+".join(_gb(part.weights) for part in (held, drawn) if part),
        *((_gb(held.gradients), _gb(held.optimizer), _gb(held.activations)) if held else ("", "", "")),
        _gb(max(0.0, drawn.kv_cache)) if drawn else "",
        _short(stage.trained_tokens) if stage.trained_tokens else "",
        _short(stage.drawn_tokens) if stage.drawn_tokens else "",
        f"{stage.flops:.1e}",
        "not known" if stage.seconds is None else _time(stage.seconds),
    ]


def _gb(value: float) -> str:
    return f"{value / 1e9:.1f}" if value >= 1e8 else f"{value / 1e9:.3f}"


def _short(value: float) -> str:
    for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{letter}"
    return f"{value:.0f}"


def _time(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.1f} s"


MEMORY_SHARE_OF_SAMPLER = 0.8
PUBLISHED_PROMPT = 150
"""Mean tokens of a prompt; assumed for every run, because no source states it."""


@dataclass(frozen=True)
class PublishedRun:
    """One synchronous RL step of a run: every GPU samples, then every GPU trains, with gradient checkpointing."""

    method: str
    model: str
    gpu: str
    gpus: int
    gpus_per_replica: int
    responses: int
    """Number of responses that one step samples and trains on."""
    response: float
    """Mean tokens of a response."""
    longest: int
    forward_passes: int
    """Passes without gradient over all trained tokens: proximal and reference log-probs."""
    step_seconds: float
    source: str
    assumed: str
    """Facts that the source does not state."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.model}, {self.gpus} {self.gpu}"


def _nemo(model: str, gpus: int, gpus_per_replica: int, tokens: int, step_seconds: float) -> PublishedRun:
    """A table row of NeMo RL, whose sequences have `tokens` tokens on average and at most 4,096."""
    sizes = (gpus, gpus_per_replica, 2048, tokens - PUBLISHED_PROMPT, 4096 - PUBLISHED_PROMPT, 2, step_seconds)
    source = "NVIDIA NeMo RL 0.4, docs/about/performance-summary.md, on policy"
    assumed = f"prompt {PUBLISHED_PROMPT} of the mean {tokens:,}; two log-prob passes, recomputation"
    return PublishedRun("GRPO", model, "H100", *sizes, source, assumed)


DAPO_SIZES = (128, 4, 512 * 16, 0.3 * 20480, 20480, 1, 5 * 86400 / 230)
PUBLISHED_RUNS = (
    PublishedRun(
        "DAPO",
        "Qwen2.5-32B",
        "A800",
        *DAPO_SIZES,
        source="verl issue 795: 230 rollout steps in 5 days with DAPO's settings",
        assumed="mean lengths (prompt 150, response 0.3 of 20,480), no dynamic sampling, one log-prob pass, "
        "recomputation",
    ),
    _nemo("Qwen3-32B", 32, 4, 3206, 393),
    _nemo("Llama-3.1-8B", 16, 1, 1060, 97.7),
)


def published_lines(mfu: float, bandwidth_share: float) -> list[str]:
    """Returns each published run next to the results of the formulas."""
    lines = []
    for run in PUBLISHED_RUNS:
        training, sampling = planned_step(run, mfu, bandwidth_share)
        lines += [
            f"{run.name}: {training + sampling:,.0f} s a step planned (training {training:,.0f}, sampling "
            f"{sampling:,.0f}), {run.step_seconds:,.0f} published, {(training + sampling) / run.step_seconds - 1:+.0%}",
            f"    {run.source}",
            f"    not published, assumed: {run.assumed}",
        ]
    return lines


def planned_step(run: PublishedRun, mfu: float, bandwidth_share: float) -> tuple[float, float]:
    """Returns seconds of training and of sampling in one step, planned like any recipe."""
    shape, gpu, width = named_shape(run.model), GPUS[run.gpu], NUMBER_BYTES["bfloat16"]
    speed = GpuSpeed(
        gpu,
        training_gpus=run.gpus,
        replicas=run.gpus // run.gpus_per_replica,
        gpus_per_replica=run.gpus_per_replica,
        trainer_dtype="bfloat16",
        sampler_dtype="bfloat16",
        is_checkpointed=True,
        # The sources name no limit, so only the cache limits how many sequences are decoded at once.
        max_sequences=10**9,
        mfu=mfu,
        bandwidth_share=bandwidth_share,
    )
    lengths = ResponseLengths(run.response, run.longest)
    tokens = run.responses * (PUBLISHED_PROMPT + run.response)
    training = Training(
        tokens=tokens,
        response_tokens=run.responses * run.response,
        forward_tokens=run.forward_passes * tokens,
        context=lengths.context_behind(PUBLISHED_PROMPT),
        longest=PUBLISHED_PROMPT + run.longest,
        # Updates take no time in the formulas for GPUs, so their number does not matter.
        updates=1,
        kind="adamw",
    )
    # Groups of 16, as in DAPO. The size only decides how often a prompt is read.
    sampling = Sampling(1, run.responses / 16, 16, PUBLISHED_PROMPT, lengths)
    # Keys and values get the rest of the sampler's share of its GPUs after the weights.
    room = gpu.memory_gb * 1e9 * MEMORY_SHARE_OF_SAMPLER * run.gpus_per_replica - shape.parameters * width
    kv_tokens = room / shape.kv_bytes_per_token(width)
    return speed.training_seconds(shape, training), speed.sampling_seconds(shape, sampling, kv_tokens)
