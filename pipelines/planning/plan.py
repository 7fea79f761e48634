"""Puts a plan together: the recipe's stages, what each holds and does, how long that takes and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pipelines.graph.recipes import recipe_names
from pipelines.graph.schema import check_params
from pipelines.planning.cpu_time import CpuSpeed
from pipelines.planning.devices import Gpu, find_gpu
from pipelines.planning.gpu_time import BANDWIDTH_SHARE, MFU, GpuSpeed
from pipelines.planning.lengths import Lengths, assumed, measured, with_untrained
from pipelines.planning.memory import (
    SamplingMemory,
    TrainingMemory,
    misfits,
    sampling_memory,
    training_memory,
)
from pipelines.planning.shapes import Shape, named_shape, read_config, shape_of
from pipelines.planning.work import StageWork, work_of
from stages.foundations.errors import UserError

SMALL_POLICY, MOST_LANES = 8_000_000, 4
"""As stages/engines/samplers/torch_sampler.py: up to this size a batch is decoded on each thread."""
PRICE = 2.0
"""Assumed for an hour of any GPU, in any currency: give your own."""


@dataclass(frozen=True)
class Question:
    """What the user asks. None takes the recipe's value or the stated default."""

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
    """One stage: what a GPU holds, what is done, how long it takes."""

    name: str
    training: TrainingMemory | None
    sampling: SamplingMemory | None
    trained_tokens: float
    drawn_tokens: float
    flops: float
    start_seconds: float
    training_seconds: float
    sampling_seconds: float

    @property
    def seconds(self) -> float:
        return self.start_seconds + self.training_seconds + self.sampling_seconds


@dataclass(frozen=True)
class Plan:
    """All stages of a recipe on one kind of device."""

    recipe: str
    shape: Shape
    device: str
    gpus: int
    price: float
    stages: list[StagePlan]
    problems: list[str]
    assumptions: list[str] = field(default_factory=list)

    @property
    def hours(self) -> float:
        return sum(stage.seconds for stage in self.stages) / 3600

    @property
    def cost(self) -> float:
        """All GPUs are paid for all the time, those that wait too."""
        return self.hours * self.gpus * self.price


def make_plan(root: Path, recipe: str, question: Question, probe: Any = None) -> Plan:
    """Plans the recipe `recipe` (a name, or a parameter file). UserError for what cannot be known or is not there.

    On `cpu` this machine is measured, unless `probe` holds an earlier `CpuProbe`.
    """
    path = (
        Path(recipe)
        if recipe.endswith((".yaml", ".yml"))
        else root / "pipelines" / "recipes" / f"{recipe}.yaml"
    )
    if not path.exists():
        raise UserError(
            f"no recipe {recipe!r}: there are {', '.join(recipe_names(root))}, or name a parameter file"
        )
    sections = check_params(path)
    shape = _shape(sections, question, root)
    lengths = _lengths(sections, shape, question)
    problems = _benchmark_problems(sections, question)
    work = work_of(sections, lengths, {"benchmark": problems})
    assumptions = _told_lengths(lengths, sections)
    if problems is None:
        assumptions.append(
            "respond: nobody knows how many benchmark problems there will be (give --benchmark-problems); not counted"
        )
    if question.gpu.lower() == "cpu":
        speed, gpu = _cpu(sections, shape, lengths, work, probe, assumptions), _this_machine()
        count, price = 1, 0.0
    else:
        speed, gpu = _gpus(sections, question, assumptions), find_gpu(question.gpu)
        count, price = question.gpus, PRICE if question.price is None else question.price
        assumptions.append(
            f"price: {price:g} a GPU-hour" + ("" if question.price is not None else " (assumed)")
        )
    plans = [_planned(item, sections, shape, gpu, speed, question) for item in work]
    found = [
        sentence
        for item, plan in zip(work, plans, strict=True)
        for sentence in _misfits(item, plan, sections, shape, gpu, question)
    ]
    return Plan(path.stem, shape, gpu.name, count, price, plans, list(dict.fromkeys(found)), assumptions)


