"""The interface of samplers. Input: trajectories and new weights. Output: tokens, log-probs, stop reason and version.

A trajectory is a response that is still to be sampled: its prompt and a seed. `Sampler` holds the policy, and
`Decoding` the trajectories in flight. `sample_prompts` is for callers that wait for all responses. `uniform` gives the
random number of a seed and a position, so a response does not depend on the other responses of its batch.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy

from stages.foundations.seeds import derive_seed
from stages.observe.progress import progress

if TYPE_CHECKING:  # the hub of the asynchronous loop uses samplers, and has no torch
    from torch import Tensor


@dataclass(frozen=True)
class SamplingSettings:
    temperature: float
    """0 takes the most probable token (greedy)."""
    top_p: float
    """Share of probability mass kept, in (0, 1]; 1 keeps all."""
    top_k: int
    """Number of most probable tokens kept; 0 keeps all."""
    max_response_tokens: int
    """A response that reaches this length without ending is truncated."""
    log_threshold: float | None
    """Dynamic vocabulary pruning (arXiv 2512.23087), after the temperature and before the other cuts. Tokens with
    log(p / largest p) >= this threshold (at most 0) are kept; None keeps all. Greedy responses are not pruned."""
    keeps_distributions: bool = False
    """True gives `FullSample`s, which take 4 bytes times the vocabulary size for each token."""
    likeliest: int = 0
    """`FullSample`s keep only that many likeliest tokens of each distribution; 0 keeps all."""


class StopReason(StrEnum):
    END_OF_SEQUENCE = "end_of_sequence"
    """The policy sampled its end-of-sequence token, which is the last of `token_ids`."""
    STOP_STRING = "stop_string"
    """The text contains one of the sampler's stop strings, which the last of `token_ids` completed."""
    MAX_TOKENS = "max_tokens"
    """The limit on response tokens ended it: the response is truncated."""
    MAX_TURNS = "max_turns"
    """The policy took its last turn, and the environment had not ended the episode."""


@dataclass(frozen=True)
class Episode:
    """The course of a response of several turns, between which an environment answered."""

    observed: tuple[tuple[int, int], ...]
    """Spans [start, end) of the response's tokens that the environment wrote; the policy sampled all others."""
    turns: int
    """Turns of the policy, at least one."""
    response: str
    """The text to be judged: that of the last turn, or what the environment took from it. Never an observation."""
    calls: int = 0
    """Calls of tools, those that failed included."""
    failed_calls: int = 0
    """Calls that could not be parsed, or that a tool answered with an error."""
    seconds: float = field(default=0.0, compare=False)
    """Time that the environment took; unlike everything else here it differs between runs."""
    reward: float | None = None
    """The environment's reward; None if it gives none."""
    is_correct: bool | None = None
    """Whether the environment counts the response as correct; None leaves it to the verifier."""
    fault: str = ""
    """The reason why the environment failed. Such a response is never trained on."""


@dataclass(frozen=True)
class Sample:
    token_ids: list[int]
    """The response's tokens, the end-of-sequence token included when it was sampled."""
    logprobs: list[float]
    """Log-probability of each token under the distribution from which it was sampled; 0 for observed tokens."""
    stop_reason: StopReason
    policy_version: int
    episode: Episode | None = None
    """None for a response of one turn, without an environment."""

    @property
    def observed(self) -> tuple[tuple[int, int], ...]:
        """Returns the spans of the tokens that an environment wrote: none without an episode."""
        return self.episode.observed if self.episode else ()

    @property
    def policy_tokens(self) -> int:
        """Returns the number of tokens that the policy sampled: its length wherever length counts."""
        return len(self.token_ids) - sum(end - start for start, end in self.observed)

    @property
    def is_written(self) -> list[bool] | None:
        """Returns True for each token that the policy sampled; None when it sampled all."""
        if not self.observed:
            return None
        marks = [True] * len(self.token_ids)
        for start, end in self.observed:
            marks[start:end] = [False] * (end - start)
        return marks

    @property
    def is_truncated(self) -> bool:
        """True if the token limit ended the response."""
        return self.stop_reason is StopReason.MAX_TOKENS


