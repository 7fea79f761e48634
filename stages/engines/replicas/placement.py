"""Where replicas go: what one needs of a node, and whether all of them find room before any is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from platform import node as this_host
from typing import Any

from stages.engines.samplers.build import build_sampler
from stages.engines.samplers.params import (
    SamplerParams,
    TorchSamplerParams,
    VirtualSamplerParams,
    VllmSamplerParams,
)
from stages.engines.samplers.protocol import Sampler
from stages.foundations.errors import UserError

PROCESS_BYTES = 400 << 20
"""A process with torch, transformers and Ray before it holds a policy."""
STORED_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}


@dataclass(frozen=True)
class ReplicaSpec:
    """How each replica of a fleet is made."""

    build: Callable[[], Sampler]
    """Called in the replica's process."""
    run: str | None
    """Whose published weights it pulls; None: it has none to pull."""
    version: int | None = None
    """Of the weights that it is built with; None has it serve nothing before its first pull."""
    cpus: int = 1
    """Ray also makes it the number of OpenMP threads."""
    gpus: float = 0.0
    memory_bytes: int = PROCESS_BYTES

    def actor(self, remote_class: Any) -> Any:
        """The Ray actor class with what one of them needs. Never restarted by Ray: a new one must be a new actor."""
        return remote_class.options(
            num_cpus=self.cpus,
            num_gpus=self.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )


def spec_of(
    params: SamplerParams,
    policy_folder: Path,
    run: str | None,
    gpus: float,
    version: int | None = None,
    may_be_virtual: bool = True,
) -> ReplicaSpec:
    """Replicas of the sampler that `params` describes, with the policy of a folder that every node can read."""
    alone = params.model_copy(update={"replicas": None})
    cpus, memory = 1, PROCESS_BYTES
    match params:
        case TorchSamplerParams(threads=cpus, dtype=dtype):
            memory += _held_bytes(policy_folder, dtype)
        case VllmSamplerParams(tensor_parallel=cpus, dtype=dtype, kv_cache_gib=gib):
            memory += _held_bytes(policy_folder, dtype) + int(gib * (1 << 30))
    memory = PROCESS_BYTES if gpus else memory
    build = partial(_build, alone, policy_folder.absolute(), may_be_virtual)
    return ReplicaSpec(build, run, version, cpus, gpus, memory)


def _held_bytes(policy_folder: Path, dtype: str) -> int:
    """Of a policy and of what is read of it meanwhile. Weights are stored with at least 2 bytes a number."""
    stored = sum(path.stat().st_size for path in policy_folder.glob("*.safetensors"))
    return 2 * stored * STORED_BYTES[dtype] // 2


def _build(params: SamplerParams, policy_folder: Path, may_be_virtual: bool) -> Sampler:
    """In the replica's process, which may be on another node."""
    if not policy_folder.is_dir():
        raise UserError(
            f"{policy_folder} is not on {this_host()}: the project must lie on a file system that all nodes of the "
            "cluster share, under one path"
        )
    return build_sampler(params, policy_folder, may_be_virtual=may_be_virtual)


def gpus_each(params: SamplerParams, count: int, others: int, total: float) -> float:
    """GPUs for one replica of `count`, where `others` processes want one too: whole ones, or one shared by all."""
    if isinstance(params, VirtualSamplerParams) or getattr(params, "device", "") == "cpu":
        return 0.0
    wanted = params.tensor_parallel if isinstance(params, VllmSamplerParams) else 1
    if total >= count * wanted + others:
        return float(wanted)
    if total and wanted > 1:
        raise UserError(
            f"{count} replicas of {wanted} GPUs and {others} more processes do not fit {total:.0f} GPUs: lower "
            "sampler.replicas.count or sampler.tensor_parallel"
        )
    return total / (count + others)


def check_room(spec: ReplicaSpec, count: int, nodes: Sequence[Mapping[str, Any]]) -> None:
    """UserError when `count` replicas do not fit the nodes (as `ray.nodes()` describes them)."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    memory = [resources.get("memory", 0.0) for resources in alive]  # what was free when Ray started there
    fitting = sum(int(free // spec.memory_bytes) for free in memory)
    if fitting < count:
        raise UserError(
            f"{count} replicas do not fit: each needs about {spec.memory_bytes / (1 << 30):.1f} GiB of memory, and "
            f"{'the nodes have' if len(alive) > 1 else 'this machine has'} {sum(memory) / (1 << 30):.1f} GiB: lower "
            f"sampler.replicas.count to {fitting}" + (", or take a larger machine" if not fitting else "")
        )
    cpus = sum(int(resources.get("CPU", 0) // spec.cpus) for resources in alive)
    if cpus < count:
        raise UserError(
            f"{count} replicas of {spec.cpus} CPUs do not fit the cluster, which has room for {cpus}: lower "
            "sampler.replicas.count or sampler.threads, or add nodes"
        )
