"""Tokenizers of policy folders: prompts to token ids, responses to token ids and back. Imports no torch.

A control token is a special token of the tokenizer, such as `<|im_end|>`. The templates of a model or of a parameter
file may write one. Text from data may only spell it, and then it becomes ordinary pieces: see `encode_messages`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


Messages = Sequence[dict[str, str]]
"""Turns of a conversation: `role` and `content`."""
READ_MARKS = ("<answer>", "</answer>", "\\boxed{", "\\fbox{", "<tool_call>", "</tool_call>")
"""What the verifier (stages/algorithms/answers/extraction.py) and tools look for in a response, besides thoughts."""
_THOUGHT_NAMES = ("think", "thought", "reason")
_OPEN_THOUGHT = re.compile(
    rf"(?P<left>[<\[◁])(?P<name>\w*(?:{'|'.join(_THOUGHT_NAMES)})\w*)(?P<right>[>\]▷])(?P<blanks>\s*)\Z", re.IGNORECASE
)
"""The end of a prompt that opens a thought: `<think>` and a newline, `[THINK]`."""
_THOUGHT_TOKENS = 32
"""Tokens at the end of a prompt that can hold a tag which opens a thought, also where each byte is a token."""
_PRIVATE = range(0xE000, 0xF900)
"""Unicode's area for private use: its characters are in no template, and hardly in any text."""


@dataclass(frozen=True)
class _Controls:
    ids: frozenset[int]
    read: frozenset[int]
    """Those of `ids` that a reader of responses looks for; they stay in a response."""
    names: tuple[str, ...]
    """Their texts, longest first."""
    any: re.Pattern[str]
    """Matches each of them, with the whitespace that the tokenizer strips beside it."""
    refused: dict[bool, re.Pattern[str]]
    """Matches those that data may not have, in a response (True) or in other text (False)."""


@lru_cache(maxsize=8)
def _controls(tokenizer: PreTrainedTokenizerBase) -> _Controls:
    special = {token: one for token, one in tokenizer.added_tokens_decoder.items() if one.special}
    texts = {token: one.content for token, one in special.items()}
    # The longest first, because a shorter one may be a part of it.
    by_length = sorted(texts, key=lambda token: (-len(texts[token]), token))
    read = frozenset(token for token, text in texts.items() if _is_read(text))

    def blanks(token: int, side: str) -> str:
        return r"\s*" if getattr(special[token], side) else ""

    def pattern(texts: list[str]) -> re.Pattern[str]:
        # An empty alternative would match everywhere.
        return re.compile("|".join(texts) if texts else r"(?!)")

    return _Controls(
        frozenset(texts),
        read,
        tuple(texts[token] for token in by_length),
        pattern([f"({'|'.join(blanks(o, 'lstrip') + re.escape(texts[o]) + blanks(o, 'rstrip') for o in by_length)})"]),
        {
            is_response: pattern(
                [re.escape(texts[token]) for token in by_length if not (is_response and token in read)]
            )
            for is_response in (False, True)
        },
    )


def _is_read(control: str) -> bool:
    """True for a control token that marks a thought, such as Magistral's `[THINK]`, or overlaps with `READ_MARKS`."""
    is_thought = any(name in control.lower() for name in _THOUGHT_NAMES)
    return is_thought or any(control in mark or mark in control for mark in READ_MARKS)


def encode_messages(
    tokenizer: PreTrainedTokenizerBase,
    messages: Messages,
    write: Callable[[Messages], str],
    add_special_tokens: bool = False,
) -> list[int]:
    """Returns the token ids of the text that `write` makes of messages whose contents are data.

    Control tokens that `write` adds are control tokens. The same text inside a content becomes ordinary pieces, so no
    data can end a turn or begin another one. In a message of the assistant the tokens that `decode_response` keeps
    are an exception: a policy must learn them. Without such text the ids are those of `tokenizer.encode`.

    A vocabulary whose first word has a blank before it gets one also before a stretch of ordinary pieces.
    """
    controls = _controls(tokenizer)
    pairs = [(message, controls.refused[message["role"] == "assistant"]) for message in messages]
    if not any(refused.search(message["content"]) for message, refused in pairs):
        return list(tokenizer.encode(write(messages), add_special_tokens=add_special_tokens))
    # A template may strip, split or quote a content, so each spelled token is hidden from it as a number between two
    # marks.
    shown = write(messages)
    mark = next(character for character in map(chr, _PRIVATE) if character not in shown)

    def hide(found: re.Match[str]) -> str:
        return f"{mark}{controls.names.index(found[0])}{mark}"

    hidden = [{**message, "content": refused.sub(hide, message["content"])} for message, refused in pairs]
    ids: list[int] = []
    real = ""

    def encoded(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False) if text else []

    # Stretches of ordinary text, and the control tokens between them.
    for stretch in controls.any.split(write(hidden)):
        if mark in stretch:
            spelled = re.sub(f"{mark}(\\d+){mark}", lambda found: controls.names[int(found[1])], stretch)
            ids += [*encoded(real), *encode_plain(tokenizer, spelled)]
            real = ""
        else:
            real += stretch
    ids += encoded(real)
    if not add_special_tokens:
        return ids
    # The start token, wherever the tokenizer puts it.
    bare, framed = (tokenizer.encode("x", add_special_tokens=added) for added in (False, True))
    start = next(place for place in range(len(framed)) if framed[place : place + len(bare)] == bare)
    return [*framed[:start], *ids, *framed[start + len(bare) :]]


