"""Seconds of a recipe's stages on GPUs, computed from their FLOPs and from data sheets.

FLOPs. Only matrix products are counted, with two FLOPs for a multiplication and its addition. That is 2 per weight and
token forward and twice that backward (Kaplan et al., arXiv 2001.08361, section 2.1). Attention counts its causal half.
Stages that read and write tables compute almost nothing: they have no time here, but they stay in the list.

GPUs. Training at a share of peak FLOP/s (MFU, Chowdhery et al., arXiv 2204.02311, appendix B). Decoding by the roofline
(Pope et al., arXiv 2211.05102, section 2): a step reads all weights, keys and values once, and multiplies. It takes the
longer of the two times. Not counted: launches and Python between kernels, which dominate below about a billion
parameters; communication beyond what the share of the peak includes; the optimizer's arithmetic; saving weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelines.planning.sizes import NUMBER_BYTES, Gpu, Shape
from pipelines.planning.work import ResponseLengths, Sampling, SideBySide, Training

HEAD_PRODUCTS = 4
"""The head's logits are computed, and again in the backward pass, where their two gradients are computed."""


def training_flops(work: Training, shape: Shape, is_checkpointed: bool) -> float:
    """Forward and backward; with gradient checkpointing the layers run forward once more.

    A critic has the same layers and no head; it also goes forward once for the values before the update.
    """
    layers = layer_flops(shape, work.context)
    passes = 4 if is_checkpointed else 3
    head = 2 * shape.vocabulary * shape.hidden
    forward_head = head * work.response_tokens / max(1.0, work.tokens)
    return (
        work.tokens * layers * (passes + (passes + 1 if work.critic else 0))
        + work.response_tokens * head * HEAD_PRODUCTS
        + work.forward_tokens * (layers + forward_head)
    )


def sampling_flops(work: Sampling, shape: Shape) -> float:
    """Prompts are read once, with earlier turns where the sampler reads them again; every token is generated."""
    read = work.calls * work.prompts * work.read_for_prompt * layer_flops(shape, work.prompt_tokens)
    return read + work.tokens * token_flops(shape, work.context)


def layer_flops(shape: Shape, context: float) -> float:
    """FLOPs of one token forward through all layers; it attends over half of `context`."""
    # Scores and their weighted sum: 2 products of 2 FLOPs for each head and token attended to, halved by the causal
    # mask.
    return shape.layers * (2 * shape.layer_matrices + 2 * shape.heads * shape.head_size * context)


def token_flops(shape: Shape, attended: float) -> float:
    """FLOPs of one generated token: all layers over `attended` tokens, and the head."""
    # Doubled, because `layer_flops` halves it: a token that is generated attends to all before it.
    return layer_flops(shape, 2 * attended) + 2 * shape.vocabulary * shape.hidden


MFU = 0.4
"""Share of the peak in training: 38 to 43% in bfloat16 on 8,192 to 16,384 H100 (Llama 3, arXiv 2407.21783, table 4)."""
BANDWIDTH_SHARE = 0.6
"""Share of the bandwidth that decoding reaches; an assumption without a source."""
STEPS = 200
"""Number of points at which the emptying of a batch is evaluated."""


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
        """The GPUs of a stage that samples and trains side by side."""
        return replace(self, training_gpus=own.trainer_ranks, replicas=own.replicas) if own else self

    def training_seconds(self, shape: Shape, work: Training) -> float:
        """Without updates: the optimizer reads and writes its state once, which is negligible beside the passes."""
        peak = self.gpu.flops(self.trainer_dtype) * self.training_gpus * self.mfu
        return training_flops(work, shape, self.is_checkpointed) / peak

    def step_seconds(self, shape: Shape, sequences: float, context: float) -> float:
        """Seconds of one token for each of `sequences` in one replica, each attending over `context` tokens."""
        width = NUMBER_BYTES[self.sampler_dtype]
        read = shape.multiplied * width + sequences * context * shape.kv_bytes_per_token(width)
        flops = sequences * token_flops(shape, context)
        # Tensor parallel reads and multiplies on all GPUs of the replica at once.
        by_memory = read / (self.gpus_per_replica * self.gpu.bandwidth * self.bandwidth_share)
        return max(by_memory, flops / self._replica_flops())

    def _replica_flops(self) -> float:
        return self.gpu.flops(self.sampler_dtype) * self.gpus_per_replica * self.mfu

    def sampling_seconds(self, shape: Shape, work: Sampling, kv_tokens: float) -> float:
        """Seconds of all calls in sequence: prompts read, batch kept full while responses wait, then emptied.

        `kv_tokens` limits how many sequences are decoded at once in a replica.
        """
        prompts = work.prompts / self.replicas
        sequences = prompts * work.samples
        read = prompts * work.read_for_prompt * layer_flops(shape, work.prompt_tokens) / self._replica_flops()
        room = min(self.max_sequences, kv_tokens / (work.prompt_tokens + work.lengths.mean))
        # Without the key, all prompts of a call start at once.
        in_flight = math.inf if work.in_flight is None else work.in_flight * work.samples / self.replicas
        at_once = max(1.0, min(sequences, in_flight, room))
        # Steps with a full batch: the tokens of all sequences but the last batch, divided by the batch size.
        full = (sequences - at_once) * work.lengths.mean / at_once
        seconds = read + full * self.step_seconds(shape, at_once, work.context)
        emptied = _emptying_seconds(
            work.lengths, at_once, lambda rows, tokens: self.step_seconds(shape, rows, work.prompt_tokens + tokens)
        )
        return work.calls * (seconds + emptied)


def _emptying_seconds(lengths: ResponseLengths, rows: float, step_seconds: Callable[[float, float], float]) -> float:
    """Seconds until the longest of `rows` responses ends; a step depends on the open rows and on their tokens."""
    width, seconds = lengths.most / STEPS, 0.0
    for step in range(STEPS):
        tokens = (step + 0.5) * width
        open_rows = rows * lengths.open_share(tokens)
        # With less than half a sequence open, the longest response has most likely ended.
        if open_rows < 0.5:
            break
        seconds += width * step_seconds(max(1.0, open_rows), tokens)
    return seconds
