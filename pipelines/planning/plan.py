"""Builds a plan: the recipe's stages, the memory and work of each, their time, and what does not fit.

`make_plan` is for recipes with a language model; lengths of prompts and responses are assumed, given, or read from an
earlier run's metric files. `make_picture_plan` is for recipes whose networks only read and generate pictures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from pipelines.graph.recipes import read_recipe, recipe_names
from pipelines.graph.schema import check_values
from pipelines.planning.memory import SamplingMemory, TrainingMemory, problems_of, sampling_memory, training_memory
from pipelines.planning.sizes import GIB, Gpu, Shape, find_gpu, named_shape, read_config, shape_of
from pipelines.planning.timing import BANDWIDTH_SHARE, MFU, CpuSpeed, GpuSpeed, sampling_flops, training_flops
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.foundations.stage import Lengths, NetworkWork, Work, about
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.observe.progress import say

IDLE_TRAINER = SimpleNamespace(
    kind="torch", dtype="float32", threads=1, micro_batch_tokens=1, gradient_checkpointing=False
)
IDLE_SAMPLER = SimpleNamespace(kind="torch", dtype="float32", threads=1, max_sequences=1)
"""For recipes that train or sample nothing, and so lack that section."""
RESPONSE_SHARE = 0.3
"""Assumed length of a mean response, as a share of the longest."""
PROMPT_SHARE, LONGEST_ASSUMED_PROMPT = 1 / 8, 150
"""Assumed length of a prompt: this share of the context, and at most so many tokens."""
DRAWN_PER_TRAINED = 2.0
"""Groups sampled for each group that is trained on, under dynamic sampling."""
PRICE = 2.0
"""Assumed price for an hour of any GPU, in any currency: pass your price."""


@dataclass(frozen=True)
class PlanRequest:
    """The user's options. None takes the recipe's value or the stated default."""

    gpu: str = "cpu"
    gpus: int = 1
    replicas: int = 1
    price: float | None = None
    model: str = ""
    config: str = ""
    prompt_tokens: float | None = None
    response_share: float | None = None
    drawn_per_trained: float | None = None
    benchmark_problems: int | None = None
    measured: str = ""
    mfu: float = MFU
    bandwidth_share: float = BANDWIDTH_SHARE


@dataclass(frozen=True)
class StagePlan:
    """One stage: the memory of a GPU, the work, and the time."""

    name: str
    training: TrainingMemory | None
    sampling: SamplingMemory | None
    trained_tokens: float
    drawn_tokens: float
    flops: float
    start_seconds: float
    training_seconds: float
    sampling_seconds: float
    together_seconds: float | None = None
    """For training and sampling at the same time; None where they alternate."""

    @property
    def seconds(self) -> float:
        in_turns = self.training_seconds + self.sampling_seconds
        return self.start_seconds + (in_turns if self.together_seconds is None else self.together_seconds)


@dataclass(frozen=True)
class PictureStage:
    """One stage with picture networks."""

    name: str
    work: NetworkWork
    flops: float
    memory_bytes: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Plan:
    """All stages of a recipe on one kind of device."""

    recipe: str
    shape: Shape | None
    """None without a language model: then the stages are `PictureStage`s."""
    device: str
    gpus: int
    price: float
    stages: list[Any]
    problems: list[str]
    assumptions: list[str] = field(default_factory=list)
    not_counted: list[str] = field(default_factory=list)
    """Parts that `hours` and `cost` leave out, because they are not known or not modelled."""

    @property
    def hours(self) -> float:
        """A lower bound."""
        return sum(stage.seconds for stage in self.stages) / 3600

    @property
    def cost(self) -> float:
        """All GPUs are paid for all the time, including idle ones."""
        return self.hours * self.gpus * self.price


@dataclass(frozen=True)
class RecipeWork:
    """The work of a recipe, before a device is chosen."""

    sections: Mapping[str, Any]
    shape: Shape
    lengths: Lengths
    work: Mapping[str, Work]
    """By the address of the stage."""


def recipe_params(root: Path, recipe: str) -> Mapping[str, Any]:
    """Returns the parameters of a recipe, by its name or a parameter file; UserError where there is none."""
    if recipe.endswith((".yaml", ".yml")):
        return read_yaml(Path(recipe))
    if recipe in recipe_names(root):
        return read_recipe(root, recipe)
    raise UserError(f"no recipe {recipe!r}: there are {', '.join(recipe_names(root))}, or name a parameter file")


def read_work(root: Path, recipe: str, question: PlanRequest) -> RecipeWork:
    """Computes it for `recipe` (a name, or a parameter file). UserError for unknown or missing values."""
    params = recipe_params(root, recipe)
    sections = {"trainer": IDLE_TRAINER, "sampler": IDLE_SAMPLER} | check_values(params, recipe)
    stages = [stage for stage in stages_of(read_definitions(root / "dvc.yaml"), params) if stage.reads]
    models = [model(sections) for stage in stages if (model := about(stage.name).model)]
    if not models:
        raise UserError("no stage of this recipe trains or samples a language model, and only those are planned")
    if question.config:
        shape = read_config(Path(question.config))
    else:
        shape = named_shape(question.model) if question.model else shape_of(models[0], root)
    lengths = _lengths(stages, sections, models[0].policy, shape, question)
    work = {}
    for stage in stages:
        work_of = about(stage.name).work
        work[stage.address] = work_of(sections, stage.address, lengths) if work_of else Work()
    return RecipeWork(sections, shape, lengths, work)


def _lengths(
    stages: list[GraphStage], sections: Mapping[str, Any], policy: str, shape: Shape, question: PlanRequest
) -> Lengths:
    """Returns the stated defaults, replaced by values of the user or an earlier run."""
    # The limit of vLLM is lower than the positions of the policy.
    context = getattr(sections["sampler"], "max_model_tokens", 0) or shape.max_positions
    prompt = min(PROMPT_SHARE * context, LONGEST_ASSUMED_PROMPT) if context else LONGEST_ASSUMED_PROMPT
    values = {"prompt": prompt, "response_share": RESPONSE_SHARE, "drawn_per_trained": DRAWN_PER_TRAINED}
    said = {
        "prompt": question.prompt_tokens,
        "response_share": question.response_share,
        "drawn_per_trained": question.drawn_per_trained,
    }
    lengths = Lengths(
        **values | {name: value for name, value in said.items() if value is not None},
        # Random weights end a response with chance 1 / vocabulary per token, so nearly all reach the length limit.
        untrained={policy: 1 / shape.vocabulary} if shape.is_untrained else {},
        benchmark_problems=question.benchmark_problems,
        sources={name: "assumed" if value is None else "given" for name, value in said.items()},
    )
    if not question.measured:
        return lengths
    folder = Path(question.measured)
    if not folder.is_dir():
        raise UserError(f"--measured {folder} is no folder: name data/metrics of a finished run")
    return _measured(lengths, folder, stages)


def make_plan(root: Path, recipe: str, question: PlanRequest, probe: Any = None) -> Plan:
    """Plans `recipe` (a name, or a parameter file). UserError for unknown or missing values.

    On `cpu` this machine is measured, unless `probe` holds an earlier `CpuProbe`.
    """
    read = read_work(root, recipe, question)
    sections, shape, lengths, work = read.sections, read.shape, read.lengths, read.work
    # The loop that samples and trains side by side starts its ranks itself; other stages then have one.
    is_split = any(own.side_by_side for own in work.values())
    ranks = 1 if sections["trainer"].kind == "torch" or is_split else question.gpus
    assumptions = length_lines(lengths)
    assumptions += dict.fromkeys(line for own in work.values() for line in own.taken_for_granted)
    not_counted = _unknown_work(work)
    if question.gpu.lower() == "cpu":
        speed = _cpu(sections, shape, lengths, list(work.values()), probe, assumptions)
        gpu = Gpu("cpu", psutil.virtual_memory().total / 1e9, 0.0, 0.0, 0.0)
        not_counted.append("the work of table stages after their processes have started")
        # This machine is available anyway: an hour of it costs nothing.
        count, price = 1, 0.0
    else:
        speed, gpu = _gpus(sections, question, ranks, is_split, assumptions), find_gpu(question.gpu)
        not_counted.append("table stages, process starts, loading, verifying, saving")
        if shape.parameters < 1e9:
            not_counted.append("launches between kernels, which dominate below a billion parameters")
        count, price = question.gpus, PRICE if question.price is None else question.price
        assumptions.append(f"price: {price:g} a GPU-hour" + ("" if question.price is not None else " (assumed)"))
    plans = [_planned(name, own, sections, shape, gpu, speed, question, ranks) for name, own in work.items()]
    found = [
        sentence
        for plan in plans
        for sentence in problems_of(
            plan.name, work[plan.name], plan.training, plan.sampling, sections, shape, gpu, question.gpus, is_split
        )
    ]
    return Plan(
        Path(recipe).name.removesuffix(".yaml"),
        shape,
        gpu.name,
        count,
        price,
        plans,
        list(dict.fromkeys(found)),
        assumptions,
        not_counted,
    )


def _unknown_work(work: Mapping[str, Work]) -> list[str]:
    """Returns each kind of work of unknown size, with the stages that have it."""
    stages: dict[str, list[str]] = {}
    for name, own in work.items():
        for line in own.not_counted:
            stages.setdefault(line, []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in stages.items()]


def length_lines(lengths: Lengths) -> list[str]:
    """Returns a sentence on each length that is unknown before a run."""
    sources = lengths.sources
    return [
        f"prompt: {lengths.prompt:.0f} tokens ({sources['prompt']})",
        f"response: {lengths.response_share:.2f} of the longest ({sources['response_share']})",
    ]


def _cpu(
    sections: Mapping[str, Any], shape: Shape, lengths: Lengths, work: list[Work], probe: Any, assumptions: list[str]
) -> CpuSpeed:
    from pipelines.planning.probe import ProbeSettings, probe_cpu
    from stages.engines.samplers.torch_sampler import MOST_LANES, SMALL_POLICY

    sampler, trainer = sections["sampler"], sections["trainer"]
    threads = getattr(sampler, "threads", trainer.threads)
    # The torch sampler decodes a small policy in lanes, one per thread. A larger policy uses all threads for one
    # batch.
    is_small = shape.parameters <= SMALL_POLICY and sampler.kind == "torch"
    lanes = min(threads, MOST_LANES) if is_small else 1
    if probe is None:
        # Sequences are as long as in the stage that trains most, and contexts as in the stage that samples most.
        trained = max((item.training for item in work if item.training), key=lambda one: one.tokens, default=None)
        drawn = max((part for item in work for part in item.sampling), key=lambda part: part.tokens, default=None)
        settings = ProbeSettings(
            trainer.dtype,
            trainer.threads,
            trainer.micro_batch_tokens,
            int(trained.context) if trained else int(lengths.prompt),
            trained.response_tokens / max(1.0, trained.tokens) if trained else 0.5,
            frozenset(
                kind for item in work if item.training for kind in (item.training.kind, item.training.critic) if kind
            ),
            int(drawn.context) if drawn else int(lengths.prompt),
            int(drawn.lengths.mean) if drawn else 1,
            drawn.samples if drawn else 1,
            lanes,
        )
        say("measuring this machine: 10 seconds for a small policy, minutes on a busy machine")
        probe = probe_cpu(shape, settings)
    assumptions.append(
        f"cpu: measured in {probe.seconds:.0f} s, {probe.free_share:.0%} of one core got"
        + ("; the machine is busy, so more than one thread or lane is assumed to gain nothing" if probe.is_busy else "")
    )
    if sampler.kind == "vllm":
        assumptions.append("sampler vllm on a CPU: planned with the probe's matrix products; its start is not counted")
    return CpuSpeed(probe, lanes, sampler.max_sequences, trainer.gradient_checkpointing, trainer.threads)


def _gpus(
    sections: Mapping[str, Any], question: PlanRequest, ranks: int, is_split: bool, assumptions: list[str]
) -> GpuSpeed:
    sampler, trainer = sections["sampler"], sections["trainer"]
    parallel = getattr(sampler, "tensor_parallel", 1)
    if question.replicas * parallel > question.gpus:
        raise UserError(
            f"{question.replicas} replicas over {parallel} GPUs each need more than --gpus {question.gpus}: "
            "lower --replicas or sampler.tensor_parallel"
        )
    counts = f"training: {ranks} GPU(s); sampling: {question.replicas} replica(s) over {parallel} GPU(s)"
    # An asynchronous round has ranks and replicas of its own, which its stage states.
    assumptions += [
        f"in stages other than that round, {counts}"
        if is_split
        else f"{counts}, or one for every {parallel} rank(s) where that is more",
        f"in all stages, training at {question.mfu:.2f} of the peak and sampling at {question.bandwidth_share:.2f} of "
        "the bandwidth",
    ]
    return GpuSpeed(
        find_gpu(question.gpu),
        ranks,
        question.replicas,
        parallel,
        trainer.dtype,
        sampler.dtype,
        trainer.gradient_checkpointing,
        sampler.max_sequences,
        question.mfu,
        question.bandwidth_share,
    )


def _planned(
    name: str,
    item: Work,
    sections: Mapping[str, Any],
    shape: Shape,
    gpu: Gpu,
    speed: GpuSpeed | CpuSpeed,
    question: PlanRequest,
    ranks: int,
) -> StagePlan:
    trainer, sampler = sections.get("trainer"), sections.get("sampler")
    training, drawing, together = item.training, item.sampling, item.side_by_side
    speed = speed.split(together)
    replicas = together.replicas if together else question.replicas
    if not together and isinstance(speed, GpuSpeed):  # every rank samples with its own engine
        replicas = max(replicas, ranks // speed.gpus_per_replica)
        speed = replace(speed, replicas=replicas)
    held = drawn_with = None
    if training:
        ranks = together.trainer_ranks if together else ranks
        models = training.holds_reference, training.adapter, training.critic
        held = training_memory(shape, trainer, training.kind, ranks, training.longest, *models)
    if drawing:
        # A call with `in_flight` starts a prompt when another has ended: the cache never holds more than these.
        open_prompts = (min(part.prompts, part.in_flight or part.prompts) * part.samples for part in drawing)
        sequences = max(open_prompts) / replicas
        longest = max(part.prompt_tokens + part.lengths.most for part in drawing)
        drawn_with = sampling_memory(shape, sampler, gpu, sequences, longest)
    # A cache without room is already among the problems. One token keeps the time finite.
    kv_tokens = max(1.0, drawn_with.kv_tokens) if drawn_with else 1.0
    start = speed.start_seconds(bool(training or drawing)) if isinstance(speed, CpuSpeed) else 0.0
    # FLOPs are for the table. The seconds below come from the device model.
    flops = training_flops(training, shape, trainer.gradient_checkpointing) if training else 0.0
    trained = speed.training_seconds(shape, training) if training else 0.0
    drawn, evaluated = 0.0, 0.0
    for part in drawing:
        if part.is_by_trainer:
            engines = together.trainer_ranks // getattr(speed, "gpus_per_replica", 1)
            evaluated += replace(speed, replicas=max(1, engines)).sampling_seconds(shape, part, kv_tokens)
        else:
            drawn += speed.sampling_seconds(shape, part, kv_tokens)
    return StagePlan(
        name=name,
        training=held,
        sampling=drawn_with,
        trained_tokens=training.tokens if training else 0.0,
        drawn_tokens=sum(part.tokens for part in drawing),
        flops=flops + sum(sampling_flops(part, shape) for part in drawing),
        start_seconds=start,
        training_seconds=trained,
        sampling_seconds=drawn + evaluated,
        together_seconds=speed.together_seconds(together, trained + evaluated, drawn) if together else None,
    )


def _measured(lengths: Lengths, metrics: Path, stages: Iterable[GraphStage]) -> Lengths:
    """Returns `lengths` with values from an earlier run's metric files; UserError when these have none.

    Their keys show what a stage did: groups sampled and trained on, responses sampled, or tokens trained on.
    """
    responses, drawn, trained = dict(lengths.responses), dict(lengths.drawn), dict(lengths.trained)
    for stage in stages:
        found = _read(metrics, stage)
        # By the keys and not by the name of the stage, so that a new stage with these metrics is read as well.
        if found.get("rollouts/drawn") and found.get("groups/trained"):
            responses[stage.address] = found["tokens/sampled"] / found["rollouts/drawn"]
            drawn[stage.address] = found["groups/drawn"] / found["groups/trained"]
        elif found.get("tokens/sampled") and found.get("rows/kept"):
            responses[stage.address] = found["tokens/sampled"] / found["rows/kept"]
        elif found.get("tokens/trained"):
            trained[stage.address] = found["tokens/trained"]
    # Without this check an empty folder would pass assumptions off as measurements.
    if (responses, drawn, trained) == (lengths.responses, lengths.drawn, lengths.trained):
        raise UserError(
            f"--measured {metrics} has no metrics of a stage that trained or sampled: name data/metrics of a "
            "finished run"
        )
    sources = {**lengths.sources, "trained": f"measured ({metrics})"}
    if responses != lengths.responses:
        sources["response_share"] = f"measured ({metrics}), assumed elsewhere"
    return replace(lengths, responses=responses, drawn=drawn, trained=trained, sources=sources)


def _read(metrics: Path, stage: GraphStage) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in stage.metrics:
        path = metrics / name.removeprefix("data/metrics/")
        try:
            found |= json.loads(path.read_text()) if path.exists() else {}
        except (ValueError, TypeError) as error:
            raise UserError(f"--measured {metrics}: {path} is no metric file ({error})") from None
    return found


ASSUMED_PROMPTS = {"train": 10_000, "validation": 500, "test": 500}
"""Assumed number of prompts for pictures, where their files do not exist."""
PROBE_SIDE, PROBE_SECONDS = 768, 0.3


def has_only_pictures(root: Path, params: Mapping[str, Any]) -> bool:
    """True for a recipe with picture networks and no language model."""
    stages = [about(stage.name) for stage in stages_of(read_definitions(root / "dvc.yaml"), params)]
    return any(one.networks for one in stages) and not any(one.model for one in stages)


def make_picture_plan(root: Path, recipe: str, params: Mapping[str, Any], question: PlanRequest) -> Plan:
    """Plans such a recipe; UserError for an unknown GPU, and for options that concern language models."""
    _refuse_language_options(question)
    sections, stages = check_values(params, recipe, root), stages_of(read_definitions(root / "dvc.yaml"), params)
    prompts, assumptions = _prompts(stages, sections)
    device, rate, memory = _picture_device(sections, question, assumptions)
    # Here too the torch trainer is one process.
    ranks = 1 if sections["trainer"].kind == "torch" else question.gpus
    planned = []
    for stage in stages:
        # Only stages whose declaration names networks hold any. The others read and write files.
        asked = about(stage.name).networks
        if asked is not None:
            work = asked(sections, stage.address, prompts)
            assumptions += [line for line in work.taken_for_granted if line not in assumptions]
            planned.append(_planned_pictures(stage.address, work, sections, rate, ranks))
    problems = [
        f"{stage.name}: {sum(stage.memory_bytes.values()) / GIB:.1f} GiB without activations, {device} has "
        f"{memory / GIB:.1f}: take a larger GPU"
        for stage in planned
        if sum(stage.memory_bytes.values()) > memory
    ]
    # An hour of this machine costs nothing.
    price = 0.0 if device == "cpu" else PRICE if question.price is None else question.price
    return Plan(Path(recipe).stem, None, device, ranks, price, planned, problems, assumptions)


def _refuse_language_options(question: PlanRequest) -> None:
    asked = {
        "--model": question.model,
        "--config": question.config,
        "--measured": question.measured,
        "--replicas": question.replicas > 1,
        "--prompt-tokens": question.prompt_tokens is not None,
        "--response-share": question.response_share is not None,
        "--drawn": question.drawn_per_trained is not None,
        "--benchmark-problems": question.benchmark_problems is not None,
    }
    if given := [name for name, is_given in asked.items() if is_given]:
        raise UserError(f"{' and '.join(given)}: this recipe has no language model; leave that out")


def _prompts(stages: list[GraphStage], sections: Mapping[str, Any]) -> tuple[Mapping[str, int], list[str]]:
    asked = [about(stage.name).prompts for stage in stages]
    found = next((ask(sections) for ask in asked if ask is not None), {})
    counts = ", ".join(f"{count:,} {split}" for split, count in (found or ASSUMED_PROMPTS).items())
    source = "" if found else " (assumed: their files are not there)"
    return found or ASSUMED_PROMPTS, [f"prompts: {counts}{source}"]


def _picture_device(
    sections: Mapping[str, Any], question: PlanRequest, assumptions: list[str]
) -> tuple[str, float, float]:
    """Returns name, FLOP/s of one device, and bytes of its memory."""
    assumptions += [
        "the backward pass costs twice the forward pass; gradient checkpointing runs the forward pass twice",
        "not counted: activations, process starts, loading, optimizer, decoding, launches between kernels",
    ]
    if question.gpu.lower() == "cpu":
        rate = _cpu_rate()
        assumptions.append(
            f"cpu: {rate / 1e9:.0f} GFLOP/s, measured now with products of large matrices; small networks are "
            "several times slower"
        )
        return "cpu", rate, float(psutil.virtual_memory().total)
    gpu, dtype = find_gpu(question.gpu), sections["trainer"].dtype
    assumptions.append(f"GPU: {question.mfu:.2f} of the peak of {dtype}")
    return gpu.name, gpu.flops(dtype) * question.mfu, gpu.memory_gb * 1e9


def _cpu_rate() -> float:
    # Imported here: `retrace --help` imports this module, and numpy takes a tenth of its time.
    import numpy

    one = numpy.ones((PROBE_SIDE, PROBE_SIDE), dtype=numpy.float32)
    # The first product pays for threads and buffers of the library.
    one @ one
    start, products = time.perf_counter(), 0
    while time.perf_counter() - start < PROBE_SECONDS:
        one @ one
        products += 1
    return products * 2 * PROBE_SIDE**3 / (time.perf_counter() - start)


def _planned_pictures(
    name: str, work: NetworkWork, sections: Mapping[str, Any], rate: float, ranks: int
) -> PictureStage:
    # A backward pass costs two forward passes, and checkpointing adds another forward pass.
    passes = 4 if sections["trainer"].gradient_checkpointing else 3
    flops = work.forward + passes * work.with_gradient
    # Generators and scorers compute in float32, and so do the optimizer's two moments: 4 bytes a number.
    memory = {
        "weights": 4 * (work.trained + work.held),
        "gradients": 4 * work.trained,
        "optimizer": 2 * 4 * work.trained,
    }
    return PictureStage(name, work, flops, memory, flops / (rate * (ranks if work.trained else 1)))
