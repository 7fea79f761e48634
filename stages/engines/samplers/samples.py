"""What is asked of a sampler and what it gives: trajectories in, samples out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class StopReason(StrEnum):
    """Why a response ended."""

    END_OF_SEQUENCE = "end_of_sequence"
    """The policy sampled its end-of-sequence token, which is the last of `token_ids`."""
    MAX_TOKENS = "max_tokens"
    """The limit on response tokens cut it off: the response is truncated."""


@dataclass(frozen=True)
class Begun:
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
    """63 bits, from `derive_seed` of all that tells this trajectory from others."""
    begun: Begun = Begun()
    """What another sampler with the same weights has drawn of it: sampling goes on behind it, under the same limit."""


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
