"""Every figure of the simulator, with where it is from. None was chosen to meet a published speed-up.

Laminar is arXiv 2510.12633. Devices (FLOP/s, memory, bandwidth) stand in pipelines/planning/devices.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What holds for any model and cluster. Replace one of them to see what hangs on it."""

    memory_share: float = 0.90
    """Of a GPU's memory, for weights and KV cache: the usual setting of vLLM (its default is 0.9)."""
    admitted_share: float = 0.95
    """Of the KV cache: a sequence is admitted while what is in use, with its prompt, stays below. Assumption."""
    bandwidth_share: float = 0.80
    """Of the memory's peak, reached by a decode step. Assumption."""
    decode_share: float = 0.60
    """Of the peak FLOP/s, reached by the products of a decode step. Assumption."""
    prefill_share: float = 0.50
    """Of the peak FLOP/s, reached by prefill. Assumption."""
    mfu: float = 0.40
    """Of the peak FLOP/s in training: 38 to 43% (Llama 3, arXiv 2407.21783, table 4)."""
    host_seconds: float = 2e-3
    """Of a decode step, beside the GPU's own work. Assumption."""
    all_reduce_seconds: float = 12e-6
    """Each of the two all-reduces of a layer, where tensor parallel is more than 1. Assumption."""
    most_sequences: int = 1024
    """Decoded at once by one replica: vLLM's `max_num_seqs` on GPUs of this size."""
    training_flops: float = 8.0
    """A parameter and token: 6 forward and backward, 2 for the old log-probs (Kaplan et al., 2001.08361)."""
    minibatches: int = 4
    """Updates a step. Assumption."""
    minibatch_seconds: float = 0.5
    """Fixed part of an update: optimizer, launches, stragglers. Assumption."""
    gradient_ranks: int = 8
    """GPUs of a machine, over which the gradients' all-reduce is spread: 2 x weights / 8 for each network card."""
    network_share: float = 0.80
    """Of the network, reached by that all-reduce. Assumption."""
    network_bytes: float = 50e9
    """A second and GPU, network and PCIe alike: 400 Gbit/s cards, PCIe 5 x16 (data sheets)."""
    collective_bytes: float = 8.25e9
    """A second, weights from trainer to replicas by NCCL: verl's README, 4 machines."""
    push_bytes: float = 103e9
    """A second, from the trainer to its relay: Laminar, 65.6 GB of a 32B in 0.64 s."""
    broadcast_seconds: float = 1.6
    """From the first relay to all, for the weights of a 72B (Laminar)."""
    broadcast_weights: float = 145.4e9
    """Bytes of those weights; the time of others is in proportion."""
    switch_seconds: float = 2.0
    """A colocated GPU goes from training to generation and back, beside the two copies of weights. Assumption."""
    repack_seconds: float = 5.0
    """Between two looks for idle replicas (Laminar)."""
    eta: int = 4
    """AReaL's bound on staleness (arXiv 2505.24298)."""
    window: int | None = None
    """Steps that asynchronous loops may train late; None bounds nothing, as in the paper."""
    share: float = 1.0
    """Of global batch / replicas, taken by an empty replica in the paper's schedule. Assumption."""


CONSTANTS = Constants()


@dataclass(frozen=True)
class Model:
    """The sizes that decide times."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_size: int
    tensor_parallel: int
    """GPUs of a replica."""
    number_bytes: int = 2

    @property
    def weights(self) -> float:
        """Bytes."""
        return self.parameters * self.number_bytes

    @property
    def kv_bytes(self) -> float:
        """Of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.number_bytes


PAPER_DEVICE = "H800"
PAPER_MODELS = (
    # config.json of Qwen2.5 (72B: Qwen2.5-72B, parameters as its model card has them). Tensor parallel: assumption.
    Model("7B", 7.6e9, 28, 4, 128, 1),
    Model("32B", 32.8e9, 64, 8, 128, 4),
    Model("72B", 72.7e9, 80, 8, 128, 8),
)
PAPER_GPUS = {"7B": (16, 32, 64, 128, 256), "32B": (32, 64, 128, 256, 512), "72B": (64, 128, 256, 512, 1024)}
"""Scales: assumption, the paper's own are not in its text."""
PAPER_GROUPS, PAPER_GROUP_SIZE = 512, 16
"""Of a global batch of 8,192 trajectories (Laminar, section 8)."""
PAPER_PROMPT_TOKENS = 300
"""Assumption."""
PAPER_MEDIAN, PAPER_SIGMA = 1640.0, math.log(10) / 2.326
"""Log-normal lengths whose 99th percentile is 10 times the median (Laminar, figure 2) and 16,384, the limit."""
PAPER_SHORTEST, PAPER_LONGEST = 16, 16_384
WITHIN_GROUP = 0.7
"""Of the variance of log lengths, among the responses to one prompt. Assumption."""

PUBLISHED = {
    "mean over synchronous": 2.56,
    "largest over synchronous": 5.48,
    "mean over one_step": 1.98,
    "mean over stream": 1.93,
    "mean over partial": 1.39,
    "largest scale, over all": 3.34,
}
"""Laminar's throughput over its baselines (abstract and section 8)."""

WARM_UP_STEPS, MEASURED_STEPS = 10, 20
"""Steps simulated before and while figures are taken. Assumption: the first ones know replicas that start together."""
BATCH_STEPS = 10
"""Steps of the three schedules that empty all replicas in each step, so that no step hangs on the one before."""