def encode_plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns token ids of the text. None is a control token, except `unk_token` for characters that are unknown."""
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
    refused = _controls(tokenizer).ids
    # Some vocabularies name their end token as the unknown one too.
    if tokenizer.unk_token_id != tokenizer.eos_token_id:
        refused -= {tokenizer.unk_token_id}
    if refused.isdisjoint(ids):
        return list(ids)
    plain: list[int] = []
    for token in ids:
        # Vocabularies of SentencePiece have `</s>` as an ordinary piece too.
        spelled = tokenizer.convert_ids_to_tokens(token) if token in refused else ""
        if not spelled:
            plain.append(token)
        elif len(spelled) > 1:
            plain += encode_plain(tokenizer, spelled[:1]) + encode_plain(tokenizer, spelled[1:])
    return plain


def encode_prompt(tokenizer: PreTrainedTokenizerBase, params: PlainPrompt | ChatPrompt, problem: str) -> list[int]:
    """Returns token ids of the prompt for `problem`, ready for the response's first token.

    Control tokens in `problem` are ordinary pieces, those of a parameter file are not. UserError for a chat prompt when
    the tokenizer has no chat template.
    """
    messages = [{"role": "user", "content": problem}]
    match params:
        case PlainPrompt():
            return encode_messages(
                tokenizer, messages, lambda said: format_problem(params, said[0]["content"]), add_special_tokens=True
            )
        case ChatPrompt():
            system = _system(params)

            def write(said: Messages) -> str:
                asked = {"role": "user", "content": said[0]["content"] + params.suffix}
                return render_chat(tokenizer, params, [*system, asked])

            # The template has already written its special tokens: a second start token would change the prompt.
            return encode_messages(tokenizer, messages, write)


def _system(params: ChatPrompt) -> list[dict[str, str]]:
    return [{"role": "system", "content": params.system}] if params.system else []


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, params: PlainPrompt | ChatPrompt, messages: list[dict[str, str]]
) -> tuple[list[int], list[bool], int]:
    """Returns the token ids of a conversation, a mask of the assistant's tokens, and the number of its turns that are
    only context.

    A turn of the assistant is its text and the token that closes it, after the prompt that a policy would see there.
    Some templates render earlier turns differently, for instance without their thoughts: these turns are only context.
    A template that closes a turn with another token, or with none, keeps the text of earlier turns without this token.
    UserError as in `encode_prompt`, for a plain prompt, and for a turn of a tool.
    """
    if not isinstance(params, ChatPrompt):
        raise UserError("a conversation needs `prompt.kind: chat`: set it, or take no source with role chat")
    if any(message["role"] == "tool" for message in messages):
        raise UserError("a turn of a tool needs `prompt.environment`: the policy would learn to call a tool it lacks")
    system = [] if messages[0]["role"] == "system" else _system(params)
    ids: list[int] = []
    is_written: list[bool] = []
    context = 0
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for turn, place in enumerate(places):
        prompt = encode_messages(
            tokenizer, messages[:place], lambda said: render_chat(tokenizer, params, [*system, *said])
        )
        if prompt[: len(ids)] != ids:
            ids.pop()
            is_written.pop()
        if prompt[: len(ids)] != ids:
            context, is_written = turn, []
        response = encode_response(tokenizer, messages[place]["content"], params, prompt)
        is_written += [False] * (len(prompt) - len(is_written)) + [True] * len(response)
        ids = prompt + response
    return ids, is_written, context


def render_chat(
    tokenizer: PreTrainedTokenizerBase, params: ChatPrompt, messages: Messages, add_generation_prompt: bool = True
) -> str:
    """Returns the conversation rendered by the template, which gets the schemas of tools that are called by tags.

    UserError when there is no template, when it raises, or when the policy would not read of a tool.
    """
    # transformers would raise too, but without naming the setting to change.
    if not tokenizer.chat_template and not params.template:
        raise UserError("the policy's tokenizer has no chat template: set `prompt.kind: plain`")
    template = _template(params.template) if params.template else None
    arguments = {"chat_template": template, "add_generation_prompt": add_generation_prompt, "tokenize": False}
    tools = _tools(params)
    if tools:
        arguments["tools"] = [{"type": "function", "function": tool} for tool in tools.values()]
    try:
        text = tokenizer.apply_chat_template(list(messages), **arguments, **(params.template_arguments or {}))
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


def adopt_prompt(tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt) -> None:
    """Makes the template of `prompt` the tokenizer's, with `prompt.template_arguments` as its defaults.

    A saved tokenizer then writes the prompts of training without a parameter file. A caller of `apply_chat_template`
    may still give other arguments.
    """
    if not isinstance(prompt, ChatPrompt):
        return
    template = _template(prompt.template) if prompt.template else tokenizer.chat_template
    if isinstance(template, dict):
        tokenizer.chat_template = {name: _with_defaults(one, prompt) for name, one in template.items()}
    elif template:
        tokenizer.chat_template = _with_defaults(template, prompt)


def _with_defaults(template: str, prompt: ChatPrompt) -> str:
    # transformers removes the newline behind a block. So the template still begins at the start of a line, where its
    # first blanks mean the same as before. Python's literals are Jinja's.
    lines = [
        f"{{% if {name} is not defined %}}{{% set {name} = {value!a} %}}{{% endif %}}\n"
        for name, value in (prompt.template_arguments or {}).items()
    ]
    defaults = "".join(lines)
    # A stage that starts from a trained policy finds them there.
    return template if template.startswith(defaults) else defaults + template


def encode_response(
    tokenizer: PreTrainedTokenizerBase,
    response: str,
    prompt: PlainPrompt | ChatPrompt | None = None,
    after: Sequence[int] = (),
) -> list[int]:
    """Returns token ids of a whole response with its end token: after a chat prompt, the token that closes a turn.

    `after` are the ids before it. Where they end in an open thought, the response goes on in it: an opening tag is not
    repeated, and a response without a thought first closes that one, empty. Control tokens in the response are ordinary
    pieces, but for those that `decode_response` keeps.
    """
    if after:
        response = _within_thought(tokenizer.decode(list(after[-_THOUGHT_TOKENS:])), response)
    # Without special tokens: a response follows a prompt, which has the start token.
    ids = encode_messages(tokenizer, [{"role": "assistant", "content": response}], lambda said: said[0]["content"])
    closing = closing_token(tokenizer, prompt) if isinstance(prompt, ChatPrompt) else None
    return [*ids, tokenizer.eos_token_id if closing is None else closing]


def _within_thought(before: str, response: str) -> str:
    """Returns the response as it goes on behind `before`, which may end in an open thought."""
    opened = _OPEN_THOUGHT.search(before)
    if not opened:
        return response
    left, name, right, blanks = opened.group("left", "name", "right", "blanks")
    opening, closing = f"{left}{name}{right}", f"{left}/{name}{right}"
    text = response.lstrip()
    if text.startswith(opening):
        return text.removeprefix(opening).removeprefix(blanks)
    thought, found, _ = response.partition(closing)
    # As Qwen3 writes an empty thought.
    return response if found and opening not in thought else f"\n{closing}\n\n{response}"


def read_end_tokens(
    folder: Path, tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt | None = None
) -> tuple[int, ...]:
    """Returns every token that ends a response of the policy in `folder`, that of the tokenizer first.

    Chat models have several: those of generation_config.json, and the one that closes a turn in the chat template, the
    tokenizer's own and that of `prompt`. UserError when generation_config.json names something that is not a token.
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
    every = tokenizer.eos_token_id, *named, closing_token(tokenizer), closing_token(tokenizer, prompt)
    return tuple(dict.fromkeys(token for token in every if token is not None))