@dataclass(frozen=True)
class FullSample(Sample):
    """A sample with the whole distribution from which each of its tokens was sampled."""

    distributions: Tensor = field(compare=False, kw_only=True)
    """Log-probs [tokens, vocabulary], float32, on the CPU; -inf on tokens that a cut removed. With
    `SamplingSettings.likeliest`, as `likeliest_tokens` of `stages.algorithms.token_statistics` returns them."""


@dataclass(frozen=True)
class Load:
    running: int
    """Sequences that the next step decodes."""
    waiting: int
    """Admitted sequences for which there is no room yet."""
    kv_tokens: int
    """Tokens of the running sequences, prompts included."""
    asked: int = 0
    """Of those that wait, the ones that wait for the answer of an environment."""
    kv_capacity: int | None = None
    """Tokens that the key-value cache holds; None when only the number of sequences limits it."""

    @property
    def waits_for_tools(self) -> bool:
        """Returns True when there is nothing to decode until an environment answers."""
        return 0 < self.asked == self.running + self.waiting


def check_begun(
    trajectories: Mapping[Hashable, Trajectory], known: Collection[Hashable], settings: SamplingSettings
) -> None:
    """Raises ValueError if a trajectory cannot be sampled.

    Reasons: it already has all its tokens, its name is in `known`, or it has begun and distributions are to be kept.
    """
    for name, trajectory in trajectories.items():
        count = len(trajectory.begun.token_ids)
        if name in known:
            raise ValueError(f"{name} is being drawn already")
        if count >= settings.max_response_tokens:
            raise ValueError(f"{name} has {count} tokens of {settings.max_response_tokens}: it has ended")
        if count and settings.keeps_distributions:
            raise ValueError(f"{name} was begun elsewhere: the distributions of its tokens are not known")


class Decoding(Protocol):
    """Trajectories in flight. The caller steps them and chooses their names."""

    def admit(self, trajectories: Mapping[Hashable, Trajectory]) -> None:
        """Adds trajectories, which take part from the next step on in this order, as far as there is room.

        Equal prompts should be neighbours: they are read once. Raises ValueError as `check_begun` does, and then admits
        none.
        """

    def step(self) -> dict[Hashable, Sample]:
        """Samples one more token for each running sequence; returns the samples that have ended, by name.

        A sample is complete: it includes the tokens that another sampler had sampled before.
        """

    def new_tokens(self) -> dict[Hashable, PartialResponse]:
        """Returns the new tokens of each trajectory in flight since the last call; leaves out those without any."""

    def withdraw(self, names: Iterable[Hashable]) -> dict[Hashable, PartialResponse]:
        """Ends these trajectories early and returns all their tokens by name; skips names that have ended."""

    @property
    def is_idle(self) -> bool:
        """True if a step would do nothing: no trajectory is running or waiting."""

    @property
    def load(self) -> Load:
        """Returns the current load."""

    def close(self) -> None:
        """Ends all trajectories in flight."""


def until_ended(decoding: Decoding, trajectories: Mapping[Hashable, Trajectory]) -> Iterator[tuple[Hashable, Sample]]:
    """Yields name and sample of each trajectory as it ends; closes the decoding, also when the caller stops early."""
    try:
        decoding.admit(trajectories)
        while not decoding.is_idle:
            yield from decoding.step().items()
    finally:
        decoding.close()


class Sampler(Protocol):
    """Generates responses to prompts with a policy."""

    policy_version: int
    """Version of the weights in use, as passed to `load_weights`; initially 0."""
    is_asleep: bool
    """True if the sampler has no weights: it needs `load_weights` before any other call."""

    def stream(self, trajectories: Sequence[Trajectory], settings: SamplingSettings) -> Iterator[tuple[int, Sample]]:
        """Yields index and sample of each trajectory as it ends, in any order.

        Log-probs are those of the distribution sampled from (temperature and cuts applied). Equal prompts should be
        neighbours: they are read once. A caller that stops early ends the trajectories in flight.
        """

    def open(self, settings: SamplingSettings) -> Decoding:
        """Opens the only decoding, under the weights in use; they must not change until it is closed or empty."""

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns the log-prob of each response token under the weights in use, at temperature 1 and without cuts."""

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Replaces the weights; names are those of the transformers checkpoint (tied heads may be omitted)."""

    def sleep(self) -> None:
        """Frees memory of a device that it shares, until the next `load_weights`; most samplers do nothing."""

    def kept_weights(self) -> dict[str, Tensor]:
        """Returns what a resumed process needs besides the newest weights; empty for most samplers."""

    def restore_weights(self, kept: Mapping[str, Tensor]) -> None:
        """Restores the result of `kept_weights`, before the first `load_weights`."""

    def close(self) -> None:
        """Frees memory and ends every process that the sampler started."""


