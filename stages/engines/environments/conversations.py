"""Conversations with an environment as token ids, exactly as sampling would have produced them."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from stages.engines.policies.tokenizers import encode_prompt, encode_response
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt


def encode_turns(
    tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt, messages: Sequence[dict[str, str]]
) -> tuple[list[int], list[bool]]:
    """Returns the token ids of an episode and a mask of the policy's tokens.

    Every turn is appended to the ids before it, in the frame of `prompt.environment`, and nothing is rendered again.
    UserError unless a user begins, turns of the assistant and of a tool alternate, and the assistant ends.
    """
    user, *turns = messages
    roles = [turn["role"] for turn in turns]
    if user["role"] != "user" or len(roles) % 2 == 0 or roles != (["assistant", "tool"] * len(roles))[: len(roles)]:
        raise UserError(
            f"the turns are {user['role']}, {', '.join(roles)[:200]}: with prompt.environment a user begins, and turns "
            "of assistant and tool alternate (a system turn belongs into prompt.system)"
        )
    ids = encode_prompt(tokenizer, prompt, user["content"])
    is_written = [False] * len(ids)
    for turn in turns:
        is_policy = turn["role"] == "assistant"
        added = encode_response(tokenizer, turn["content"], prompt) if is_policy else _frame(tokenizer, prompt, turn)
        ids, is_written = ids + added, is_written + [is_policy] * len(added)
    return ids, is_written


def _frame(tokenizer, prompt, turn):
    frame = prompt.environment.frame
    return tokenizer.encode(frame.before + turn["content"] + frame.after, add_special_tokens=False)