def _shape(sections: Mapping[str, Any], question: Question, root: Path) -> Shape:
    if question.config:
        return read_config(Path(question.config))
    return named_shape(question.model) if question.model else shape_of(sections["base"], root)


def _lengths(sections: Mapping[str, Any], shape: Shape, question: Question) -> Lengths:
    context = getattr(sections["sampler"], "max_model_tokens", 0) or shape.max_positions
    lengths = assumed(context, question.prompt_tokens, question.response_share, question.drawn_per_trained)
    if shape.is_untrained and "base" in sections["policies"]:
        most = {"respond@base": sections["respond"].max_response_tokens}
        lengths = with_untrained(lengths, shape.vocabulary, most)
    if question.measured:
        folder = Path(question.measured)
        if not folder.is_dir():
            raise UserError(f"--measured {folder} is no folder: name data/metrics of a finished run")
        sft = sections["sft"]
        lengths = measured(lengths, folder, sft.steps * sft.batch_demonstrations)
    return lengths


def _benchmark_problems(sections: Mapping[str, Any], question: Question) -> float | None:
    if question.benchmark_problems is not None:
        return question.benchmark_problems
    most, total = sections["respond"].max_problems, 0
    for source in sections["sources"].values():
        if source.role == "benchmark":
            rows = getattr(source.origin, "rows", None) or getattr(source.origin, "max_rows", None)
            if rows is None and most is None:
                return None
            total += min(number for number in (rows, most) if number is not None)
    return total


def _told_lengths(lengths: Lengths, sections: Mapping[str, Any]) -> list[str]:
    sources = lengths.sources
    told = [
        f"prompt: {lengths.prompt:.0f} tokens ({sources['prompt']})",
        f"response: {lengths.response_share:.2f} of the longest ({sources['response_share']})",
    ]
    if lengths.demonstration:
        told.append(f"demonstration: {lengths.demonstration:.0f} tokens ({sources['demonstration']})")
    if sections["rl"].dynamic_sampling.kind == "dynamic":
        told.append(
            f"dynamic sampling: {lengths.drawn_per_trained:.1f} groups drawn for one trained on "
            + ("(measured for each round)" if lengths.drawn else f"({sources['drawn_per_trained']})")
        )
    return told


def _this_machine() -> Gpu:
    return Gpu("cpu", psutil.virtual_memory().total / 1e9, 0.0, 0.0, 0.0)


def _cpu(
    sections: Mapping[str, Any],
    shape: Shape,
    lengths: Lengths,
    work: list[StageWork],
    probe: Any,
    told: list[str],
) -> CpuSpeed:
    from pipelines.planning.probe import ProbeSettings, probe_cpu

    sampler, trainer, sft, rl = (sections[name] for name in ("sampler", "trainer", "sft", "rl"))
    threads = getattr(sampler, "threads", trainer.threads)
    is_small = shape.parameters <= SMALL_POLICY and sampler.kind == "torch"
    lanes = min(threads, MOST_LANES) if is_small else 1
    if probe is None:
        context = lengths.prompt + lengths.response_share * rl.max_response_tokens
        kinds = frozenset(item.training.kind for item in work if item.training)
        settings = ProbeSettings(
            trainer.dtype,
            trainer.threads,
            trainer.micro_batch_tokens,
            sft.max_sequence_tokens,
            max(1, int(context)),
            kinds,
            lanes,
        )
        probe = probe_cpu(shape, settings)
    told.append(
        f"cpu: measured in {probe.seconds:.0f} s, {probe.free_share:.0%} of one core got"
        + (
            "; the machine is busy, so threads and lanes beyond one are taken to gain nothing"
            if probe.is_busy
            else ""
        )
    )
    told.append(
        "tables and text (collect to demonstrate, grade, report): only the start of their processes is counted"
    )
    if sampler.kind == "vllm":
        told.append(
            "sampler vllm on a CPU: planned as if the probe's products were its own; its start is not counted"
        )
    return CpuSpeed(probe, lanes, sampler.max_sequences, trainer.gradient_checkpointing)


