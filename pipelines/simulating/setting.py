"""What is simulated: a model, a cluster and the work of a step, and the seconds that each part of it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pipelines.planning.devices import Gpu, find_gpu
from pipelines.simulating.constants import (
    CONSTANTS,
    PAPER_DEVICE,
    PAPER_GPUS,
    PAPER_GROUP_SIZE,
    PAPER_GROUPS,
    PAPER_LONGEST,
    PAPER_MEDIAN,
    PAPER_MODELS,
    PAPER_PROMPT_TOKENS,
    PAPER_SHORTEST,
    PAPER_SIGMA,
    Constants,
    Model,
)
from pipelines.simulating.lengths import LogNormal, MeasuredGroups
from pipelines.simulating.machine import Machine
from pipelines.simulating.replica import DecodeStep, ReplicaSizes
from stages.foundations.errors import UserError


@dataclass(frozen=True)
class Work:
    """Of one RL step."""

    groups: int
    group_size: int
    prompt_tokens: int
    lengths: LogNormal | MeasuredGroups
    trained_share: float = 1.0
    """Of what is drawn: under dynamic sampling groups without a signal are left out."""

    @property
    def trajectories(self) -> int:
        return self.groups * self.group_size


@dataclass(frozen=True)
class Setting:
    """One column of the paper's figures: a model on a number of GPUs."""

    model: Model
    gpu: Gpu
    gpus: int
    work: Work
    constants: Constants = CONSTANTS

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise UserError(f"{self.gpus} GPUs simulate nothing: give --gpus 1 or more")
        if self.gpus < self.model.tensor_parallel:
            raise UserError(
                f"a replica of {self.model.name} takes {self.model.tensor_parallel} GPUs (tensor parallel) and there "
                f"are {self.gpus}: raise --gpus or lower sampler.tensor_parallel"
            )
        longest = self.work.prompt_tokens + self.work.lengths.longest
        if self.kv_tokens < longest:
            raise UserError(
                f"{self.model.name} leaves room for {max(0, int(self.kv_tokens)):,} tokens of KV cache on "
                f"{self.model.tensor_parallel} x {self.gpu.name}, fewer than one longest sequence of {longest:,}: "
                "raise sampler.tensor_parallel, or name a --device with more memory"
            )

    @property
    def most_replicas(self) -> int:
        """Where some GPUs are left for training."""
        return (self.gpus - 1) // self.model.tensor_parallel

    @property
    def kv_tokens(self) -> float:
        """Capacity of one replica's KV cache."""
        held = self.model.tensor_parallel * self.gpu.memory_gb * 1e9 * self.constants.memory_share
        return (held - self.model.weights) / self.model.kv_bytes

    @property
    def batch_bound(self) -> int:
        """Sequences from which the products of a decode step take longer than reading the weights."""
        read, multiplied = self._step.read, self._step.multiply
        return max(1, int(read / multiplied))

    @property
    def _peak(self) -> float:
        return self.gpu.flops("float32" if self.model.number_bytes == 4 else "bfloat16")

    @property
    def _step(self) -> DecodeStep:
        model, constants = self.model, self.constants
        bandwidth = model.tensor_parallel * self.gpu.bandwidth * constants.bandwidth_share
        reduces = 2 * model.layers * constants.all_reduce_seconds if model.tensor_parallel > 1 else 0.0
        return DecodeStep(
            fixed=constants.host_seconds + reduces,
            each=0.0,
            read=model.weights / bandwidth,
            read_token=model.kv_bytes / bandwidth,
            multiply=2 * model.parameters / (model.tensor_parallel * self._peak * constants.decode_share),
        )

    @property
    def doubt(self) -> str:
        """A sentence where the assumed fixed cost of a decode step exceeds the time to read the weights; else empty.

        More than half of each step then is this one constant, which is not from a measurement of small models.
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

    def replica_sizes(self) -> ReplicaSizes:
        model, constants, work = self.model, self.constants, self.work
        peak = model.tensor_parallel * self._peak * constants.prefill_share
        return ReplicaSizes(
            step=self._step,
            prefill_token=2 * model.parameters / peak,
            prompt_tokens=work.prompt_tokens,
            prefilled_prompt=work.prompt_tokens / work.group_size,
            kv_tokens=self.kv_tokens,
            admitted_tokens=constants.admitted_share * self.kv_tokens,
            most_sequences=constants.most_sequences,
        )

    def update_seconds(self, gpus: int, tokens: float) -> float:
        """One mini-batch of `tokens` prompt and response tokens."""
        constants = self.constants
        products = (
            constants.training_flops * self.model.parameters * tokens / (gpus * self._peak * constants.mfu)
        )
        network = constants.network_share * constants.network_bytes
        reduced = 2 * self.model.weights / constants.gradient_ranks / network
        return products + constants.minibatch_seconds + reduced

    @property
    def collective_seconds(self) -> float:
        """Weights from the trainer to all replicas while all of them wait."""
        return self.model.weights / self.constants.collective_bytes

    @property
    def push_seconds(self) -> float:
        """The trainer waits while its weights go to the first relay."""
        return self.model.weights / self.constants.push_bytes

    @property
    def broadcast_seconds(self) -> float:
        """From the first relay to all of them; nobody waits."""
        return self.constants.broadcast_seconds * self.model.weights / self.constants.broadcast_weights

    @property
    def pull_seconds(self) -> float:
        """A replica takes weights from its node's relay."""
        return self.model.weights / self.model.tensor_parallel / self.constants.network_bytes

    @property
    def switch_seconds(self) -> float:
        """GPUs that train and generate by turns: there and back."""
        return self.constants.switch_seconds + 2 * self.pull_seconds

    def machine(self, replicas: int) -> Machine:
        """With `replicas` replicas, and the other GPUs for training."""
        return self._machine(replicas, self.gpus - replicas * self.model.tensor_parallel)

    def colocated_machine(self) -> Machine:
        """All GPUs generate, then all train. GPUs that make no whole replica only train."""
        return self._machine(self.gpus // self.model.tensor_parallel, self.gpus)

    def _machine(self, replicas: int, training_gpus: int) -> Machine:
        return Machine(
            sizes=self.replica_sizes(),
            replicas=replicas,
            rollout_gpus=replicas * self.model.tensor_parallel,
            groups=self.work.groups,
            group_size=self.work.group_size,
            update_seconds=lambda tokens: self.update_seconds(training_gpus, tokens),
            minibatches=self.constants.minibatches,
            switch_seconds=self.switch_seconds,
            collective_seconds=self.collective_seconds,
            push_seconds=self.push_seconds,
            broadcast_seconds=self.broadcast_seconds,
            pull_seconds=self.pull_seconds,
            batch_bound=self.batch_bound,
            repack_seconds=self.constants.repack_seconds,
        )

    def with_constants(self, **changed: Any) -> Setting:
        return replace(self, constants=replace(self.constants, **changed))


PAPER_WORK = Work(
    PAPER_GROUPS,
    PAPER_GROUP_SIZE,
    PAPER_PROMPT_TOKENS,
    LogNormal(PAPER_MEDIAN, PAPER_SIGMA, PAPER_SHORTEST, PAPER_LONGEST),
)


def paper_setting(model: str, gpus: int, constants: Constants = CONSTANTS) -> Setting:
    """UserError names the paper's models."""
    found = {one.name: one for one in PAPER_MODELS}.get(model)
    if found is None:
        raise UserError(
            f"no model {model!r} in the paper: there are {', '.join(m.name for m in PAPER_MODELS)}"
        )
    return Setting(found, find_gpu(PAPER_DEVICE), gpus, PAPER_WORK, constants)


def paper_settings(constants: Constants = CONSTANTS) -> list[Setting]:
    """All fifteen."""
    return [paper_setting(model, gpus, constants) for model, scales in PAPER_GPUS.items() for gpus in scales]
