"""What every sampler does: trajectories in; token ids, log-probs, stop reason and policy version out; new weights in.

A trajectory is a response that is still to be sampled: its prompt and a seed. `Sampler` holds the policy, and
`Decoding` the trajectories in flight. `sample_prompts` is for callers that wait for all responses. `uniform` gives the
random number of a seed and a position, so a response does not depend on what is sampled beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import numpy

from stages.foundations.seeds import derive_seed
from stages.observe.progress import progress

if TYPE_CHECKING:  # the hub of the asynchronous loop knows samplers, and has no torch
    from torch import Tensor


@dataclass(frozen=True)
class SamplingSettings:
    """How responses are drawn."""

    temperature: float
    """0 takes the most probable token (greedy)."""
    top_p: float
    """Share of probability mass kept, in (0, 1]; 1 keeps all."""
    top_k: int
    """Number of most probable tokens kept; 0 keeps all."""
    max_response_tokens: int
    """A response that reaches this without ending is truncated."""
    log_threshold: float | None
    """Dynamic vocabulary pruning (arXiv 2512.23087): after the temperature and before the other cuts, only tokens with
    log(p / largest p) >= this, at most 0, are kept; None keeps all. Greedy responses are not pruned."""
    keeps_distributions: bool = False
    """True gives `FullSample`s: vocabulary times 4 bytes for each token."""


class StopReason(StrEnum):
    """Why a response ended."""

    END_OF_SEQUENCE = "end_of_sequence"
    """The policy sampled its end-of-sequence token, which is the last of `token_ids`."""
    STOP_STRING = "stop_string"
    """The text contains one of the sampler's stop strings, which the last of `token_ids` completed."""
    MAX_TOKENS = "max_tokens"
    """The limit on response tokens cut it off: the response is truncated."""


@dataclass(frozen=True)
class Sample:
    """One sampled response."""

    token_ids: list[int]
    """The response's tokens, the end-of-sequence token included when it was sampled."""
    logprobs: list[float]
    """Log-probability of each token under the distribution that it was sampled from."""
    stop_reason: StopReason
    policy_version: int
    """Version of the weights that drew it."""

    @property
    def is_truncated(self) -> bool:
        """True when the token limit ended the response."""
        return self.stop_reason is StopReason.MAX_TOKENS


@dataclass(frozen=True)
class FullSample(Sample):
    """A sample with the whole distribution that each of its tokens was drawn from."""

    distributions: Tensor = field(compare=False)
    """Log-probs [tokens, vocabulary], float32, on the CPU; -inf on tokens that a cut had left out."""


@dataclass(frozen=True)
class Load:
    """How busy a decoding is."""

    running: int
    """Sequences that the next step decodes."""
    waiting: int
    """Admitted sequences that there is no room for yet."""
    kv_tokens: int
    """Tokens of the running sequences, prompts included."""