def _gpus(sections: Mapping[str, Any], question: Question, told: list[str]) -> GpuSpeed:
    sampler, trainer = sections["sampler"], sections["trainer"]
    ranks = 1 if trainer.kind == "torch" else question.gpus
    parallel = getattr(sampler, "tensor_parallel", 1)
    if question.replicas * parallel > question.gpus:
        raise UserError(
            f"{question.replicas} replicas over {parallel} GPUs each need more than --gpus {question.gpus}: "
            "lower --replicas or sampler.tensor_parallel"
        )
    told += [
        f"training: {ranks} GPU(s) at {question.mfu:.2f} of the peak; sampling: {question.replicas} replica(s) over "
        f"{parallel} GPU(s), at {question.bandwidth_share:.2f} of the bandwidth",
        "not counted: process starts, loading, verifying, saving; below a billion parameters, launches between kernels",
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
    item: StageWork,
    sections: Mapping[str, Any],
    shape: Shape,
    gpu: Gpu,
    speed: GpuSpeed | CpuSpeed,
    question: Question,
) -> StagePlan:
    trainer, sampler = sections["trainer"], sections["sampler"]
    training, drawing = item.training, item.sampling
    held = drawn_with = None
    if training:
        has_reference = item.name.startswith("rl_round") and sections["rl"].reference_kl.kind != "none"
        ranks = 1 if trainer.kind == "torch" else question.gpus
        held = training_memory(shape, trainer, training.kind, ranks, training.longest, has_reference)
    if drawing:
        sequences = max(part.prompts * part.samples for part in drawing) / question.replicas
        longest = max(part.prompt_tokens + part.lengths.most for part in drawing)
        drawn_with = sampling_memory(shape, sampler, gpu, sequences, longest)
    kv_tokens = max(1.0, drawn_with.kv_tokens) if drawn_with else 1.0
    start = speed.start_seconds(bool(training or drawing)) if isinstance(speed, CpuSpeed) else 0.0
    flops = training.flops(shape, trainer.gradient_checkpointing) if training else 0.0
    return StagePlan(
        name=item.name,
        training=held,
        sampling=drawn_with,
        trained_tokens=training.tokens if training else 0.0,
        drawn_tokens=sum(part.tokens for part in drawing),
        flops=flops + sum(part.flops(shape) for part in drawing),
        start_seconds=start,
        training_seconds=speed.training_seconds(shape, training) + speed.update_seconds(shape, training)
        if training
        else 0.0,
        sampling_seconds=sum(speed.sampling_seconds(shape, part, kv_tokens) for part in drawing),
    )


def _misfits(
    item: StageWork, plan: StagePlan, sections: Mapping[str, Any], shape: Shape, gpu: Gpu, question: Question
) -> list[str]:
    longest = max((part.prompt_tokens + part.lengths.most for part in item.sampling), default=0.0)
    found = (
        list(
            misfits(
                item.name,
                gpu,
                sections["trainer"],
                sections["sampler"],
                plan.training,
                plan.sampling,
                longest,
                True,
            )
        )
        if gpu.name != "cpu"
        else []
    )
    if gpu.name == "cpu":
        total = sum(part.total for part in (plan.training, plan.sampling) if part)
        if total > gpu.memory_gb * 1e9:
            found.append(f"{item.name}: needs {total / 1e9:.1f} GB and this machine has {gpu.memory_gb:.1f}")
    if item.training and question.gpus > 1 and sections["trainer"].kind == "torch":
        found.append(
            f"{item.name}: trainer.kind torch uses one GPU of {question.gpus}: set trainer.kind deepspeed and "
            "launch.train torchrun"
        )
    if shape.max_positions and longest > shape.max_positions:
        found.append(
            f"{item.name}: a prompt and its longest response take {longest:,.0f} tokens, more than the policy's "
            f"{shape.max_positions:,} positions: lower max_response_tokens"
        )
    return found
