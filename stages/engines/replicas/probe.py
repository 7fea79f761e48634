"""The check of every pull: on a fixed batch, the replica must give the log-probs that the trainer published.

The batch and the trainer's answer lie in the manifest of the version, so that a replica needs nobody to check itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

KEY = "probe"
"""In the manifest's metadata."""
SMALLEST_CHANGE = 1e-6
"""Change of the published log-probs below which a replica that did not change at all is not suspicious."""


class AnswersLogprobs(Protocol):
    """The part of a sampler that the probe asks."""

    def logprobs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """See `stages.engines.samplers.protocol.Sampler`."""


class ProbeError(RuntimeError):
    """The replica does not hold the weights that were published."""


@dataclass(frozen=True)
class Probe:
    """A fixed batch of responses and what the trainer says of them under one version."""

    prompts: list[list[int]]
    responses: list[list[int]]
    logprobs: list[float]
    """Of every response token, one response after another; JSON keeps floats exactly."""
    max_logprob_gap: float | None
    """Largest gap allowed; None only measures."""

    def to_metadata(self) -> dict[str, Any]:
        """For `PublishedWeights.publish`."""
        return {KEY: asdict(self)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Probe | None:
        """What `to_metadata` gave; None where the writer put no probe."""
        return cls(**metadata[KEY]) if KEY in metadata else None


class ProbeCheck:
    """Asks the sampler after each pull and remembers what both sides said last."""

    def __init__(self) -> None:
        self._published: list[float] = []
        self._answered: list[float] = []

    def gap(self, probe: Probe, sampler: AnswersLogprobs) -> float:
        """The largest gap of a token's log-prob; ProbeError when it is too large or the sampler stood still."""
        answered = [value for row in sampler.logprobs(probe.prompts, probe.responses) for value in row]
        gap = largest_gap(answered, probe.logprobs)
        stood_still = bool(self._answered) and answered == self._answered
        moved = largest_gap(probe.logprobs, self._published) if self._published else 0.0
        if probe.max_logprob_gap is not None:
            if not gap <= probe.max_logprob_gap:  # NaN is no agreement
                raise ProbeError(
                    f"a token's log-prob differs by {gap:.2e} between replica and trainer (allowed: "
                    f"rl.weight_sync_check.max_logprob_gap {probe.max_logprob_gap:.0e})"
                )
            if stood_still and moved > SMALLEST_CHANGE:
                raise ProbeError(f"the trainer's log-probs moved by {moved:.2e} and the replica's not at all")
        self._published, self._answered = probe.logprobs, answered
        return gap


def largest_gap(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest absolute difference; NaN when there is one, infinity when there are not as many on both sides."""
    if len(first) != len(second):
        return math.inf
    gaps = [abs(a - b) for a, b in zip(first, second, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps, default=0.0)