def closing_token(tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt | None = None) -> int | None:
    """Returns the special token that the chat template writes after an assistant's message; None if there is none.

    The template is that of a chat `prompt`, or without one the tokenizer's own.
    """
    chat = prompt if isinstance(prompt, ChatPrompt) else ChatPrompt(kind="chat", system="", suffix="")
    # Tools change nothing there, and reading their schemas takes time for each response.
    params = chat.model_copy(update={"environment": None})
    said = "ANSWER"
    messages = [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": said}]
    try:
        text = render_chat(tokenizer, params, [*_system(params), *messages], add_generation_prompt=False)
    # An error here will be raised for a prompt as well.
    except UserError:
        return None
    behind = tokenizer.encode(text.rpartition(said)[2], add_special_tokens=False)
    return next((token for token in behind if token in _controls(tokenizer).ids), None)


def decode_response(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """Returns the response's text without special tokens, except those that mark a thought, an answer or a call.

    The verifier and environments look for these: see `READ_MARKS`.
    """
    read = _controls(tokenizer).read
    if not read or read.isdisjoint(token_ids):
        return tokenizer.decode(token_ids, skip_special_tokens=True)
    runs = groupby(token_ids, read.__contains__)
    return "".join(tokenizer.decode(list(run), skip_special_tokens=not is_mark) for is_mark, run in runs)


def refuse_lost_marks(tokenizer: PreTrainedTokenizerBase, marks: dict[str, str]) -> None:
    """Raises UserError for a mark that is not in the text of a response that has it; `marks` are by parameter name."""
    for name, mark in marks.items():
        if mark not in decode_response(tokenizer, tokenizer.encode(mark, add_special_tokens=False)):
            raise UserError(
                f"{name} is {mark!r}, which the policy's tokenizer has as a special token, so the text of a response "
                "never holds it: choose a mark of ordinary characters"
            )
