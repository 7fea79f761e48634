"""Tokenizers of policy folders: prompts to token ids, responses to token ids and back. Imports no torch."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from stages.foundations.errors import UserError
from stages.foundations.machine import from_root
from stages.foundations.params import ChatPrompt, PlainPrompt, TaggedCalls, ToolsEnvironment, chosen, format_problem

KNOWN_CLASSES: dict[tuple[str, str], type[PreTrainedTokenizerBase]] = {
    ("llama", "TokenizersBackend"): PreTrainedTokenizerFast,
    ("llama", "PreTrainedTokenizerFast"): PreTrainedTokenizerFast,
    ("qwen2", "Qwen2Tokenizer"): Qwen2Tokenizer,
    ("qwen2", "Qwen2TokenizerFast"): Qwen2Tokenizer,
    ("qwen3", "TokenizersBackend"): PreTrainedTokenizerFast,
    ("qwen3", "Qwen2Tokenizer"): Qwen2Tokenizer,
    ("qwen3", "Qwen2TokenizerFast"): Qwen2Tokenizer,
}
"""The class that `AutoTokenizer` uses for a config's model type and the class named in the tokenizer's config.

Only a short cut around `AutoTokenizer`, which imports torch (2 s, 300 MB) to read a few names.
"""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a policy folder; UserError when it has none or no end-of-sequence token.

    Imports torch only for tokenizers that are not among `KNOWN_CLASSES`.
    """
    try:
        known = KNOWN_CLASSES.get(_named_classes(folder))
        if known is None:
            # Imported here, because this import loads torch.
            from transformers import AutoTokenizer as known
        tokenizer = known.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    # Any exception: the file may contain anything, and the Rust library raises bare `Exception`s.
    except Exception as error:
        raise UserError(
            f"{folder} holds no usable tokenizer ({error}): make the policy again with its tokenizer"
        ) from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {folder} has no end-of-sequence token: set eos_token in its config")
    return tokenizer


def _named_classes(folder: Path) -> tuple[str, str] | None:
    """Returns model type and tokenizer class; None when a file is missing or names custom code."""
    paths = [folder / name for name in ("config.json", "tokenizer_config.json")]
    if not all(path.is_file() for path in (*paths, folder / "tokenizer.json")):
        return None
    model, tokenizer = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    # `auto_map` names Python files of the folder: left to AutoTokenizer, which does not run them.
    if "auto_map" in tokenizer:
        return None
    return model.get("model_type", ""), tokenizer.get("tokenizer_class", "")


def encode_prompt(tokenizer: PreTrainedTokenizerBase, params: PlainPrompt | ChatPrompt, problem: str) -> list[int]:
    """Returns token ids of the prompt for `problem`, ready for the response's first token.

    UserError for a chat prompt when the tokenizer has no chat template.
    """
    match params:
        case PlainPrompt():
            return list(tokenizer.encode(format_problem(params, problem), add_special_tokens=True))
        case ChatPrompt():
            messages = [{"role": "system", "content": params.system}] if params.system else []
            messages.append({"role": "user", "content": problem + params.suffix})
            return _encode_chat(tokenizer, params, messages)


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, params: PlainPrompt | ChatPrompt, messages: list[dict[str, str]]
) -> tuple[list[int], list[bool], int]:
    """Returns the token ids of a conversation, a mask of the assistant's tokens, and the number of its turns that are
    only context.

    A turn of the assistant is its text and the token that closes it, after the prompt that a policy would see there.
    Some templates render earlier turns differently, for instance without their thoughts: these turns are only context.
    UserError as in `encode_prompt`, for a plain prompt, and for a turn of a tool.
    """
    if not isinstance(params, ChatPrompt):
        raise UserError("a conversation needs `prompt.kind: chat`: set it, or take no source with role chat")
    if any(message["role"] == "tool" for message in messages):
        raise UserError("a turn of a tool needs `prompt.environment`: the policy would learn to call a tool it lacks")
    if params.system and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": params.system}, *messages]
    ids: list[int] = []
    is_written: list[bool] = []
    context = 0
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for turn, place in enumerate(places):
        prompt = _encode_chat(tokenizer, params, messages[:place])
        if prompt[: len(ids)] != ids:
            context, is_written = turn, []
        response = encode_response(tokenizer, messages[place]["content"], params)
        is_written += [False] * (len(prompt) - len(is_written)) + [True] * len(response)
        ids = prompt + response
    return ids, is_written, context


