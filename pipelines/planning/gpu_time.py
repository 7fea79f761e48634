"""Seconds on GPUs: products at a share of the peak, decoding at a share of the memory's bandwidth.

Training at a share of peak FLOP/s (MFU, Chowdhery et al., arXiv 2204.02311, appendix B). Decoding by the roofline
(Pope et al., arXiv 2211.05102, section 2): a step reads all weights and all keys and values once and multiplies, and
takes the longer of the two. Not counted: launches and Python between kernels, which rule below about a billion
parameters; communication beyond what the share of the peak holds; the optimizer's own arithmetic; saving weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pipelines.planning.devices import NUMBER_BYTES, Gpu
from pipelines.planning.shapes import Shape
from pipelines.planning.work import layer_flops, token_flops, training_flops
from stages.foundations.planned_work import Sampling, SideBySide, Training

MFU = 0.4
"""Share of the peak in training: 38 to 43% in bfloat16 on 8,192 to 16,384 H100 (Llama 3, arXiv 2407.21783, table 4)."""
BANDWIDTH_SHARE = 0.6
"""Share of the bandwidth that decoding reaches; an assumption without a source."""
STEPS = 200
"""Points at which the emptying of a batch is looked at."""


@dataclass(frozen=True)
class GpuSpeed:
    """A number of equal GPUs, some of them in replicas of the sampler."""

    gpu: Gpu
    training_gpus: int
    replicas: int
    gpus_per_replica: int
    trainer_dtype: str
    sampler_dtype: str
    is_checkpointed: bool
    max_sequences: int
    mfu: float = MFU
    bandwidth_share: float = BANDWIDTH_SHARE

    def split(self, own: SideBySide | None) -> GpuSpeed:
        """The GPUs of a stage that draws and trains side by side."""
        return replace(self, training_gpus=own.trainer_ranks, replicas=own.replicas) if own else self

    def together_seconds(self, own: SideBySide, training: float, sampling: float) -> float:
        return own.seconds(training, sampling)

    def training_seconds(self, shape: Shape, work: Training) -> float:
        peak = self.gpu.flops(self.trainer_dtype) * self.training_gpus * self.mfu
        return training_flops(work, shape, self.is_checkpointed) / peak

    def update_seconds(self, shape: Shape, work: Training) -> float:
        """The optimizer reads and writes its state once: negligible beside the passes, and not counted."""
        return 0.0

    def step_seconds(self, shape: Shape, sequences: float, context: float) -> float:
        """One token for each of `sequences` in one replica, each attending over `context` tokens."""
        width = NUMBER_BYTES[self.sampler_dtype]
        read = shape.multiplied * width + sequences * context * shape.kv_bytes_per_token(width)
        flops = sequences * token_flops(shape, context)
        by_memory = read / (self.gpus_per_replica * self.gpu.bandwidth * self.bandwidth_share)
        return max(by_memory, flops / self._replica_flops())

    def _replica_flops(self) -> float:
        return self.gpu.flops(self.sampler_dtype) * self.gpus_per_replica * self.mfu

    def sampling_seconds(self, shape: Shape, work: Sampling, kv_tokens: float) -> float:
        """All calls, one after the other: prompts read, batch kept full while responses wait, then emptied.

        `kv_tokens` limits how many sequences are decoded at once in a replica.
        """
        prompts = work.prompts / self.replicas
        sequences = prompts * work.samples
        read = prompts * work.prompt_tokens * layer_flops(shape, work.prompt_tokens) / self._replica_flops()
        room = min(self.max_sequences, kv_tokens / (work.prompt_tokens + work.lengths.mean))
        in_flight = math.inf if work.in_flight is None else work.in_flight * work.samples / self.replicas
        at_once = max(1.0, min(sequences, in_flight, room))
        full = (sequences - at_once) * work.lengths.mean / at_once
        seconds = read + full * self.step_seconds(shape, at_once, work.context)
        return work.calls * (seconds + self._emptying_seconds(shape, work, at_once))

    def _emptying_seconds(self, shape: Shape, work: Sampling, at_once: float) -> float:
        width, seconds = work.lengths.most / STEPS, 0.0
        for step in range(STEPS):
            tokens = (step + 0.5) * width
            open_sequences = max(at_once * work.lengths.open_share(tokens), 0.0)
            # Below half a sequence the longest response has most likely ended.
            if open_sequences < 0.5:
                break
            seconds += width * self.step_seconds(shape, max(1.0, open_sequences), work.prompt_tokens + tokens)
        return seconds
