"""Builds a plan: the recipe's stages, the memory and work of each, their time, and what does not fit.

Only recipes with a language model are planned. Lengths of prompts and responses are assumed, given, or read from an
earlier run's metric files. Times on GPUs are computed; on a CPU they are those of earlier runs of the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from pipelines.graph.console import known_seconds
from pipelines.graph.recipes import read_recipe, recipe_names
from pipelines.graph.schema import check_values
from pipelines.output import there_are
from pipelines.planning.memory import SamplingMemory, TrainingMemory, problems_of, sampling_memory, training_memory
from pipelines.planning.sizes import Gpu, Shape, find_gpu, named_shape, read_config, shape_of
from pipelines.planning.timing import BANDWIDTH_SHARE, MFU, GpuSpeed, sampling_flops, training_flops
from pipelines.planning.work import WITHOUT_WORK, WORK, Lengths, Work
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of

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
    training_seconds: float
    sampling_seconds: float
    seconds: float | None
    """None on a CPU where the stage has never run."""


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
    not_counted: list[str] = field(default_factory=list)
    """Parts that `hours` and `cost` leave out, because they are not known or not modelled."""

    @property
    def hours(self) -> float:
        """A lower bound."""
        return sum(stage.seconds or 0.0 for stage in self.stages) / 3600

    @property
    def cost(self) -> float:
        """All GPUs are paid for all the time, including idle ones."""
        return self.hours * self.gpus * self.price


def make_plan(root: Path, recipe: str, question: PlanRequest) -> Plan:
    """Plans `recipe` (a name, or a parameter file). UserError for unknown or missing values."""
    params = _recipe_params(root, recipe)
    name = Path(recipe).name.removesuffix(".yaml")
    sections = {"trainer": IDLE_TRAINER, "sampler": IDLE_SAMPLER} | check_values(params, recipe)
    stages = [stage for stage in stages_of(read_definitions(root / "dvc.yaml"), params) if stage.reads]
    base = next((stage for stage in stages if stage.name == "base"), None)
    if base is None:
        raise UserError("no stage of this recipe trains or samples a language model, and only those are planned")
    if question.config:
        shape = read_config(Path(question.config))
    else:
        shape = named_shape(question.model) if question.model else shape_of(sections["base"], root)
    lengths = _lengths(stages, sections, shape, question)
    work = {stage.address: _work_of(stage, sections, lengths) for stage in stages}
    # The loop that samples and trains side by side starts its ranks itself; other stages then have one.
    is_split = any(own.side_by_side for own in work.values())
    ranks = 1 if sections["trainer"].kind == "torch" or is_split else question.gpus
    assumptions = [
        f"prompt: {lengths.prompt:.0f} tokens ({lengths.sources['prompt']})",
        f"response: {lengths.response_share:.2f} of the longest ({lengths.sources['response_share']})",
    ]
    assumptions += dict.fromkeys(line for own in work.values() for line in own.taken_for_granted)
    not_counted = _unknown_work(work)
    if question.gpu.lower() == "cpu":
        speed, measured = None, known_seconds(root, name)
        gpu = Gpu("cpu", psutil.virtual_memory().total / 1e9, 0.0, 0.0, 0.0)
        assumptions.append("cpu: each time is that of the stage's last run here, or else of the recipe's measured run")
        if unknown := [address for address in work if address not in measured]:
            not_counted.append(f"{', '.join(unknown)}: no run of this recipe has measured the time on a CPU")
        # This machine is available anyway: an hour of it costs nothing.
        count, price = 1, 0.0
    else:
        speed, gpu = _gpus(sections, question, ranks, is_split, assumptions), find_gpu(question.gpu)
        measured = {}
        not_counted.append("table stages, process starts, loading, verifying, saving")
        if shape.parameters < 1e9:
            not_counted.append("launches between kernels, which dominate below a billion parameters")
        count, price = question.gpus, PRICE if question.price is None else question.price
        assumptions.append(f"price: {price:g} a GPU-hour" + ("" if question.price is not None else " (assumed)"))
    plans = [
        _planned(address, own, sections, shape, gpu, speed, question, ranks, measured.get(address))
        for address, own in work.items()
    ]
    found = [
        sentence
        for plan in plans
        for sentence in problems_of(
            plan.name, work[plan.name], plan.training, plan.sampling, sections, shape, gpu, question.gpus, is_split
        )
    ]
    return Plan(name, shape, gpu.name, count, price, plans, list(dict.fromkeys(found)), assumptions, not_counted)


def _recipe_params(root: Path, recipe: str) -> Mapping[str, Any]:
    if recipe.endswith((".yaml", ".yml")):
        return read_yaml(Path(recipe))
    if recipe not in recipe_names(root):
        raise UserError(f"no recipe {recipe!r}: {there_are(recipe, recipe_names(root))}, or name a parameter file")
    return read_recipe(root, recipe)


def _work_of(stage: GraphStage, sections: Mapping[str, Any], lengths: Lengths) -> Work:
    if stage.name in WORK:
        return WORK[stage.name](sections, stage.address, lengths)
    # A stage that a user added is in no table.
    unknown = "work that pipelines/planning/work.py does not count"
    return Work(not_counted=() if stage.name in WITHOUT_WORK else (unknown,))


def _lengths(stages: list[GraphStage], sections: Mapping[str, Any], shape: Shape, question: PlanRequest) -> Lengths:
    """Returns the stated defaults, replaced by values of the user or an earlier run."""
    # The limit of vLLM is lower than the positions of the policy.
    context = getattr(sections["sampler"], "max_model_tokens", 0) or shape.max_positions
    prompt = min(PROMPT_SHARE * context, LONGEST_ASSUMED_PROMPT) if context else LONGEST_ASSUMED_PROMPT
    known = {
        "prompt": (question.prompt_tokens, prompt),
        "response_share": (question.response_share, RESPONSE_SHARE),
        "drawn_per_trained": (question.drawn_per_trained, DRAWN_PER_TRAINED),
    }
    lengths = Lengths(
        **{name: assumed if said is None else said for name, (said, assumed) in known.items()},
        # Random weights end a response with chance 1 / vocabulary per token, so nearly all reach the length limit.
        untrained={"base": 1 / shape.vocabulary} if shape.is_untrained else {},
        benchmark_problems=question.benchmark_problems,
        sources={name: "assumed" if said is None else "given" for name, (said, _) in known.items()},
    )
    if not question.measured:
        return lengths
    folder = Path(question.measured)
    if not folder.is_dir():
        raise UserError(f"--measured {folder} is no folder: name data/metrics of a finished run")
    return _measured(lengths, folder, stages)


def _unknown_work(work: Mapping[str, Work]) -> list[str]:
    """Returns each kind of work of unknown size, with the stages that have it."""
    stages: dict[str, list[str]] = {}
    for name, own in work.items():
        for line in own.not_counted:
            stages.setdefault(line, []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in stages.items()]


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
    speed: GpuSpeed | None,
    question: PlanRequest,
    ranks: int,
    measured: float | None,
) -> StagePlan:
    """`speed` computes times on GPUs; without it the time is the `measured` one."""
    trainer, sampler = sections.get("trainer"), sections.get("sampler")
    training, drawing, together = item.training, item.sampling, item.side_by_side
    replicas = together.replicas if together else question.replicas
    if speed:
        speed = speed.split(together)
        if not together:  # every rank samples with its own engine
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
    # FLOPs are for the table. The seconds below come from the device model.
    flops = training_flops(training, shape, trainer.gradient_checkpointing) if training else 0.0
    trained = drawn = 0.0
    seconds = measured
    if speed:
        trained = speed.training_seconds(shape, training) if training else 0.0
        evaluated = 0.0
        for part in drawing:
            if part.is_by_trainer:
                engines = together.trainer_ranks // speed.gpus_per_replica
                evaluated += replace(speed, replicas=max(1, engines)).sampling_seconds(shape, part, kv_tokens)
            else:
                drawn += speed.sampling_seconds(shape, part, kv_tokens)
        seconds = together.seconds(trained + evaluated, drawn) if together else trained + drawn
        drawn += evaluated
    return StagePlan(
        name=name,
        training=held,
        sampling=drawn_with,
        trained_tokens=training.tokens if training else 0.0,
        drawn_tokens=sum(part.tokens for part in drawing),
        flops=flops + sum(sampling_flops(part, shape) for part in drawing),
        training_seconds=trained,
        sampling_seconds=drawn,
        seconds=seconds,
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