def _encode_chat(tokenizer: PreTrainedTokenizerBase, params: ChatPrompt, messages: list[dict[str, str]]) -> list[int]:
    """Returns token ids of the messages, ready for the assistant's next token."""
    # transformers would raise too, but without naming the setting to change.
    if not tokenizer.chat_template and not params.template:
        raise UserError("the policy's tokenizer has no chat template: set `prompt.kind: plain`")
    # The template has already written its special tokens: a second start token would change the prompt.
    return list(tokenizer.encode(render_chat(tokenizer, params, messages), add_special_tokens=False))


def render_chat(tokenizer: PreTrainedTokenizerBase, params: ChatPrompt, messages: list[dict[str, str]]) -> str:
    """Returns the conversation rendered by the template, which gets the schemas of tools that are called by tags.

    UserError when the template raises, or the policy would not read of a tool.
    """
    template = _template(params.template) if params.template else None
    arguments = {"chat_template": template, "add_generation_prompt": True, "tokenize": False}
    tools = _tools(params)
    if tools:
        arguments["tools"] = [{"type": "function", "function": tool} for tool in tools.values()]
    try:
        text = tokenizer.apply_chat_template(messages, **arguments, **(params.template_arguments or {}))
    # The template is a program of the model's author, and may raise anything.
    except Exception as error:
        raise UserError(
            f"the chat template raises {type(error).__name__}: {error}. Correct prompt.template or "
            "prompt.template_arguments, or set `prompt.kind: plain`"
        ) from error
    if hidden := [name for name in tools if name not in text]:
        raise UserError(
            f"the chat template ignores its argument `tools`, so the policy would not know of {', '.join(hidden)}: "
            "describe each by its name in prompt.system, or set prompt.template"
        )
    return text


def _tools(params: ChatPrompt) -> dict[str, dict[str, Any]]:
    match chosen("prompt.environment", params.environment):
        case ToolsEnvironment():
            from stages.engines.tool_schemas import tool_schemas

            is_tagged = isinstance(params.environment.calls, TaggedCalls)
            return tool_schemas(params.environment) if is_tagged else {}
    return {}


def _template(name: str) -> str:
    try:
        return from_root(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompt.template: {name} cannot be read ({error}): name a Jinja file in custom/") from error


def encode_response(
    tokenizer: PreTrainedTokenizerBase, response: str, prompt: PlainPrompt | ChatPrompt | None = None
) -> list[int]:
    """Returns token ids of a whole response with its end token: after a chat prompt, the token that closes a turn."""
    closing = closing_token(tokenizer) if isinstance(prompt, ChatPrompt) else None
    # Without special tokens: a response follows a prompt, which has the start token.
    ids = tokenizer.encode(response, add_special_tokens=False)
    return [*ids, tokenizer.eos_token_id if closing is None else closing]


def read_end_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Returns every token that ends a response of the policy in `folder`, that of the tokenizer first.

    Chat models have several: those of generation_config.json, and the one that closes a turn in the chat template.
    UserError when generation_config.json names something that is not a token.
    """
    path = folder / "generation_config.json"
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not readable ({error}): correct it, or remove it") from error
    named = named if isinstance(named, list) else [named]
    known = range(len(tokenizer))
    wrong = [token for token in named if token is not None and (type(token) is not int or token not in known)]
    if wrong:
        raise UserError(f"eos_token_id of {path} has {wrong[0]!r}, which is no token of the policy: correct it")
    every = tokenizer.eos_token_id, *named, closing_token(tokenizer)
    return tuple(dict.fromkeys(token for token in every if token is not None))


def closing_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Returns the special token that the chat template writes after an assistant's message; None if there is none."""
    if not tokenizer.chat_template:
        return None
    said = "ANSWER"
    messages = [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": said}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    # A template is a program of the model's author: an error here will be raised for a prompt as well.
    except Exception:
        return None
    behind = tokenizer.encode(text.rpartition(said)[2], add_special_tokens=False)
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    return next((token for token in behind if token in special), None)


def decode_response(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Returns the response's text without special tokens, except those that mark a thought: the verifier needs them."""
    marks = _thought_tokens(tokenizer)
    if not marks or marks.isdisjoint(token_ids):
        return tokenizer.decode(token_ids, skip_special_tokens=True)
    runs = groupby(token_ids, marks.__contains__)
    return "".join(tokenizer.decode(list(run), skip_special_tokens=not is_mark) for is_mark, run in runs)


@lru_cache(maxsize=8)
def _thought_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Special tokens that mark a thought, such as Magistral's `[THINK]`; those of most models are not special."""
    special = ((token, one.content.lower()) for token, one in tokenizer.added_tokens_decoder.items() if one.special)
    return frozenset(token for token, text in special if any(part in text for part in ("think", "thought", "reason")))