@dataclass(frozen=True)
class PartialResponse:
    """The tokens that a trajectory has so far; `token_ids` and `logprobs` are as in `Sample`."""

    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    observed: tuple[tuple[int, int], ...] = ()
    """As in `Episode`."""


@dataclass(frozen=True)
class Trajectory:
    """A response that is still to be sampled: its prompt and the source of its random numbers.

    The random number at a position depends only on the seed and the position. So a trajectory gets the same tokens
    whatever is sampled in its batch, and whatever the place and time.
    """

    prompt: Sequence[int]
    """Token ids, at least one."""
    seed: int
    """63 bits, from `derive_seed` of everything that distinguishes this trajectory from others."""
    begun: PartialResponse = PartialResponse()
    """Tokens already sampled by another sampler with the same weights; sampling continues after them to the limit."""
    problem: Mapping[str, Any] = field(default_factory=dict)
    """JSON values of the problem that an environment needs: `problem_id`, `problem`, `answer`, and other columns of its
    row. Empty without an environment."""


def sample_trajectories(
    sampler: Sampler, trajectories: Sequence[Trajectory], settings: SamplingSettings, label: str = ""
) -> list[Sample]:
    """Returns the samples of the trajectories, in their order. A non-empty `label` shows progress."""
    ended = sampler.stream(trajectories, settings)
    if label:
        ended = progress(ended, len(trajectories), label, "responses")
    # They arrive as they end, the shortest first.
    samples = dict(ended)
    return [samples[index] for index in range(len(trajectories))]


def sample_prompts(
    sampler: Sampler,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str],
    count: int,
    settings: SamplingSettings,
    *seed_path: int | str,
    label: str = "",
    problems: Sequence[Mapping[str, Any]] | None = None,
) -> list[list[Sample]]:
    """Returns `count` samples of each prompt, by prompt; an environment needs the `problems` of the prompts.

    A sample's random numbers come from `seed_path`, the prompt's name and the sample's number. They do not depend on
    the rest of the call.
    """
    trajectories = [
        Trajectory(prompt, derive_seed(*seed_path, name, number), problem=problem)
        for prompt, name, problem in zip(prompts, names, problems or [{}] * len(prompts), strict=True)
        for number in range(count)
    ]
    samples = sample_trajectories(sampler, trajectories, settings, label)
    return [samples[start : start + count] for start in range(0, len(samples), count)]


GOLDEN_GAMMA = numpy.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = numpy.uint64(0xBF58476D1CE4E5B9), numpy.uint64(0x94D049BB133111EB)


def equal_prompts(trajectories: Sequence[Trajectory], indices: Iterable[int]) -> list[list[int]]:
    """Returns runs of neighbours among `indices` whose trajectories have the same prompt."""
    runs = groupby(indices, key=lambda index: tuple(trajectories[index].prompt))
    return [list(run) for _, run in runs]


def uniform(seeds: numpy.ndarray, positions: numpy.ndarray) -> numpy.ndarray:
    """Returns float64 numbers in [0, 1) with 53 random bits for seeds (uint64) and positions (from 0) that broadcast.

    There is no generator state: the number at a position is an output of the generator that starts with the seed.
    Source: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), with the
    constants of the authors' reference code.
    """
    # uint64 wraps around without a warning, as the reference code in C does.
    bits = seeds + (positions.astype(numpy.uint64) + numpy.uint64(1)) * GOLDEN_GAMMA
    bits = (bits ^ (bits >> numpy.uint64(30))) * FIRST_FACTOR
    bits = (bits ^ (bits >> numpy.uint64(27))) * SECOND_FACTOR
    bits ^= bits >> numpy.uint64(31)
    # A float64 below 1 holds only the upper 53 bits.
    return (bits >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53
