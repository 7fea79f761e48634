"""The records that cross between samplers, the verifier and trainers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StopReason(StrEnum):
    """Why a response ended."""

    END_OF_SEQUENCE = "end_of_sequence"
    """The policy sampled its end-of-sequence token, which is the last of `token_ids`."""
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

    @property
    def is_truncated(self) -> bool:
        """True when the token limit ended the response."""
        return self.stop_reason is StopReason.MAX_TOKENS
