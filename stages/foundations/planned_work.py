"""The work of a stage in numbers, before it runs: what `About.work` returns, and the lengths it is counted with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

STEPS_OF_SURVIVAL = 200


@dataclass(frozen=True)
class ModelSizes:
    """Where the sizes of a policy stand: a name that is known by its sizes, or a transformers config."""

    name: str
    config: Mapping[str, Any] | Path | None = None
    """A config, or the path of its file from the project's root; None where only the name is known."""
    is_untrained: bool = False
    """Random weights: the end comes as often as any other token."""
    policy: str = ""
    """What the policy is called."""


@dataclass(frozen=True)
class ResponseLengths:
    """Lengths in tokens: exponential, cut off at `most`, with this mean. Many are short and a few reach the limit."""

    mean: float
    most: int

    @cached_property
    def rate(self) -> float:
        """Chance to end per token: (1 - e^(-rate most)) / rate = mean; 0 where every response reaches the limit."""
        if self.mean >= self.most * (1 - 1e-6):
            return 0.0
        low, high = 1e-12, 50.0 / self.mean
        for _ in range(200):
            rate = (low * high) ** 0.5
            low, high = (rate, high) if -math.expm1(-rate * self.most) / rate > self.mean else (low, rate)
        return rate

    def open_share(self, tokens: float) -> float:
        """Share of the responses that are longer than `tokens`."""
        return math.exp(-self.rate * tokens) if tokens < self.most else 0.0

    @cached_property
    def mean_square(self) -> float:
        """Mean of the squared length: twice the integral of t times the open share."""
        width = self.most / STEPS_OF_SURVIVAL
        middles = ((step + 0.5) * width for step in range(STEPS_OF_SURVIVAL))
        return 2 * width * sum(middle * self.open_share(middle) for middle in middles)


@dataclass(frozen=True)
class Lengths:
    """What a plan takes for granted, with where each figure is from."""

    prompt: float
    response_share: float
    drawn_per_trained: float
    responses: Mapping[str, float] = field(default_factory=dict)
    """Mean response tokens by the stage's address (`rl_round@rl_1`), where they were measured."""
    drawn: Mapping[str, float] = field(default_factory=dict)
    """Groups drawn per group trained, by address, where they were measured."""
    trained: Mapping[str, float] = field(default_factory=dict)
    """Tokens trained on, prompts included, by address, where they were measured."""
    untrained: Mapping[str, float] = field(default_factory=dict)
    """Policies with random weights -> chance of each of their tokens to be the end."""
    benchmark_problems: float | None = None
    """Problems that every policy answers, where the user says so."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def of(self, address: str, most: int) -> ResponseLengths:
        """Lengths of the responses that a stage draws from the policy of its address, or from any."""
        assumed = self.response_share * most
        chance = self.untrained.get(address.partition("@")[2])
        if chance:
            assumed = (1 - (1 - chance) ** most) / chance
        return ResponseLengths(min(self.responses.get(address, assumed), float(most)), most)

    def drawn_of(self, address: str) -> float:
        return self.drawn.get(address, self.drawn_per_trained)


@dataclass(frozen=True)
class Training:
    """Passes through the trainer."""

    tokens: float
    """Prompt and response tokens that go forward and backward."""
    response_tokens: float
    """Those of `tokens` that meet the head."""
    forward_tokens: float
    """Tokens that go forward only: validation, proximal and reference log-probs."""
    context: float
    """Mean length that a token attends over, times two: mean square of the sequences over their mean."""
    longest: int
    updates: int
    kind: str
    """Of the optimizer."""
    holds_reference: bool = False
    """A second, frozen policy lies beside the trained one."""


@dataclass(frozen=True)
class Sampling:
    """Responses drawn; each call waits for its longest response before the next one starts."""

    calls: float
    prompts: float
    """In one call."""
    samples: int
    """Responses to each prompt, which is read once for all of them."""
    prompt_tokens: float
    lengths: ResponseLengths
    in_flight: float | None = None
    """Prompts at most, one beginning where another has ended; None where each call waits for its longest response."""

    @property
    def responses(self) -> float:
        return self.calls * self.prompts * self.samples

    @property
    def tokens(self) -> float:
        return self.responses * self.lengths.mean

    @property
    def context(self) -> float:
        """Mean number of tokens that a drawn token attends to."""
        return self.prompt_tokens + self.lengths.mean_square / (2 * self.lengths.mean)


@dataclass(frozen=True)
class SideBySide:
    """Drawing and training at once, each on devices of its own."""

    replicas: int
    """Of the sampler."""
    trainer_ranks: int
    steps: int
    """Batches that pass from one to the other."""

    def seconds(self, training: float, sampling: float) -> float:
        """The longer of the two, and one step of the other: the first batch is drawn before anything is trained on."""
        return max(training, sampling) + min(training, sampling) / self.steps


@dataclass(frozen=True)
class Work:
    """What one stage does with a policy."""

    training: Training | None = None
    sampling: tuple[Sampling, ...] = ()
    taken_for_granted: tuple[str, ...] = ()
    """Sentences on what the figures assume, beyond the lengths."""
    side_by_side: SideBySide | None = None
    """None where it draws and trains in turns."""
    not_counted: tuple[str, ...] = ()
    """Work of unknown size, with how to make it known."""


@dataclass(frozen=True)
class NetworkWork:
    """What one stage does with networks that read or draw pictures."""

    trained: float
    """Parameters that learn."""
    held: float
    """Parameters beside them in memory that do not."""
    forward: float
    """FLOPs of passes without a gradient, in all."""
    with_gradient: float = 0.0
    """FLOPs of the forward passes that have one, in all; the way back is not in it."""
    taken_for_granted: tuple[str, ...] = ()
