"""The tokens around an observation, and those of its text.

A response of several turns is one sequence of tokens: a turn with its end token, a frame with the observation, the next
turn, and so on. Tokens are only appended. Rendering a conversation again would change tokens that the policy has
sampled. The same text has several encodings, and many templates drop earlier thoughts, which are kept here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from stages.engines.policies.tokenizers import encode_plain, render_chat
from stages.foundations.errors import UserError
from stages.foundations.params import ChatFrame, ChatPrompt, PlainPrompt, TextFrame

CUT = "..."
"""Stands for the middle of a long observation."""
TOKEN_CHARACTERS = 16
"""Characters per token that are encoded at all: an observation of megabytes would take seconds."""
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but tab and newline, and halves of surrogate pairs, which have no encoding."""
_THOUGHT = re.compile(r"<think>\s*(</think>\s*)?")
"""The beginning of a thought, or an empty thought."""
_REMEDY = "set prompt.environment.frame.kind text"


@dataclass(frozen=True)
class Frame:
    """Token ids between the end token of a turn and an observation, and between the observation and the next turn."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def around(self, observation: Sequence[int]) -> list[int]:
        return [*self.before, *observation, *self.after]


def make_frame(
    tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt, end_tokens: Collection[int]
) -> Frame:
    """Returns the frame of `prompt.environment`, which must be set. UserError if there is none."""
    assert prompt.environment is not None
    match prompt.environment.frame:
        case TextFrame(before=before, after=after):
            frame = _encoded(tokenizer, before, after)
            if not {*frame.before, *frame.after}.isdisjoint(end_tokens):
                raise UserError("prompt.environment.frame holds a token that ends a turn: leave it out")
            return frame
        case ChatFrame():
            return _chat_frame(tokenizer, prompt, end_tokens)


def _chat_frame(
    tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt, end_tokens: Collection[int]
) -> Frame:
    """Returns what the chat template writes around a tool's message, between two of the assistant's."""
    if not isinstance(prompt, ChatPrompt):
        raise UserError(f"prompt.environment.frame.kind chat needs prompt.kind chat: set that, or {_REMEDY}")
    said, seen, said_later, seen_later = "MARKER", "OBSERVED", "LATER", "REPLIED"
    text = _render(tokenizer, prompt, (said, seen))
    _, _, behind = text.partition(said)
    closing, _, after = behind.partition(seen)
    ends = [tokenizer.convert_ids_to_tokens(token) for token in end_tokens]
    # The end token itself is part of the turn: the policy samples it.
    places = [closing.index(end) + len(end) for end in ends if end in closing]
    if text.count(said) != 1 or text.count(seen) != 1 or not places:
        raise UserError(f"the chat template gives no frame around a tool's message after a turn: {_REMEDY}")
    # Later turns must leave the earlier ones as they are. Only thoughts may differ, which a generation prompt opens and
    # an earlier turn often lacks.
    expected = f"{text}{said_later}{closing}{seen_later}{after}"
    if _THOUGHT.sub("", expected) != _THOUGHT.sub("", _render(tokenizer, prompt, (said, seen, said_later, seen_later))):
        raise UserError(f"the chat template rewrites earlier turns of a conversation: {_REMEDY}")
    return _encoded(tokenizer, closing[min(places) :], after)


def _render(tokenizer: PreTrainedTokenizerBase, prompt: ChatPrompt, contents: Sequence[str]) -> str:
    """Returns a conversation in which assistant and tool say `contents` in turn, ready for the next turn."""
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    messages.append({"role": "user", "content": f"QUESTION{prompt.suffix}"})
    for number, content in enumerate(contents):
        # Some templates write the name of the tool.
        of_role = {"role": "tool", "name": "tool"} if number % 2 else {"role": "assistant"}
        messages.append({**of_role, "content": content})
    try:
        return render_chat(tokenizer, prompt, messages)
    except UserError as error:
        raise UserError(f"no frame around a tool's message: {error}. Or {_REMEDY}") from error


def _encoded(tokenizer: PreTrainedTokenizerBase, before: str, after: str) -> Frame:
    # Here special tokens are wanted: a template writes them.
    return Frame(*(tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (before, after)))


def encode_observation(
    tokenizer: PreTrainedTokenizerBase, text: str, max_tokens: int, end_tokens: Collection[int] = ()
) -> list[int]:
    """Returns at most `max_tokens` token ids of the text, cut in the middle if it is longer.

    None is special or an end token: an observation cannot end a turn, or begin one.
    """
    most = TOKEN_CHARACTERS * max_tokens
    if len(text) > 2 * most:
        text = f"{text[:most]}{CUT}{text[-most:]}"
    refused = {tokenizer.unk_token_id, *end_tokens}

    def encoded(part: str) -> list[int]:
        # Unknown characters and ordinary text that ends a turn are left out.
        return [token for token in encode_plain(tokenizer, part) if token not in refused]

    ids, mark = encoded(_UNWANTED.sub("", text)), encoded(CUT)
    kept = max_tokens - len(mark)
    if len(ids) <= max_tokens:
        return ids
    return [*ids[: kept - kept // 2], *mark, *ids[len(ids) - kept // 2 :]] if kept > 1 else ids[:max_tokens]
