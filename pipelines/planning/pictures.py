"""The plan of a recipe without a language model: networks that read and draw pictures. Formulas: docs/planning.md."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import psutil

from pipelines.graph.schema import check_values
from pipelines.planning.plan import PRICE, Question
from pipelines.planning.sizes import GIB, find_gpu
from stages.foundations.errors import UserError
from stages.foundations.planned_work import NetworkWork
from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of

ASSUMED_PROMPTS = {"train": 10_000, "validation": 500, "test": 500}
"""Where the files of prompts are not there."""
NUMBER_BYTES = 4
"""Generators and scorers compute in float32, and so do the optimizer's two moments."""
PROBE_SIDE, PROBE_SECONDS = 768, 0.3


@dataclass(frozen=True)
class PictureStage:
    """One stage with networks."""

    name: str
    work: NetworkWork
    flops: float
    memory_bytes: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class PicturePlan:
    """The stages with networks of a recipe on one kind of device."""

    recipe: str
    device: str
    gpus: int
    price: float
    stages: list[PictureStage]
    problems: list[str]
    assumptions: list[str]

    @property
    def hours(self) -> float:
        return sum(stage.seconds for stage in self.stages) / 3600

    @property
    def cost(self) -> float:
        return self.hours * self.gpus * self.price


def has_only_pictures(root: Path, params: Mapping[str, Any]) -> bool:
    """Whether the recipe has networks of pictures and no language model."""
    told = [about(stage.name) for stage in _stages(root, params)]
    return any(one.networks for one in told) and not any(one.model for one in told)


def make_picture_plan(root: Path, recipe: str, params: Mapping[str, Any], question: Question) -> PicturePlan:
    """Plans such a recipe; UserError for an unknown GPU, and for options that are about language models."""
    _refuse(question)
    sections, stages = check_values(params, recipe, root), _stages(root, params)
    prompts, assumptions = _prompts(stages, sections)
    device, rate, memory = _device(sections, question, assumptions)
    ranks = 1 if sections["trainer"].kind == "torch" else question.gpus
    planned = []
    for stage in stages:
        asked = about(stage.name).networks
        if asked is not None:
            work = asked(sections, stage.address, prompts)
            assumptions += [line for line in work.taken_for_granted if line not in assumptions]
            planned.append(_planned(stage, work, sections, rate, ranks))
    problems = [
        f"{stage.name}: {sum(stage.memory_bytes.values()) / GIB:.1f} GiB without activations, {device} has "
        f"{memory / GIB:.1f}: take a larger GPU"
        for stage in planned
        if sum(stage.memory_bytes.values()) > memory
    ]
    price = 0.0 if device == "cpu" else PRICE if question.price is None else question.price
    return PicturePlan(Path(recipe).stem, device, ranks, price, planned, problems, assumptions)


def picture_dict(made: PicturePlan) -> dict[str, Any]:
    """The plan in plain numbers: parameters, bytes, FLOPs, seconds."""
    return {
        "recipe": made.recipe,
        "device": made.device,
        "gpus": made.gpus,
        "hours": made.hours,
        "cost": made.cost,
        "stages": [
            {
                "name": stage.name,
                "trained_parameters": stage.work.trained,
                "held_parameters": stage.work.held,
                "memory_bytes": stage.memory_bytes,
                "flops": stage.flops,
                "seconds": stage.seconds,
            }
            for stage in made.stages
        ],
        "problems": made.problems,
        "assumptions": made.assumptions,
    }


def picture_lines(made: PicturePlan) -> list[str]:
    """A table for people."""
    heads = ["stage", "trained", "held", "weights", "gradients", "optimizer", "FLOPs", "time"]
    rows = [
        [
            stage.name,
            *(f"{count / 1e6:,.1f}M" if count else "" for count in (stage.work.trained, stage.work.held)),
            *(f"{value / 1e9:.2f}" if value else "" for value in stage.memory_bytes.values()),
            f"{stage.flops:.1e}",
            _time(stage.seconds),
        ]
        for stage in made.stages
    ]
    rows.append(["in all, at least", *[""] * 6, _time(made.hours * 3600)])
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    table = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [heads, *rows]
    ]
    lines = [f"{made.recipe} on {made.gpus} x {made.device}; memory in GB a device", "", *table]
    if made.price:
        devices = f"{made.gpus} GPU{'s' if made.gpus > 1 else ''}"
        lines += ["", f"at least {made.hours:,.1f} hours x {devices} x {made.price:g} = {made.cost:,.0f}"]
    lines += ["", "Taken for granted:", *(f"  {text}" for text in made.assumptions)]
    return lines + (["", "Will not fit:", *(f"  {text}" for text in made.problems)] if made.problems else [])


def _stages(root: Path, params: Mapping[str, Any]) -> list[GraphStage]:
    return stages_of(read_definitions(root / "dvc.yaml"), params)


def _refuse(question: Question) -> None:
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
    told = ", ".join(f"{count:,} {split}" for split, count in (found or ASSUMED_PROMPTS).items())
    source = "" if found else " (assumed: their files are not there)"
    return found or ASSUMED_PROMPTS, [f"prompts: {told}{source}"]


def _device(sections: Mapping[str, Any], question: Question, told: list[str]) -> tuple[str, float, float]:
    """Name, FLOPs a second of one device, and bytes of its memory."""
    told += [
        "the way back costs twice the way there; with gradient checkpointing the way there is gone twice",
        "not counted: activations, process starts, loading, optimizer, decoding, launches between kernels",
    ]
    if question.gpu.lower() == "cpu":
        rate = _cpu_rate()
        told.append(
            f"cpu: {rate / 1e9:.0f} GFLOP/s, measured now with products of large matrices; small networks are "
            "several times slower"
        )
        return "cpu", rate, float(psutil.virtual_memory().total)
    gpu, dtype = find_gpu(question.gpu), sections["trainer"].dtype
    told.append(f"GPU: {question.mfu:.2f} of the peak of {dtype}")
    return gpu.name, gpu.flops(dtype) * question.mfu, gpu.memory_gb * 1e9


def _cpu_rate() -> float:
    one = numpy.ones((PROBE_SIDE, PROBE_SIDE), dtype=numpy.float32)
    one @ one
    start, products = time.perf_counter(), 0
    while time.perf_counter() - start < PROBE_SECONDS:
        one @ one
        products += 1
    return products * 2 * PROBE_SIDE**3 / (time.perf_counter() - start)


def _planned(
    stage: GraphStage, work: NetworkWork, sections: Mapping[str, Any], rate: float, ranks: int
) -> PictureStage:
    passes = 4 if sections["trainer"].gradient_checkpointing else 3
    flops = work.forward + passes * work.with_gradient
    memory = {
        "weights": NUMBER_BYTES * (work.trained + work.held),
        "gradients": NUMBER_BYTES * work.trained,
        "optimizer": 2 * NUMBER_BYTES * work.trained,
    }
    return PictureStage(stage.address, work, flops, memory, flops / (rate * (ranks if work.trained else 1)))


def _time(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else f"{seconds:.1f} s"
