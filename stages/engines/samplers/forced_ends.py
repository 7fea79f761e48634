"""A sampler that ends long thoughts: it appends a phrase of the user at a budget, and the policy goes on to its answer.

The phrase is an observation: the policy has not sampled it, so it has no log-probs and gives no gradient. Sources:
ScaleRL (arXiv 2510.13786), section 2 and appendix A.10, and the thinking budget of Qwen3 (arXiv 2505.09388).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.engines.policies.tokenizers import decode_response, load_tokenizer
from stages.engines.samplers.protocol import (
    Decoding,
    Episode,
    PartialResponse,
    Sample,
    Sampler,
    SamplingSettings,
    Trajectory,
    until_ended,
)
from stages.foundations.params import ForcedEnd


class ForcedEndSampler:
    """See `stages.engines.samplers.protocol.Sampler`. A limit without room for phrase and answer forces no end."""

    def __init__(self, inner: Sampler, params: ForcedEnd, policy_folder: Path) -> None:
        self.inner, self.params, self.tokenizer = inner, params, load_tokenizer(policy_folder)
        # With special tokens: the mark is one of them in some vocabularies.
        self.phrase: list[int] = self.tokenizer.encode(params.text, add_special_tokens=False)

    def __getattr__(self, name: str) -> Any:
        """Weights and log-probs have nothing to do with phrases: the inner sampler answers."""
        return getattr(self.inner, name)

    def budget(self, trajectory: Trajectory, settings: SamplingSettings) -> float:
        """Returns the tokens after which a response that still thinks is asked to end; its seed decides."""
        low, high = self.params.thinking_tokens
        has_room = high + len(self.phrase) < settings.max_response_tokens
        return low + trajectory.seed % (high - low + 1) if has_room else math.inf

    def forced(self, one: Trajectory) -> Trajectory | None:
        """Returns the trajectory that goes on behind the phrase; None when its thought has ended."""
        ids, logprobs = one.begun.token_ids, one.begun.logprobs
        if self.params.mark in self.tokenizer.decode(ids):
            return None
        whole = [*ids, *self.phrase], [*logprobs, *[0.0] * len(self.phrase)]
        return replace(one, begun=PartialResponse(*whole, ((len(ids), len(whole[0])),)))

    def ended(self, sample: Sample, observed: tuple[tuple[int, int], ...]) -> Sample:
        """Returns the sample with its spans. What follows the phrase is judged, or all if there is none."""
        answer = sample.token_ids[observed[-1][1] if observed else 0 :]
        return replace(sample, episode=Episode(observed, 1 + len(observed), decode_response(self.tokenizer, answer)))

    def stream(self, trajectories: Sequence[Trajectory], settings: SamplingSettings) -> Iterator[tuple[int, Sample]]:
        return until_ended(self.open(settings), dict(enumerate(trajectories)))

    def open(self, settings: SamplingSettings) -> ForcedEndDecoding:
        return ForcedEndDecoding(self, self.inner.open(settings), settings)


class ForcedEndDecoding:
    """See `stages.engines.samplers.protocol.Decoding`."""

    def __init__(self, sampler: ForcedEndSampler, inner: Decoding, settings: SamplingSettings) -> None:
        self._sampler, self._inner, self._settings, self._steps = sampler, inner, settings, 0
        self._running: dict[Hashable, Trajectory] = {}
        """What was read of each response so far."""
        self._due: dict[Hashable, float] = {}
        """Step in which it has its budget at the earliest, since a step samples one token."""
        self._reported: dict[Hashable, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def admit(self, trajectories: Mapping[Hashable, Trajectory]) -> None:
        self._inner.admit(trajectories)
        for name, one in trajectories.items():
            self._running[name], self._reported[name] = one, len(one.begun.token_ids)
            self._wait_for_budget(name)

    def _wait_for_budget(self, name: Hashable) -> None:
        one = self._running[name]
        left = self._sampler.budget(one, self._settings) - len(one.begun.token_ids)
        # With as many tokens it was asked to end, or had ended its thought.
        self._due[name] = self._steps + left if left > 0 and not one.begun.observed else math.inf

    def step(self) -> dict[Hashable, Sample]:
        """Implements the protocol; a response that was asked to end goes on in the next step."""
        self._steps += 1
        ended = self._inner.step().items()
        samples = {name: self._sampler.ended(one, self._running.pop(name).begun.observed) for name, one in ended}
        due = [name for name in self._running if self._due[name] <= self._steps]
        # Only then: an engine may copy all tokens.
        if due:
            self._read()
        for name in due:
            self._wait_for_budget(name)
            # Otherwise it has waited for room.
            if self._due[name] == math.inf and (forced := self._sampler.forced(self._running[name])):
                self._running[name] = forced
                self._inner.withdraw([name])
                self._inner.admit({name: forced})
        return samples

    def _read(self) -> None:
        for name, new in self._inner.new_tokens().items():
            one = self._running[name]
            whole = [*one.begun.token_ids, *new.token_ids], [*one.begun.logprobs, *new.logprobs]
            self._running[name] = replace(one, begun=PartialResponse(*whole, one.begun.observed))

    def new_tokens(self) -> dict[Hashable, PartialResponse]:
        self._read()
        news: dict[Hashable, PartialResponse] = {}
        for name, one in self._running.items():
            ids, logprobs, observed = one.begun.token_ids, one.begun.logprobs, one.begun.observed
            start, self._reported[name] = self._reported[name], len(ids)
            if start < len(ids):
                spans = tuple(span for span in observed if span[0] >= start)
                news[name] = PartialResponse(ids[start:], logprobs[start:], spans)
        return news

    def withdraw(self, names: Iterable[Hashable]) -> dict[Hashable, PartialResponse]:
        parts = self._inner.withdraw(names).items()
        return {name: replace(part, observed=self._running.pop(name).begun.observed) for name, part in parts}
