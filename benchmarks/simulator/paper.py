"""The paper's settings: models, clusters, the work of a step, the seconds of each part, and the best split of the GPUs.

Every figure of the simulator is here, with its source. None was chosen to match a published speed-up. Laminar is
arXiv 2510.12633. Devices (FLOP/s, memory, bandwidth) are in pipelines/planning/sizes.py. Response lengths come in the
order in which groups are issued: the same for every schedule of a seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.simulator.replica import ClusterSplit, DecodeStep, ReplicaSizes, SimulationResult
from benchmarks.simulator.schedules import AsynchronousSchedule, asynchronous, one_step, partial, stream, synchronous
from pipelines.planning.sizes import Gpu, find_gpu


@dataclass(frozen=True)
class LogNormal:
    """Log-normal lengths in tokens, cut to `shortest`..`longest`; part of the variance is that of the prompts."""

    median: float
    sigma: float
    shortest: int
    longest: int
    within_group: float = 0.7
    """Share of the variance of log lengths among the responses to one prompt. Assumption."""

    def group(self, rng: random.Random, size: int) -> list[int]:
        """Returns the lengths of one group's responses."""
        among = math.log(self.median) + self.sigma * math.sqrt(1 - self.within_group) * rng.gauss(0, 1)
        within = self.sigma * math.sqrt(self.within_group)
        drawn = (round(math.exp(among + within * rng.gauss(0, 1))) for _ in range(size))
        return [min(max(length, self.shortest), self.longest) for length in drawn]


@dataclass(frozen=True)
class StepWork:
    groups: int
    group_size: int
    prompt_tokens: int
    lengths: LogNormal

    @property
    def trajectories(self) -> int:
        return self.groups * self.group_size


@dataclass(frozen=True)
class Constants:
    """Constants for any model and cluster. Change one to see its influence."""

    memory_share: float = 0.90
    """Share of a GPU's memory for weights and KV cache: the usual setting of vLLM (its default is 0.9)."""
    admitted_share: float = 0.95
    """Share of the KV cache: a sequence is admitted while the used part, with its prompt, stays below. Assumption."""
    bandwidth_share: float = 0.80
    """Share of the memory's peak bandwidth that a decode step reaches. Assumption."""
    decode_share: float = 0.60
    """Share of the peak FLOP/s that the products of a decode step reach. Assumption."""
    prefill_share: float = 0.50
    """Share of the peak FLOP/s that prefill reaches. Assumption."""
    mfu: float = 0.40
    """Share of the peak FLOP/s in training: 38 to 43% (Llama 3, arXiv 2407.21783, table 4)."""
    host_seconds: float = 2e-3
    """Seconds of a decode step beside the GPU's work. Assumption."""
    all_reduce_seconds: float = 12e-6
    """Seconds of each of the two all-reduces of a layer, where tensor parallel is more than 1. Assumption."""
    most_sequences: int = 1024
    """Sequences that one replica decodes at once: vLLM's `max_num_seqs` on GPUs of this size."""
    training_flops: float = 8.0
    """FLOPs per parameter and token: 6 forward and backward, 2 for the old log-probs (Kaplan et al., 2001.08361)."""
    minibatches: int = 4
    """Updates per step. Assumption."""
    minibatch_seconds: float = 0.5
    """Fixed seconds of an update: optimizer, launches, stragglers. Assumption."""
    gradient_ranks: int = 8
    """GPUs per machine, which share the gradients' all-reduce: 2 x weights / 8 for each network card."""
    network_share: float = 0.80
    """Share of the network's bandwidth that this all-reduce reaches. Assumption."""
    network_bytes: float = 50e9
    """Bytes per second and GPU, network and PCIe alike: 400 Gbit/s cards, PCIe 5 x16 (data sheets)."""
    collective_bytes: float = 8.25e9
    """Bytes per second of weights from trainer to replicas by NCCL: verl's README, 4 machines."""
    push_bytes: float = 103e9
    """Bytes per second from the trainer to its relay: Laminar, 65.6 GB of a 32B in 0.64 s."""
    broadcast_seconds: float = 1.6
    """Seconds from the first relay to all, for the weights of a 72B (Laminar)."""
    broadcast_weights: float = 145.4e9
    """Bytes of those weights; the time of other weights is proportional."""
    switch_seconds: float = 2.0
    """Seconds for a colocated GPU to switch to generation and back, without copies of weights. Assumption."""
    repack_seconds: float = 5.0
    """Seconds between two checks for idle replicas (Laminar)."""
    eta: int = 4
    """AReaL's bound on staleness (arXiv 2505.24298)."""
    window: int | None = None
    """Steps of staleness that asynchronous loops allow; None sets no bound, as in the paper."""


