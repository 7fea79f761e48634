"""Stop strings, and why a response ended: one rule for every sampler.

A response ends with the token that completes a stop string in its text. Its tokens stay as they were sampled. So the
text keeps the string, and anything else that this token holds.

Deviation: vLLM's `stop` is not used. It would miss a string that begins in tokens of another sampler.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from stages.engines.policies.tokenizers import decode_response
from stages.engines.samplers.protocol import StopReason

CHARACTER_BYTES = 4
SILENT_TOKENS = 8
"""Tokens without text, such as special ones, that may be inside a stop string."""


@dataclass(frozen=True)
class StopStrings:
    tokenizer: PreTrainedTokenizerBase
    strings: Sequence[str]

    @cached_property
    def window(self) -> int:
        """Number of tokens at the end of a response that are decoded at each step, however long the response is."""
        # All but a few tokens add at least one byte, and the first may end a character that began earlier.
        return max(len(one.encode()) for one in self.strings) + CHARACTER_BYTES + SILENT_TOKENS

    def end(self, token_ids: Sequence[int], begun: Sequence[int] = ()) -> bool:
        """Returns True if the last of `begun` and `token_ids` completes a stop string; the last `window` are enough."""
        tail = [*begun[-self.window :], *token_ids[-self.window :]][-self.window :]
        # A tail that begins inside a character may be unreadable. One of the next tokens begins another character.
        for first in range(CHARACTER_BYTES):
            text = decode_response(self.tokenizer, tail[first:])
            if any(one in text for one in self.strings):
                return True
            if "\ufffd" not in text:
                break
        return False


def why_ended(token_ids: Sequence[int], end_tokens: Collection[int], stops: StopStrings | None) -> StopReason:
    """Returns why a response ended: an end token takes precedence, then a stop string, then the limit."""
    if token_ids[-1] in end_tokens:
        return StopReason.END_OF_SEQUENCE
    return StopReason.STOP_STRING if stops and stops.end(token_ids) else StopReason.MAX_TOKENS
