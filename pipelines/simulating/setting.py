"""The simulated setting: a model, a cluster and the work of a step, and the seconds that each part of it takes.

Every figure of the simulator is here, with its source. None was chosen to match a published speed-up. Laminar is
arXiv 2510.12633. Devices (FLOP/s, memory, bandwidth) are in pipelines/planning/sizes.py. Response lengths come in the
order in which groups are issued: the same for every schedule of a seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from pipelines.planning.sizes import Gpu, find_gpu
from pipelines.simulating.replica import ClusterSplit, DecodeStep, ReplicaSizes
from stages.foundations.errors import UserError

Z99 = NormalDist().inv_cdf(0.99)
WITHIN_GROUP = 0.7
"""Share of the variance of log lengths among the responses to one prompt. Assumption."""


@dataclass(frozen=True)
class LogNormal:
    """Log-normal lengths in tokens, cut to `shortest`..`longest`; part of the variance is that of the prompts."""

    median: float
    sigma: float
    shortest: int
    longest: int
    within_group: float = WITHIN_GROUP

    def group(self, rng: random.Random, size: int) -> list[int]:
        """Returns the lengths of one group's responses."""
        among = math.log(self.median) + self.sigma * math.sqrt(1 - self.within_group) * rng.gauss(0, 1)
        within = self.sigma * math.sqrt(self.within_group)
        drawn = (round(math.exp(among + within * rng.gauss(0, 1))) for _ in range(size))
        return [min(max(length, self.shortest), self.longest) for length in drawn]

    @classmethod
    def of_mean(cls, mean: float, sigma: float, longest: int) -> LogNormal:
        """Returns the distribution whose mean, cut to `longest`, is `mean`; one token is the shortest."""
        # The mean grows with the median. Bisection on a logarithmic scale finds the median from any distance.
        low, high = 1e-3, 1e3 * longest
        for _ in range(100):
            median = math.sqrt(low * high)
            low, high = (median, high) if _cut_mean(median, sigma, longest) < mean else (low, median)
        return cls(low, sigma, 1, longest)


@dataclass(frozen=True)
class MeasuredGroups:
    """Lengths of the groups of an earlier run; they are repeated in random order."""

    groups: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> int:
        return max(max(group) for group in self.groups)

    def group(self, rng: random.Random, size: int) -> list[int]:
        """Returns one of the groups; its lengths are resampled if it has another size."""
        group = rng.choice(self.groups)
        # So a recipe with another group size can still use the lengths of an earlier run.
        return list(group) if len(group) == size else rng.choices(group, k=size)


TURNS_TAIL = 3.0
"""99th percentile of the turns over their median. Assumption."""
LONGEST_CALL = 600.0
"""Seconds after which a call of a tool is given up. Assumption: without it, the tail of a log-normal lasts for days."""