CONSTANTS = Constants()


@dataclass(frozen=True)
class Model:
    """The sizes that determine times."""

    name: str
    parameters: float
    layers: int
    kv_bytes: int
    """Bytes of one token's keys and values over all layers."""
    tensor_parallel: int
    """GPUs of a replica."""

    @property
    def weights(self) -> float:
        """Bytes, in bfloat16."""
        return 2 * self.parameters


@dataclass(frozen=True)
class Setting:
    """One column of the paper's figures: a model on a number of GPUs."""

    model: Model
    gpu: Gpu
    gpus: int
    work: StepWork
    constants: Constants = CONSTANTS

    def __post_init__(self) -> None:
        # A single sequence is never put back (replica.py), and would grow beyond the cache.
        if self.kv_tokens < self.work.prompt_tokens + self.work.lengths.longest:
            raise ValueError(f"{self.model.name}: the cache holds fewer tokens than one longest sequence")

    @property
    def most_replicas(self) -> int:
        """Numbers of replicas that leave some GPUs for training."""
        return (self.gpus - 1) // self.model.tensor_parallel

    @property
    def kv_tokens(self) -> float:
        """Tokens in one replica's KV cache."""
        held = self.model.tensor_parallel * self.gpu.memory_gb * 1e9 * self.constants.memory_share
        return (held - self.model.weights) / self.model.kv_bytes

    @property
    def _peak(self) -> float:
        return self.gpu.flops("bfloat16")

    @property
    def _step(self) -> DecodeStep:
        model, constants = self.model, self.constants
        bandwidth = model.tensor_parallel * self.gpu.bandwidth * constants.bandwidth_share
        # Tensor parallel adds the partial results after attention and after the feed-forward, in every layer.
        reduces = 2 * model.layers * constants.all_reduce_seconds if model.tensor_parallel > 1 else 0.0
        return DecodeStep(
            fixed=constants.host_seconds + reduces,
            read=model.weights / bandwidth,
            read_token=model.kv_bytes / bandwidth,
            multiply=2 * model.parameters / (model.tensor_parallel * self._peak * constants.decode_share),
        )

    def machine(self, replicas: int) -> ClusterSplit:
        """Splits off `replicas` replicas; the other GPUs train."""
        return self._machine(replicas, self.gpus - replicas * self.model.tensor_parallel)

    def colocated_machine(self) -> ClusterSplit:
        """All GPUs generate, then all train. GPUs that are too few for a whole replica only train."""
        return self._machine(self.gpus // self.model.tensor_parallel, self.gpus)

    def _machine(self, replicas: int, training_gpus: int) -> ClusterSplit:
        model, constants, work, step = self.model, self.constants, self.work, self._step
        pull_seconds = model.weights / model.tensor_parallel / constants.network_bytes
        return ClusterSplit(
            sizes=ReplicaSizes(
                step=step,
                prefill_token=2 * model.parameters / (model.tensor_parallel * self._peak * constants.prefill_share),
                prompt_tokens=work.prompt_tokens,
                prefilled_prompt=work.prompt_tokens / work.group_size,
                kv_tokens=self.kv_tokens,
                admitted_tokens=constants.admitted_share * self.kv_tokens,
                most_sequences=constants.most_sequences,
            ),
            replicas=replicas,
            rollout_gpus=replicas * model.tensor_parallel,
            groups=work.groups,
            group_size=work.group_size,
            update_seconds=lambda tokens: self._update_seconds(training_gpus, tokens),
            minibatches=constants.minibatches,
            # The weights of one role are copied out and those of the other in.
            switch_seconds=constants.switch_seconds + 2 * pull_seconds,
            collective_seconds=model.weights / constants.collective_bytes,
            push_seconds=model.weights / constants.push_bytes,
            broadcast_seconds=constants.broadcast_seconds * model.weights / constants.broadcast_weights,
            pull_seconds=pull_seconds,
            # From here on the products of a decode step take longer than reading the weights.
            batch_bound=max(1, int(step.read / step.multiply)),
            repack_seconds=constants.repack_seconds,
        )

    def _update_seconds(self, gpus: int, tokens: float) -> float:
        """Seconds of one mini-batch of `tokens` prompt and response tokens."""
        constants = self.constants
        products = constants.training_flops * self.model.parameters * tokens / (gpus * self._peak * constants.mfu)
        network = constants.network_share * constants.network_bytes
        # A ring all-reduce sends every gradient twice: once to sum, once to distribute the sum.
        reduced = 2 * self.model.weights / constants.gradient_ranks / network
        return products + constants.minibatch_seconds + reduced


PAPER_GROUPS, PAPER_GROUP_SIZE = 512, 16
"""Work of a global batch of 8,192 trajectories (Laminar, section 8)."""
PAPER_LENGTHS = LogNormal(median=1640.0, sigma=math.log(10) / 2.326, shortest=16, longest=16_384)
"""Log-normal lengths whose 99th percentile is 10 times the median (Laminar, figure 2) and 16,384, the limit."""
PAPER_WORK = StepWork(PAPER_GROUPS, PAPER_GROUP_SIZE, prompt_tokens=300, lengths=PAPER_LENGTHS)
"""The length of a prompt is an assumption."""


PAPER_MODELS = (
    # Keys and values: 2 x layers x KV heads x head size x 2 bytes, from the config.json of Qwen2.5. The 72B's
    # parameters are those of its model card. Tensor parallel: assumption.
    Model("7B", 7.6e9, 28, 2 * 28 * 4 * 128 * 2, 1),
    Model("32B", 32.8e9, 64, 2 * 64 * 8 * 128 * 2, 4),
    Model("72B", 72.7e9, 80, 2 * 80 * 8 * 128 * 2, 8),
)
PAPER_GPUS = {"7B": (16, 32, 64, 128, 256), "32B": (32, 64, 128, 256, 512), "72B": (64, 128, 256, 512, 1024)}
"""Scales: assumption, since the paper's text does not state them."""


def paper_setting(model: str, gpus: int) -> Setting:
    named = {one.name: one for one in PAPER_MODELS}
    return Setting(named[model], find_gpu("H800"), gpus, PAPER_WORK)


WARM_UP_STEPS, MEASURED_STEPS = 10, 20
"""Steps simulated before and during measurement. Assumption: the first steps show replicas that start together."""
BATCH_STEPS = 10
"""Steps of the three schedules that empty all replicas in each step, so that no step depends on the one before."""


class DrawnLengths:
    """An endless list of groups, sampled when first requested."""

    def __init__(self, distribution: LogNormal, group_size: int, seed: int) -> None:
        self._distribution, self._group_size = distribution, group_size
        self._rng, self._groups = random.Random(seed), []

    def __getitem__(self, group: int) -> list[int]:
        # Always in the order of issue, so that all schedules of one seed have equal lengths.
        while len(self._groups) <= group:
            self._groups.append(self._distribution.group(self._rng, self._group_size))
        return self._groups[group]


POLICIES = ("synchronous", "one_step", "stream", "partial", "asynchronous", "asynchronous_repack")
"""The schedules of the paper."""
OURS = "ours"
KNOWN_GROUPS, KNOWN_ERROR = 1000, 0.03
"""Groups whose mean length gives a lower bound on the training time, and the margin for its error."""
OUR_SHARE = 4.0
"""Groups that an empty replica takes, as a multiple of batch / replicas. A long response then delays a replica once per
four batches of work, not once per batch."""


@dataclass(frozen=True)
class Steps:
    warm_up: int = WARM_UP_STEPS
    measured: int = MEASURED_STEPS
    batches: int = BATCH_STEPS
    """For the schedules in which every step is like the first."""


def simulate_split(policy: str, setting: Setting, lengths: Any, replicas: int, steps: Steps) -> SimulationResult:
    """Runs `policy` with `replicas` replicas; a synchronous loop uses all GPUs for both."""
    constants = setting.constants
    match policy:
        case "synchronous":
            return synchronous(setting.colocated_machine(), lengths, steps.batches)
        case "one_step":
            return one_step(setting.machine(replicas), lengths, steps.batches)
        case "stream":
            return stream(setting.machine(replicas), lengths, steps.batches)
        case "partial":
            return partial(setting.machine(replicas), lengths, steps.warm_up, steps.measured, constants.eta)
        case "asynchronous" | "asynchronous_repack" | "ours":
            # Our schedule differs from the published one only in this factor.
            share = OUR_SHARE if policy == OURS else 1.0
            schedule = AsynchronousSchedule(policy != "asynchronous", share, constants.window)
            return asynchronous(setting.machine(replicas), lengths, steps.warm_up, steps.measured, schedule)
        case _:
            raise ValueError(f"no policy {policy!r}: there are {', '.join((*POLICIES, OURS))}")


def best_split(policy: str, setting: Setting, lengths: Any, steps: Steps) -> tuple[int, SimulationResult]:
    """Returns the number of replicas with the shortest step of `policy`, and its simulation; the other GPUs train."""
    if policy == "synchronous":
        return 0, simulate_split(policy, setting, lengths, 0, steps)
    work = setting.work
    # The same groups that the simulation will issue, so that this estimates its training time.
    looked_at = [length for group in range(KNOWN_GROUPS) for length in lengths[group]]
    tokens = work.trajectories * (work.prompt_tokens + sum(looked_at) / len(looked_at))
    results: dict[int, SimulationResult] = {}

    def seconds(replicas: int) -> float:
        # No step is shorter than its training: splits that train longer than the best step so far need no simulation.
        floor = (1 - KNOWN_ERROR) * setting.machine(replicas).training_seconds(tokens)
        if floor >= min((result.seconds_per_step for result in results.values()), default=math.inf):
            return floor
        results[replicas] = simulate_split(policy, setting, lengths, replicas, steps)
        return results[replicas].seconds_per_step

    replicas = _lowest(seconds, setting.most_replicas)
    return replicas, results[replicas]


def _lowest(seconds: Callable[[int], float], most: int) -> int:
    """Returns where `seconds` of 1..most is lowest: with too few replicas training waits, with too many it is slow.

    Starts at the usual optimum, with strides of a sixth. It halves the stride when both neighbours are slower, down to
    a twelfth of the best so far. Smaller first strides stop at a local dip more often.
    """
    of = cache(seconds)
    best, stride = max(1, round(most * 3 / 8)), max(1, most // 6)
    while True:
        near = [count for count in (best - stride, best + stride) if 1 <= count <= most]
        nearer = min([best, *near], key=of)
        if nearer != best:
            best = nearer
        elif stride <= max(1, best // 12):
            return best
        else:
            stride = max(1, stride // 2)
