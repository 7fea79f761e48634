"""How many runs of an ablation fit side by side: small policies leave most of a card, or of a machine, unused."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from pipelines.planning.memory import CONTEXT_BYTES
from pipelines.planning.plan import Question, StagePlan, make_plan
from stages.foundations.errors import UserError

MIB, GIB = 2**20, 2**30
HOST_BYTES = 2.0 * GIB
"""Of a stage's process with torch's libraries, beside what it computes with; an assumption, generous on a CPU."""
FREE_SHARE = 0.9
"""Of the free memory; the rest is for what a plan does not see."""
ANY_GPU = "H100"
"""A plan wants a device; only bytes are read off it, and what a policy holds is the same on each."""


@dataclass(frozen=True)
class Machine:
    """What runs share."""

    cores: int
    free_bytes: float
    gpu_free_bytes: Mapping[str, float]
    """By the GPU's number; empty without one."""


def this_machine(gpus: Iterable[str]) -> Machine:
    """Free memory now, of the machine and of these GPUs. UserError when nvidia-smi does not say."""
    free = {gpu: _gpu_free_bytes(gpu) for gpu in gpus}
    return Machine(len(os.sched_getaffinity(0)), psutil.virtual_memory().available, free)


def jobs_that_fit(root: Path, params: Iterable[Mapping[str, Any]], machine: Machine) -> tuple[int, str]:
    """Runs at once by memory and cores, at least 1, and the reason in words.

    `params`: those of every run; the largest decides. A run computes on `threads` cores, on a GPU it wants one to
    feed it. vLLM takes its share of a card whatever the policy needs: lower `sampler.memory_fraction` to pack more.
    """
    every = list(params)
    on_gpu = bool(machine.gpu_free_bytes)
    bytes_each = max(_bytes_of(root, one, machine) for one in _distinct(every))
    threads = 1 if on_gpu else max(_threads(one) for one in every)
    host_each = HOST_BYTES + (0 if on_gpu else bytes_each)
    limits = [
        (machine.cores // threads, f"{machine.cores} cores, {threads} for a run"),
        (
            int(FREE_SHARE * machine.free_bytes / host_each),
            f"{machine.free_bytes / 1e9:.0f} GB of memory are free, {host_each / 1e9:.1f} for a run",
        ),
    ]
    if on_gpu:
        free = list(machine.gpu_free_bytes.values())
        limits.append(
            (
                sum(int(FREE_SHARE * one / bytes_each) for one in free),
                f"{sum(free) / 1e9:.0f} GB on {len(free)} GPUs are free, {bytes_each / 1e9:.1f} for a run",
            )
        )
    if on_gpu and not all(map(wants_one_gpu, every)):
        limits.append((1, "a run takes several GPUs"))
    count, reason = min(limits)
    return max(1, count), reason


def wants_one_gpu(params: Mapping[str, Any]) -> bool:
    """False where ranks, a wide sampler or replicas take more; such a run has to see all GPUs of the machine."""
    sampler = params["sampler"]
    replicas = (sampler.get("replicas") or {}).get("count", 1)
    is_split = params.get("rl", {}).get("loop", {}).get("kind") == "asynchronous"
    ranks = params.get("launch", {}).get("gpus_per_node", 1)
    return max(ranks, replicas, sampler.get("tensor_parallel", 1)) == 1 and not is_split


def _distinct(every: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs that differ in the seed alone need the same."""
    return list({yaml.safe_dump({**one, "seed": 0}): one for one in every}.values())


def _bytes_of(root: Path, params: Mapping[str, Any], machine: Machine) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "params.yaml"
        file.write_text(yaml.safe_dump(dict(params)))
        stages = make_plan(root, str(file), Question(gpu=ANY_GPU)).stages
    sampler = params["sampler"]
    card = max(machine.gpu_free_bytes.values(), default=0.0)
    share = card * sampler["memory_fraction"] if sampler["kind"] == "vllm" else None
    return max(_held(stage, share) for stage in stages) + (CONTEXT_BYTES if machine.gpu_free_bytes else 0.0)


def _held(stage: StagePlan, vllm_bytes: float | None) -> float:
    """What trainer and sampler hold at once; contexts are counted once a process, and a CPU has none."""
    held = stage.training.total if stage.training else 0.0
    if stage.sampling is None:
        return held
    drawn_with = stage.sampling.weights + max(0.0, stage.sampling.kv_cache)
    return held + (drawn_with if vllm_bytes is None else vllm_bytes)


def _threads(params: Mapping[str, Any]) -> int:
    return max(params[section].get("threads", 1) for section in ("sampler", "trainer"))


def _gpu_free_bytes(gpu: str) -> float:
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return float(done.stdout) * MIB
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserError(
            f"--jobs auto: nvidia-smi does not say how much of GPU {gpu} is free ({error}): give a number of jobs"
        ) from error