@dataclass(frozen=True)
class Tools:
    """Responses of several turns, with a call of a tool between two turns. Turns and seconds are log-normal."""

    turns: float
    """Median; one turn is the least."""
    seconds: float
    """Median of a call."""
    tail: float
    """99th percentile of the seconds over their median."""

    def calls(self, group: int, lengths: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
        """Returns tokens before and seconds of each call, for the responses of a group; turns end at random tokens."""
        # Lengths differ between seeds, so that calls do, and every schedule of a seed meets the same calls.
        rng, made = random.Random(f"{group} {lengths}"), []
        deviation, tail = math.log(TURNS_TAIL) / Z99, math.log(self.tail) / Z99
        for length in lengths:
            turns = max(1, round(self.turns * math.exp(deviation * rng.gauss(0, 1))))
            ends = sorted(rng.sample(range(1, length), min(turns, length) - 1))
            seconds = (self.seconds * math.exp(tail * rng.gauss(0, 1)) for _ in ends)
            made.append(tuple((end, min(LONGEST_CALL, own)) for end, own in zip(ends, seconds, strict=True)))
        return made


@dataclass(frozen=True)
class StepWork:
    """Work of one RL step."""

    groups: int
    group_size: int
    prompt_tokens: int
    lengths: LogNormal | MeasuredGroups
    tools: Tools | None = None

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
    share: float = 1.0
    """Share of global batch / replicas that an empty replica takes in the paper's schedule. Assumption."""


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
    number_bytes: int = 2

    @property
    def weights(self) -> float:
        """Bytes."""
        return self.parameters * self.number_bytes


@dataclass(frozen=True)
class Setting:
    """One column of the paper's figures: a model on a number of GPUs."""

    model: Model
    gpu: Gpu
    gpus: int
    work: StepWork
    constants: Constants = CONSTANTS

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise UserError(f"{self.gpus} GPUs cannot be simulated: give --gpus 1 or more")
        if self.gpus < self.model.tensor_parallel:
            raise UserError(
                f"a replica of {self.model.name} takes {self.model.tensor_parallel} GPUs (tensor parallel) and there "
                f"are {self.gpus}: raise --gpus or lower sampler.tensor_parallel"
            )
        # A single sequence is never put back (replica.py), and would grow beyond the cache.
        longest = self.work.prompt_tokens + self.work.lengths.longest
        if self.kv_tokens < longest:
            raise UserError(
                f"{self.model.name} leaves room for {max(0, int(self.kv_tokens)):,} tokens of KV cache on "
                f"{self.model.tensor_parallel} x {self.gpu.name}, fewer than one longest sequence of {longest:,}: "
                "raise sampler.tensor_parallel, or name a --device with more memory"
            )

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
        return self.gpu.flops("float32" if self.model.number_bytes == 4 else "bfloat16")

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

    @property
    def doubt(self) -> str:
        """Returns a sentence where the assumed fixed cost of a decode step exceeds the time to read the weights; else
        empty.

        Then more than half of each step is this one constant, which was not measured on small models.
        """
        step, model = self._step, self.model
        if step.read >= step.fixed:
            return ""
        smallest = model.parameters * step.fixed / step.read
        return (
            f"{model.name} is too small for this simulator: reading its {model.parameters:,.0f} weights takes "
            f"{1000 * step.read:.2g} ms of a decode step, and the assumed fixed cost is {1000 * step.fixed:.2g} ms. "
            f"Trust figures for models from about {smallest / 1e9:.1f}B parameters on this device"
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
            calls_of=work.tools and work.tools.calls,
        )

    def _update_seconds(self, gpus: int, tokens: float) -> float:
        """Seconds of one mini-batch of `tokens` prompt and response tokens."""
        constants = self.constants
        products = constants.training_flops * self.model.parameters * tokens / (gpus * self._peak * constants.mfu)
        network = constants.network_share * constants.network_bytes
        # A ring all-reduce sends every gradient twice: once to sum, once to distribute the sum.
        reduced = 2 * self.model.weights / constants.gradient_ranks / network
        return products + constants.minibatch_seconds + reduced

    def with_constants(self, **changed: Any) -> Setting:
        return replace(self, constants=replace(self.constants, **changed))


PAPER_GROUPS, PAPER_GROUP_SIZE = 512, 16
"""Work of a global batch of 8,192 trajectories (Laminar, section 8)."""
PAPER_SHORTEST, PAPER_LONGEST = 16, 16_384
PAPER_MEDIAN, PAPER_SIGMA = 1640.0, math.log(10) / 2.326
"""Log-normal lengths whose 99th percentile is 10 times the median (Laminar, figure 2) and 16,384, the limit."""
PAPER_PROMPT_TOKENS = 300
"""Assumption."""
PAPER_WORK = StepWork(
    PAPER_GROUPS,
    PAPER_GROUP_SIZE,
    PAPER_PROMPT_TOKENS,
    LogNormal(PAPER_MEDIAN, PAPER_SIGMA, PAPER_SHORTEST, PAPER_LONGEST),
)


def paper_setting(model: str, gpus: int) -> Setting:
    """Returns the setting. UserError lists the paper's models."""
    named = {one.name: one for one in PAPER_MODELS}.get(model)
    if named is None:
        raise UserError(f"no model {model!r} in the paper: there are {', '.join(m.name for m in PAPER_MODELS)}")
    return Setting(named, find_gpu("H800"), gpus, PAPER_WORK)


def paper_settings(model: str = "", gpus: int | None = None) -> list[Setting]:
    """Returns all fifteen settings, or those of a model or a number of GPUs."""
    return [
        paper_setting(name, count)
        for name in ([model] if model else PAPER_GPUS)
        for count in (PAPER_GPUS.get(name, (1,)) if gpus is None else (gpus,))
    ]


PAPER_MODELS = (
    # Keys and values: 2 x layers x KV heads x head size x 2 bytes, from the config.json of Qwen2.5. The 72B's
    # parameters are those of its model card. Tensor parallel: assumption.
    Model("7B", 7.6e9, 28, 2 * 28 * 4 * 128 * 2, 1),
    Model("32B", 32.8e9, 64, 2 * 64 * 8 * 128 * 2, 4),
    Model("72B", 72.7e9, 80, 2 * 80 * 8 * 128 * 2, 8),
)
PAPER_GPUS = {"7B": (16, 32, 64, 128, 256), "32B": (32, 64, 128, 256, 512), "72B": (64, 128, 256, 512, 1024)}
"""Scales: assumption, since the paper's text does not state them."""
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
"""Steps simulated before and during measurement. Assumption: the first steps show replicas that start together."""
BATCH_STEPS = 10
"""Steps of the three schedules that empty all replicas in each step, so that no step depends on the one before."""


def _cut_mean(median: float, sigma: float, longest: int) -> float:
    """Mean of a log-normal variable whose values above `longest` count as `longest`."""
    # The closed form of the mean of min(X, longest), by the partial expectation of a log-normal variable.
    at = (math.log(longest) - math.log(median)) / sigma
    below = NormalDist().cdf(at - sigma)
    return median * math.exp(sigma**2 / 2) * below + longest * (1 - NormalDist().cdf(at))


class DrawnLengths:
    """An endless list of groups, sampled when first requested."""

    def __init__(self, distribution: LogNormal | MeasuredGroups, group_size: int, seed: int) -> None:
        self._distribution, self._group_size = distribution, group_size
        self._rng, self._groups = random.Random(seed), []

    def __getitem__(self, group: int) -> list[int]:
        # Always in the order of issue, so that all schedules of one seed have equal lengths.
        while len(self._groups) <= group:
            self._groups.append(self._distribution.group(self._rng, self._group_size))
        return self._groups[group]