def check_begun(
    trajectories: Mapping[Hashable, Trajectory], known: Collection[Hashable], settings: SamplingSettings
) -> None:
    """ValueError when a trajectory cannot be drawn.

    It has all its tokens already, its name is among `known`, or it was begun and its distributions are to be kept.
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
    """Trajectories in flight, stepped by the caller. The caller chooses the names."""

    def admit(self, trajectories: Mapping[Hashable, Trajectory]) -> None:
        """They take part from the next step on, as far as there is room, in this order.

        Equal prompts should stand together: they are read once. ValueError as in `check_begun`; none is then admitted.
        """

    def step(self) -> dict[Hashable, Sample]:
        """One more token for each running sequence; the samples of those that have ended, by name.

        A sample is whole: what was begun elsewhere, then what was drawn here.
        """

    def new_tokens(self) -> dict[Hashable, PartialResponse]:
        """What each trajectory that has not ended has got since this was last asked; one that got none is left out."""

    def withdraw(self, names: Iterable[Hashable]) -> dict[Hashable, PartialResponse]:
        """Ends these trajectories before their time and gives all their tokens; names of ended ones are passed over."""

    @property
    def is_idle(self) -> bool:
        """True when a step would do nothing: none is running and none waits."""

    @property
    def load(self) -> Load:
        """How busy it is now."""

    def close(self) -> None:
        """Ends what is in flight."""


class Sampler(Protocol):
    """A policy that answers prompts."""

    policy_version: int
    """Version of the weights in use, as given to `load_weights`; 0 at first."""
    is_asleep: bool
    """True where it has no weights: it needs `load_weights` before anything else."""

    def stream(self, trajectories: Sequence[Trajectory], settings: SamplingSettings) -> Iterator[tuple[int, Sample]]:
        """Index and sample of each trajectory as it ends, in whatever order that is.

        Log-probs are those of the distribution sampled from (temperature and cuts applied). Equal prompts should stand
        together: they are read once. A caller that stops early ends what is still being drawn.
        """

    def open(self, settings: SamplingSettings) -> Decoding:
        """A decoding under the weights in use; they must not change before it is closed or empty. One at a time."""

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability, at temperature 1 and without cuts, of each given response token under the weights in use."""

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Replaces the weights; names are those of the transformers checkpoint (tied heads may be left out)."""

    def sleep(self) -> None:
        """Gives back what it holds of a device that it shares, until the next `load_weights`; nothing for most."""

    def kept_weights(self) -> dict[str, Tensor]:
        """What a later process needs beside the newest weights to continue like this one; empty for most samplers."""

    def restore_weights(self, kept: Mapping[str, Tensor]) -> None:
        """Takes back what `kept_weights` gave, before the first `load_weights`."""

    def close(self) -> None:
        """Frees memory and ends every process that the sampler started."""


@dataclass(frozen=True)
class PartialResponse:
    """The tokens that a trajectory has so far; `token_ids` and `logprobs` are as in `Sample`."""

    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()


@dataclass(frozen=True)
class Trajectory:
    """A response that is still to be drawn: its prompt, and where its random numbers come from.

    The random number at a position is a function of the seed and the position alone, so the same trajectory is drawn
    whatever is drawn beside it, and wherever and whenever that happens.
    """

    prompt: Sequence[int]
    """Token ids, at least one."""
    seed: int
    """63 bits, from `derive_seed` of all that distinguishes this trajectory from others."""
    begun: PartialResponse = PartialResponse()
    """What another sampler with the same weights has drawn of it: sampling continues after it, to the same limit."""


def sample_trajectories(
    sampler: Sampler, trajectories: Sequence[Trajectory], settings: SamplingSettings, label: str = ""
) -> list[Sample]:
    """The sample of each trajectory, in their order. A non-empty `label` shows progress."""
    ended = sampler.stream(trajectories, settings)
    if label:
        ended = progress(ended, len(trajectories), label, "responses")
    # They come as they end, the shortest first.
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
) -> list[list[Sample]]:
    """`count` samples of each prompt, by prompt.

    A sample's random numbers come from `seed_path`, the prompt's name and the sample's number: not from what else is
    asked for in the same call.
    """
    trajectories = [
        Trajectory(prompt, derive_seed(*seed_path, name, number))
        for prompt, name in zip(prompts, names, strict=True)
        for number in range(count)
    ]
    samples = sample_trajectories(sampler, trajectories, settings, label)
    return [samples[start : start + count] for start in range(0, len(samples), count)]


GOLDEN_GAMMA = numpy.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = numpy.uint64(0xBF58476D1CE4E5B9), numpy.uint64(0x94D049BB133111EB)


def equal_prompts(trajectories: Sequence[Trajectory], indices: Iterable[int]) -> list[list[int]]:
    """Runs of neighbours among `indices` whose trajectories have the same prompt."""
    runs = groupby(indices, key=lambda index: tuple(trajectories[index].prompt))
    return [list(run) for _, run in runs]


def uniform(seeds: numpy.ndarray, positions: numpy.ndarray) -> numpy.ndarray:
    """Numbers in [0, 1) with 53 random bits, float64, for seeds (uint64) and positions (from 0) that broadcast.

    No generator has a state here: the number at a position is an output of the generator that starts with the seed.
    Source: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), with the
    constants of the authors' reference code.
    """
    # uint64 wraps around without a warning, as the reference code in C does.
    bits = seeds + (positions.astype(numpy.uint64) + numpy.uint64(1)) * GOLDEN_GAMMA
    bits = (bits ^ (bits >> numpy.uint64(30))) * FIRST_FACTOR
    bits = (bits ^ (bits >> numpy.uint64(27))) * SECOND_FACTOR
    bits ^= bits >> numpy.uint64(31)
    # The upper 53 bits are all that a float64 below 1 can hold.
    return (bits >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53
