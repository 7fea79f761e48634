"""What of a planned stage does not fit its devices, each with what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.planning.devices import Gpu
from pipelines.planning.memory import SamplingMemory, TrainingMemory, misfits
from pipelines.planning.shapes import Shape
from stages.foundations.planned_work import SideBySide, Work


def problems_of(
    name: str,
    item: Work,
    training: TrainingMemory | None,
    sampling: SamplingMemory | None,
    sections: Mapping[str, Any],
    shape: Shape,
    gpu: Gpu,
    gpus: int,
    is_split: bool,
) -> list[str]:
    """Sentences on a stage that does not fit; `is_split`: a stage of the recipe draws and trains side by side."""
    longest = max((part.prompt_tokens + part.lengths.most for part in item.sampling), default=0.0)
    found = (
        list(
            misfits(
                name,
                gpu,
                sections["trainer"],
                sections["sampler"],
                training,
                sampling,
                longest,
                item.side_by_side is None,
            )
        )
        if gpu.name != "cpu"
        else []
    )
    if gpu.name != "cpu" and item.side_by_side:
        found += _too_few_gpus(name, item.side_by_side, sections["sampler"], gpus)
    if gpu.name == "cpu":
        copies = item.side_by_side.replicas if item.side_by_side else 1
        total = (training.total if training else 0.0) + (sampling.total * copies if sampling else 0.0)
        if total > gpu.memory_gb * 1e9:
            found.append(f"{name}: needs {total / 1e9:.1f} GB and this machine has {gpu.memory_gb:.1f}")
    if item.training and gpus > 1 and not is_split and sections["trainer"].kind == "torch":
        found.append(
            f"{name}: trainer.kind torch uses one GPU of {gpus}: set trainer.kind deepspeed and "
            "launch.command.kind torchrun"
        )
    if shape.max_positions and longest > shape.max_positions:
        found.append(
            f"{name}: a prompt and its longest response take {longest:,.0f} tokens, more than the policy's "
            f"{shape.max_positions:,} positions: lower max_response_tokens"
        )
    return found


def _too_few_gpus(name: str, own: SideBySide, sampler: Any, gpus: int) -> list[str]:
    parallel = getattr(sampler, "tensor_parallel", 1)
    needed = own.replicas * parallel + own.trainer_ranks
    if needed <= gpus:
        return []
    return [
        f"{name}: {own.replicas} replica(s) over {parallel} GPU(s) each and {own.trainer_ranks} trainer rank(s) work "
        f"side by side on {needed} GPUs, and --gpus is {gpus}: raise it, or lower sampler.replicas.count, "
        "sampler.tensor_parallel or rl.loop.trainer_ranks"
    ]
