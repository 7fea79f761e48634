"""Conversations with an environment as token ids, exactly as sampling would have produced them, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from stages.engines.environments.frames import encode_observation, make_frame
from stages.engines.policies.tokenizers import (
    decode_response,
    encode_conversation,
    encode_prompt,
    encode_response,
    read_end_tokens,
)
from stages.engines.samplers.protocol import Sample
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt

Messages = list[dict[str, str]]


def turn_encoder(
    tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt, policy: Path
) -> Callable[[Messages], tuple[list[int], list[bool], int]]:
    """Returns a function that encodes a conversation, with the results of `encode_conversation`.

    Every turn is appended to the ids before it, an observation in the frame of `prompt.environment`; nothing is
    rendered again. `policy` is the folder of the tokenizer. UserError if the prompt gives no frame.

    The function raises UserError unless a user begins, turns of assistant and tool alternate, and the assistant ends.
    For a chat prompt, `encode_conversation` encodes conversations without a tool.
    """
    end_tokens = read_end_tokens(policy, tokenizer, prompt)
    frame = make_frame(tokenizer, prompt, end_tokens)
    most = prompt.environment.max_observation_tokens

    def encode(messages: Messages) -> tuple[list[int], list[bool], int]:
        roles = [message["role"] for message in messages]
        if "tool" not in roles and isinstance(prompt, ChatPrompt):
            return encode_conversation(tokenizer, prompt, messages)
        if roles != ["user", *["assistant", "tool"] * (len(roles) // 2 - 1), "assistant"]:
            raise UserError(
                f"the turns are {', '.join(roles)[:200]}: with prompt.environment a user begins and turns of assistant "
                "and tool alternate; a system turn belongs into prompt.system"
            )
        ids = encode_prompt(tokenizer, prompt, messages[0]["content"])
        is_written = [False] * len(ids)
        for message in messages[1:]:
            is_policy = message["role"] == "assistant"
            if is_policy:
                added = encode_response(tokenizer, message["content"], prompt, ids)
            else:
                added = frame.around(encode_observation(tokenizer, message["content"], most, end_tokens))
            ids += added
            is_written += [is_policy] * len(added)
        return ids, is_written, 0

    return encode


def turn_reader(
    tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt, policy: Path
) -> Callable[[str, Sample], Messages]:
    """Returns a function that takes a problem's text and a sample with an episode apart into messages.

    It is the inverse of `turn_encoder`, but for observations that were cut. UserError as there.
    """
    frame = make_frame(tokenizer, prompt, read_end_tokens(policy, tokenizer, prompt))

    def read(problem: str, sample: Sample) -> Messages:
        def said(role: str, ids: Sequence[int]) -> dict[str, str]:
            return {"role": role, "content": decode_response(tokenizer, [*ids])}

        messages, start = [{"role": "user", "content": problem}], 0
        for first, end in sample.observed:
            observation = sample.token_ids[first + len(frame.before) : end - len(frame.after)]
            messages += [said("assistant", sample.token_ids[start:first]), said("tool", observation)]
            start = end
        return [*messages, said("assistant", sample.token_ids[start:])]

    return read
